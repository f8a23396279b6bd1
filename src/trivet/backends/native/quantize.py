"""Quantising in the native core: what `blocks.quantize` gives, by all processors."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import _native as core
from trivet.blocks import tensor_bytes
from trivet.dtypes import DType
from trivet.errors import ShapeError


def quantize(
    raw: npt.NDArray[Any],
    source: DType,
    shape: tuple[int, ...],
    dtype: DType,
    importance: npt.NDArray[np.float32] | None = None,
    threads: int = 0,
) -> tuple[npt.NDArray[np.uint8], float, float]:
    """The bytes as `dtype` of a tensor whose bytes are `raw`, of dtype `source`; both are packed formats of
    GGUF, f32, f16 or bf16. And the sums of the squares of its values, and of the errors.

    Raises NonFiniteError where a value is not finite, or beyond what the dtype can hold; ShapeError."""
    if raw.nbytes != tensor_bytes(source, shape) or not shape:
        raise ShapeError(f"[quantize] {raw.nbytes} bytes are no {source} of shape {shape}")
    if importance is not None and importance.shape != shape[-1:]:
        raise ShapeError(f"[quantize] importance has shape {importance.shape}; wanted a row's, {shape[-1:]}")
    given = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    out = np.empty(tensor_bytes(dtype, shape), np.uint8)
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    info = core.tv_quantize_info(struct_size=ctypes.sizeof(core.tv_quantize_info))
    weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
    core.tv_tensor_quantize(
        ctypes.byref(core.tv_tensor(given.ctypes.data, source.id, len(shape), sizes, None)),
        None if weights is None else weights.ctypes.data,
        threads,
        ctypes.byref(core.tv_tensor(out.ctypes.data, dtype.id, len(shape), sizes, None)),
        ctypes.byref(info),
    )
    return out, info.squares, info.errors
