"""Blocks that MLX multiplies itself: 32 numbers of 4 or 8 bits, with a scale and an offset.

    codes   u32 [N, K / 8] or [N, K / 4]   whole numbers from 0 on, the first in the lowest bits
    scales  f32 [N, K / 32]
    offsets f32 [N, K / 32]                a weight is scale * code + offset: exactly what the block says

Weights of q4_0, q4_1 and q8_0 are arranged so when they come into MLX's memory. (The scales of other formats
stand for other lengths, or for none that MLX knows.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np

from trivet import dtypes
from trivet.dtypes import DType

#: (codes, scales, offsets)
Affine: TypeAlias = tuple[Any, Any, Any]
_GROUP = 32


def _half(raw: Any) -> Any:
    return np.ascontiguousarray(raw).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(qs: Any) -> Any:
    """A byte holds elements j and j + 16 of its block: -> j and j + 1."""
    low, high = ((q[..., 0::2] | (q[..., 1::2] << 4)) for q in (qs & 15, qs >> 4))
    return np.concatenate([low, high], -1)


def _q4_0(b: Any) -> Any:
    d = _half(b[..., :2])
    return _nibbles(b[..., 2:]), d, -8 * d


def _q4_1(b: Any) -> Any:
    return _nibbles(b[..., 4:]), _half(b[..., :2]), _half(b[..., 2:4])


def _q8_0(b: Any) -> Any:
    d = _half(b[..., :2])
    return b[..., 2:] ^ 128, d, -128 * d  # two's complement, from 0 on


_FORMATS: dict[DType, Callable[[Any], Any]] = {
    dtypes.q4_0: _q4_0,
    dtypes.q4_1: _q4_1,
    dtypes.q8_0: _q8_0,
}


def arranged(rows: Any, dtype: DType) -> Affine | None:
    """Packed rows u8 [N, row bytes] as MLX multiplies them; None if it does not."""
    if dtype not in _FORMATS or rows.ndim != 2 or not rows.size:
        return None
    codes, scales, offsets = _FORMATS[dtype](rows.reshape(len(rows), -1, dtype.nbytes))
    words = np.ascontiguousarray(codes).reshape(len(rows), -1).view(np.uint32)
    return mx.array(words), mx.array(scales), mx.array(offsets)


def _bits(w: Affine) -> int:
    return int(w[0].shape[-1]) * 32 // (int(w[1].shape[-1]) * _GROUP)


def product(x: Any, w: Any, transpose: bool) -> Any:
    """x [T, .] times a weight, arranged or dense, or times its transpose; of an arranged one in float32."""
    if not isinstance(w, tuple):
        return x @ (w.T if transpose else w)
    if not x.size:
        return x.astype(mx.float32) @ (values(w).T if transpose else values(w))
    # Metal: the GPU's own kernel of products with packed weights
    return mx.quantized_matmul(
        x.astype(mx.float32), *w, transpose=transpose, group_size=_GROUP, bits=_bits(w)
    )


def values(w: Affine) -> Any:
    """The weight in float32."""
    return mx.dequantize(*w, group_size=_GROUP, bits=_bits(w))
