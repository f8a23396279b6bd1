"""Packed blocks as values, inside a program: bytes in device memory, floats only where they are used.

The byte layouts stand in `trivet/blocks`; a block is the last axis here, [..., blocks, bytes].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from trivet import dtypes
from trivet.blocks import nf4
from trivet.blocks.block32 import IQ4_NL_LEVELS
from trivet.dtypes import DType


def _half(raw: Any) -> Any:
    """Two bytes of each block as its f16, [..., blocks, 1]."""
    return lax.bitcast_convert_type(raw, jnp.float16)[..., None].astype(jnp.float32)


def _nibbles(qs: Any) -> Any:
    return jnp.concatenate([qs & 15, qs >> 4], -1)


def _bits(raw: Any, count: int) -> Any:
    """Bit i of byte j as element 8j + i."""
    return ((raw[..., None] >> jnp.arange(8, dtype=jnp.uint8)) & 1).reshape(*raw.shape[:-1], count)


def _f32(q: Any) -> Any:
    return q.astype(jnp.float32)


def _chosen(levels: Any, q: Any) -> Any:
    """levels[q] of 16 levels, by four choices of two: a gather is slow on TPU, and much code."""
    left = [jnp.float32(level) for level in levels]
    for bit in range(4):
        odd = ((q >> bit) & 1) != 0
        left = [jnp.where(odd, b, a) for a, b in zip(left[::2], left[1::2], strict=True)]
    return left[0]


def _q8_0(b: Any) -> Any:
    return _f32(lax.bitcast_convert_type(b[..., 2:], jnp.int8)) * _half(b[..., :2])


def _q4_0(b: Any) -> Any:
    return (_f32(_nibbles(b[..., 2:])) - 8) * _half(b[..., :2])


def _q4_1(b: Any) -> Any:
    return _f32(_nibbles(b[..., 4:])) * _half(b[..., :2]) + _half(b[..., 2:4])


def _q5_0(b: Any) -> Any:
    return (_f32(_nibbles(b[..., 6:]) | (_bits(b[..., 2:6], 32) << 4)) - 16) * _half(b[..., :2])


def _q5_1(b: Any) -> Any:
    q = _nibbles(b[..., 8:]) | (_bits(b[..., 4:8], 32) << 4)
    return _f32(q) * _half(b[..., :2]) + _half(b[..., 2:4])


def _iq4_nl(b: Any) -> Any:
    return _chosen(IQ4_NL_LEVELS, _nibbles(b[..., 2:])) * _half(b[..., :2])


# --- 256 elements a block: runs of 32, groups with a scale each ----------------------------------


def _runs(runs: list[Any]) -> Any:
    """[..., 32] each -> [..., 256] in order."""
    return jnp.concatenate(runs, -1)


def _grouped(q: Any, factor: Any, offset: Any = None) -> Any:
    """factor[group] * q - offset[group]."""
    groups = q.reshape(*factor.shape, -1) * factor[..., None]
    if offset is not None:
        groups = groups - offset[..., None]
    return groups.reshape(q.shape)


def _two_bits(qs: Any) -> list[Any]:
    """qs [..., 64] -> the low two bits of each of eight runs."""
    return [(qs[..., r // 4 * 32 :][..., :32] >> 2 * (r % 4)) & 3 for r in range(8)]


def _q2_k(b: Any) -> Any:
    scales = b[..., :16]
    d, dmin = _half(b[..., 80:82]), _half(b[..., 82:84])
    return _grouped(_f32(_runs(_two_bits(b[..., 16:80]))), d * _f32(scales & 15), dmin * _f32(scales >> 4))


def _q3_k(b: Any) -> Any:
    low, packed = _two_bits(b[..., 32:96]), b[..., 96:108]
    q = _runs([low[r] | (((b[..., :32] >> r) & 1) << 2) for r in range(8)])
    high = jnp.concatenate([(packed[..., 8:] >> 2 * i) & 3 for i in range(4)], -1)
    scales = jnp.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], -1) | (high << 4)
    return _grouped(_f32(q) - 4, _half(b[..., 108:110]) * (_f32(scales) - 32))


def _with_min(b: Any, q: Any) -> Any:
    """q4_k and q5_k: scales and minima of six bits in bytes 4..16."""
    first, second, third = b[..., 4:8], b[..., 8:12], b[..., 12:16]
    scale = jnp.concatenate([first & 63, (third & 15) | ((first >> 2) & 48)], -1)
    minimum = jnp.concatenate([second & 63, (third >> 4) | ((second >> 2) & 48)], -1)
    return _grouped(_f32(q), _half(b[..., :2]) * _f32(scale), _half(b[..., 2:4]) * _f32(minimum))


def _q4_k(b: Any) -> Any:
    qs = b[..., 16:]
    return _with_min(b, _runs([(qs[..., r // 2 * 32 :][..., :32] >> 4 * (r % 2)) & 15 for r in range(8)]))


def _q5_k(b: Any) -> Any:
    qh, qs = b[..., 16:48], b[..., 48:]
    low = [(qs[..., r // 2 * 32 :][..., :32] >> 4 * (r % 2)) & 15 for r in range(8)]
    return _with_min(b, _runs([low[r] | (((qh >> r) & 1) << 4) for r in range(8)]))


def _q6_k(b: Any) -> Any:
    ql, qh, scales = b[..., :128], b[..., 128:192], lax.bitcast_convert_type(b[..., 192:208], jnp.int8)
    runs = []
    for r in range(8):
        half, i = divmod(r, 4)
        low = (ql[..., 64 * half + 32 * (i % 2) :][..., :32] >> 4 * (i // 2)) & 15
        runs.append(low | (((qh[..., 32 * half :][..., :32] >> 2 * i) & 3) << 4))
    return _grouped(_f32(_runs(runs)) - 32, _half(b[..., 208:210]) * _f32(scales))


def _levels(qs: Any) -> Any:
    """The levels of NF4: the high nibble comes first."""
    q = jnp.stack([qs >> 4, qs & 15], -1).reshape(*qs.shape[:-1], -1)
    return _chosen(nf4.LEVELS, q)


def _nf4(b: Any) -> Any:
    return _levels(b[..., 4:]) * lax.bitcast_convert_type(b[..., :4], jnp.float32)[..., None]


DECODERS: dict[DType, Callable[[Any], Any]] = {
    dtypes.q8_0: _q8_0, dtypes.q4_0: _q4_0, dtypes.q4_1: _q4_1, dtypes.q5_0: _q5_0, dtypes.q5_1: _q5_1,
    dtypes.iq4_nl: _iq4_nl, dtypes.q2_k: _q2_k, dtypes.q3_k: _q3_k, dtypes.q4_k: _q4_k, dtypes.q5_k: _q5_k,
    dtypes.q6_k: _q6_k, **dict.fromkeys(dtypes.NF4, _nf4),
}  # fmt: skip


def stored(dtype: DType) -> DType:
    """What a packed dtype is kept as: the scales of double-quantised NF4 are opened on the way in, for XLA
    would round them in its own ways."""
    return dtypes.NF4[dtypes.NF4D.index(dtype)] if dtype.group else dtype


def decoded(rows: Any, dtype: DType, shape: tuple[int, ...]) -> Any:
    """The float32 values of packed rows: u8 [..., row bytes] -> shape."""
    dtype = stored(dtype)
    return DECODERS[dtype](rows.reshape(*rows.shape[:-1], -1, dtype.nbytes)).reshape(shape)
