"""Element types as they lie in files: one row each, with the NumPy truth of what the bytes mean.

`dequantize` is the definition every backend's packed kernels are held to, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet.blocks import block32, block256, dense, nf4
from trivet.blocks.bfloat16 import from_bf16, to_bf16
from trivet.blocks.row import BlockFormat
from trivet.dtypes import DType
from trivet.errors import DTypeError, NonFiniteError, ShapeError, UnsupportedError

__all__ = ["BY_DTYPE", "BlockFormat", "dequantize", "from_bf16", "quantize", "tensor_bytes", "to_bf16"]

BY_DTYPE: dict[DType, BlockFormat] = {
    row.dtype: row for row in dense.ROWS + block32.ROWS + block256.ROWS + nf4.ROWS
}

_CHUNK = 1 << 16  # elements at a time, so that the passes over one chunk stay in cache


def tensor_bytes(dtype: DType, shape: Sequence[int]) -> int:
    """Bytes of a tensor in row-major order; DTypeError if its rows do not divide into blocks.

    >>> from trivet.dtypes import q4_1
    >>> tensor_bytes(q4_1, (3, 64))
    120
    """
    dtype.row_bytes(shape[-1] if shape else 1)  # raises
    return dtype.tensor_bytes(math.prod(shape))


def dequantize(raw: npt.NDArray[np.uint8], dtype: DType, shape: Sequence[int]) -> npt.NDArray[np.float32]:
    """The float32 values, of `shape`, that the bytes `raw` mean as `dtype`.

    >>> from trivet.dtypes import f16
    >>> dequantize(np.array([0x00, 0x3C, 0x00, 0xC0], np.uint8), f16, (2,)).tolist()
    [1.0, -2.0]
    """
    if raw.dtype != np.uint8:
        raise DTypeError(f"[dequantize] takes raw bytes as uint8, got {raw.dtype}")
    if raw.size != tensor_bytes(dtype, shape):
        raise ShapeError(
            f"[dequantize] {dtype} {tuple(shape)} is {tensor_bytes(dtype, shape)} bytes, got {raw.size}"
        )
    row = BY_DTYPE[dtype]
    flat = np.ascontiguousarray(raw).reshape(-1)
    if row.single is not None:
        flat, row = nf4.opened(flat, dtype), BY_DTYPE[row.single]
    assert row.decode is not None
    blocks = flat.view(row.layout)
    out = np.empty((len(blocks), dtype.block), np.float32)
    step = _CHUNK // dtype.block
    with np.errstate(all="ignore"):  # scales may be infinite or NaN; their products follow IEEE rules
        for start in range(0, len(blocks), step):
            row.decode(blocks[start : start + step], out[start : start + step])
    return out.reshape(shape)


def quantize(
    values: npt.NDArray[np.float32],
    dtype: DType,
    dither: int | None = None,
    importance: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.uint8]:
    """The bytes of `values` as `dtype`, rows along the last axis: shape [..., row bytes]; flat where
    the dtype has something behind the last row.

    Packed blocks hold the codes nearest to the values under scales searched to err least in their squares
    (q8_0 and NF4: under the scale that the largest value gives). With `dither`, a seed, GGUF's packed formats
    round up or down by chance instead, in proportion: each value errs more, but on average not at all, so
    that changes smaller than a step survive. With `importance`, float32 weights of the elements of a row, the
    squares of errors count by these (q8_0 and NF4 are not searched, and do not change).

    Raises UnsupportedError for a format that trivet only reads, or does not dither, and NonFiniteError where
    a packed block would have to hold a value that is not finite, or a scale beyond f16.
    """
    if values.dtype != np.float32:
        raise DTypeError(f"[quantize] takes float32, got {values.dtype}")
    row = BY_DTYPE[dtype]
    if dither is not None and not row.dithers:
        raise UnsupportedError(f"[quantize] {dtype}: only GGUF's packed formats are dithered")
    if row.single is not None:
        dtype.row_bytes(values.shape[-1] if values.shape else 1)  # raises
        return nf4.closed(quantize(values, row.single), dtype)
    if importance is not None and importance.shape != values.shape[-1:]:
        raise ShapeError(
            f"[quantize] importance has shape {importance.shape}; wanted a row's, {values.shape[-1:]}"
        )
    if row.encode is None:
        raise UnsupportedError(f"[quantize] {dtype}: trivet reads this format but does not write it")
    if dtype.is_packed and not np.isfinite(values).all():
        raise NonFiniteError(f"[quantize] {dtype}: the values must be finite")
    shape = values.shape or (1,)
    nbytes = dtype.row_bytes(shape[-1])
    flat = np.ascontiguousarray(values).reshape(-1, dtype.block)
    blocks = np.empty(len(flat), row.layout)
    step = max(1, _CHUNK // dtype.block)
    chance = None if dither is None else np.random.Generator(np.random.Philox(dither))
    weights = None if importance is None else importance.reshape(-1, dtype.block)
    with np.errstate(over="ignore", under="ignore"):
        for start in range(0, len(flat), step):
            part = flat[start : start + step]
            more: tuple[Any, ...] = ()
            if row.dithers:
                at = np.arange(start, start + len(part))
                more = (chance, None if weights is None else weights[at % len(weights)])
            blocks[start : start + step] = row.encode(part, *more)
    return blocks.view(np.uint8).reshape(*shape[:-1], nbytes)
