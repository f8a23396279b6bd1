"""Formats of 256 elements a block, with scales of their own inside: q2_k, q3_k, q4_k, q5_k, q6_k.

Bytes of one block, in order (f16 is little-endian IEEE half; s, m: the scale and minimum of i's group):

  q2_k  1. scales u8[16]  2. qs u8[2][32]  3. d f16  4. dmin f16
        16 groups of 16; low nibble of scales[g] is s, high nibble is m.  x = d*s * q - dmin*m
  q3_k  1. hmask u8[32]   2. qs u8[2][32]  3. scales u8[12]  4. d f16
        16 groups of 16; s is 6 bits, less 32.                           x = d*s * (q - 4)
  q4_k  1. d f16  2. dmin f16  3. scales u8[12]  4. qs u8[4][32]
        8 groups of 32; s and m are 6 bits.                              x = d*s * q - dmin*m
  q5_k  1. d f16  2. dmin f16  3. scales u8[12]  4. qh u8[32]  5. qs u8[4][32]
        as q4_k, with a fifth bit
  q6_k  1. ql u8[2][2][32]  2. qh u8[2][32]  3. scales i8[16]  4. d f16
        16 groups of 16; s is a signed byte.                             x = d*s * (q - 32)

Call run r the elements 32r .. 32r+31, element e of it at 32r + e. Then q of element e in run r is
  q2_k  bits 2(r%4), +1 of qs[r/4][e]
  q3_k  the same two bits, and bit r of hmask[e] as the third
  q4_k  the low (even r) or high (odd r) nibble of qs[r/2][e]
  q5_k  the same nibble, and bit r of qh[e] as the fifth
  q6_k  the low (r%4 < 2) or high nibble of ql[r/4][r%2][e], and bits 2(r%4), +1 of qh[r/4][e] above it
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import dtypes
from trivet.blocks import search
from trivet.blocks.row import F32, BlockFormat, Blocks, Rng, column, dither, half
from trivet.dtypes import DType

U8 = npt.NDArray[np.uint8]

Q2_K = np.dtype([("scales", "u1", (16,)), ("qs", "u1", (2, 32)), ("d", "<f2"), ("dmin", "<f2")])
Q3_K = np.dtype([("hmask", "u1", (32,)), ("qs", "u1", (2, 32)), ("scales", "u1", (12,)), ("d", "<f2")])
Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("qs", "u1", (4, 32))])
Q5_K = np.dtype(
    [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("qh", "u1", (32,)), ("qs", "u1", (4, 32))]
)
Q6_K = np.dtype([("ql", "u1", (2, 2, 32)), ("qh", "u1", (2, 32)), ("scales", "i1", (16,)), ("d", "<f2")])


def _scale(out: F32, factor: F32, offset: F32 | None = None) -> None:
    """out[group] = factor[group] * out[group] - offset[group], the groups being equal runs."""
    groups = out.reshape(len(out), factor.shape[1], -1)
    groups *= factor[:, :, None]
    if offset is not None:
        groups -= offset[:, :, None]


def _decode_q2_k(blocks: Blocks, out: F32) -> None:
    runs = out.reshape(-1, 2, 4, 32)
    for i in range(4):
        runs[:, :, i] = (blocks["qs"] >> 2 * i) & 3
    factor = column(blocks["d"]) * (blocks["scales"] & 15).astype(np.float32)
    offset = column(blocks["dmin"]) * (blocks["scales"] >> 4).astype(np.float32)
    _scale(out, factor, offset)


def _q3_k_scales(packed: U8) -> F32:
    """Bytes 0-7 hold the low nibbles of scales 0-7 and 8-15; bytes 8-11 two high bits of four scales each."""
    scales = np.empty((len(packed), 16), np.uint8)
    scales[:, :8] = packed[:, :8] & 15
    scales[:, 8:] = packed[:, :8] >> 4
    for i in range(4):
        scales[:, 4 * i : 4 * i + 4] |= ((packed[:, 8:] >> 2 * i) & 3) << 4
    return scales.astype(np.float32) - np.float32(32)


def _decode_q3_k(blocks: Blocks, out: F32) -> None:
    runs = out.reshape(-1, 8, 32)
    for r in range(8):
        low = (blocks["qs"][:, r // 4] >> 2 * (r % 4)) & 3
        runs[:, r] = low | (((blocks["hmask"] >> r) & 1) << 2)
    out -= 4
    _scale(out, column(blocks["d"]) * _q3_k_scales(blocks["scales"]))


def _scale_min(packed: U8) -> tuple[F32, F32]:
    """Six-bit scales and minima of eight groups (q4_k, q5_k).

    Groups 0-3: the low six bits of bytes 0-3 (scale) and 4-7 (minimum). Groups 4-7: the low nibble
    (scale) and high nibble (minimum) of bytes 8-11, under the two high bits left over in bytes 0-7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.concatenate([first & 63, (third & 15) | ((first >> 2) & 48)], axis=1)
    minimum = np.concatenate([second & 63, (third >> 4) | ((second >> 2) & 48)], axis=1)
    return scale.astype(np.float32), minimum.astype(np.float32)


def _scale_with_min(blocks: Blocks, out: F32) -> None:
    scale, minimum = _scale_min(blocks["scales"])
    _scale(out, column(blocks["d"]) * scale, column(blocks["dmin"]) * minimum)


def _decode_q4_k(blocks: Blocks, out: F32) -> None:
    runs = out.reshape(-1, 4, 2, 32)
    runs[:, :, 0] = blocks["qs"] & 15
    runs[:, :, 1] = blocks["qs"] >> 4
    _scale_with_min(blocks, out)


def _decode_q5_k(blocks: Blocks, out: F32) -> None:
    runs = out.reshape(-1, 8, 32)
    for r in range(8):
        low = (blocks["qs"][:, r // 2] >> 4 * (r % 2)) & 15
        runs[:, r] = low | (((blocks["qh"] >> r) & 1) << 4)
    _scale_with_min(blocks, out)


def _decode_q6_k(blocks: Blocks, out: F32) -> None:
    runs = out.reshape(-1, 2, 4, 32)
    ql, qh = blocks["ql"], blocks["qh"]
    for i in range(4):
        low = (ql[:, :, i % 2] >> 4 * (i // 2)) & 15
        runs[:, :, i] = low | (((qh >> 2 * i) & 3) << 4)
    out -= 32
    _scale(out, column(blocks["d"]) * blocks["scales"].astype(np.float32))


# --- encoders -------------------------------------------------------------------------------------------
#
# Each group's best scale and minimum (search.py) become whole numbers under the block's d and dmin. Then, for
# the codes that these give, the whole scale (or, where there is one, the whole minimum) that suits them best;
# then the codes nearest under what is stored. Neither of the last two steps can make the error larger. With a
# random generator, the very last rounds up or down by chance, so that on average nothing is lost.


def _step(dtype: DType, most: F32, last: int) -> F32:
    """The f16 step [n, 1] under which `most`, a block's largest, is at most `last` steps. To nearest, but up
    where f16 is so coarse that `last` would not reach."""
    step = half(dtype, most / np.float32(last))
    short = np.abs(step.astype(np.float32)) * np.float32(abs(last) + 0.5) < np.abs(most)
    away = np.copysign(np.float16(np.inf), most * last).astype(np.float16)
    return half(dtype, np.where(short, np.nextafter(step, away), step).astype(np.float32)).astype(np.float32)


def _whole(x: F32, step: F32, lowest: int, highest: int) -> F32:
    return np.rint(search.quotient(x, step)).clip(lowest, highest)


def _symmetric(
    values: F32, blocks: Blocks, dtype: DType, last: int, least: int, rng: Rng, weights: F32 | None
) -> tuple[U8, F32]:
    """Writes d; gives codes [n, 256] from 0 and the groups' whole scales [n, 16], from `least`.
    `last` is the lowest code."""
    (x, w), n = search.lanes(dtype, values, weights, 16), len(values)
    w = search.own_weights(x) if w is None else w
    rounded = search.codes(last, -last - 1)
    scale = search.scale(x, w, last, rounded).reshape(n, 16)
    most = np.take_along_axis(scale, np.abs(scale).argmax(axis=1)[:, None], axis=1)
    d = _step(dtype, most, least)
    blocks["d"] = d[:, 0]
    whole = _whole(scale, d, least, -least - 1)
    q = np.multiply(x, search.quotient(1, (d * whole).reshape(-1)))
    rounded(q)
    wq = search.weighted(q, w)
    best = search.quotient(search.total(wq * x), search.total(wq * q)).reshape(n, 16)
    whole = _whole(best, d, least, -least - 1)
    np.multiply(x, search.quotient(1, (d * whole).reshape(-1)), out=q)
    rounded(dither(q, rng))
    q -= np.float32(last)
    return _in_order(q, n), whole


def _in_order(q: F32, n: int) -> U8:
    return np.ascontiguousarray(q.astype(np.uint8).T).reshape(n, 256)


def _with_minimum(
    values: F32,
    blocks: Blocks,
    dtype: DType,
    size: int,
    last: int,
    most: int,
    rng: Rng,
    weights: F32 | None,
) -> tuple[U8, U8, U8]:
    """Writes d and dmin; gives codes [n, 256] and the groups' whole scales and minima, up to `most`.
    `size` is a group's, `last` the highest code."""
    (x, w), shape = search.lanes(dtype, values, weights, size), (len(values), 256 // size)
    rounded = search.codes(0, last)
    scale, offset = search.scale_offset(x, w, last, signed=False)
    scale, minimum = scale.reshape(shape), -offset.reshape(shape)
    d = _step(dtype, scale.max(axis=1, keepdims=True), most)
    dmin = _step(dtype, minimum.max(axis=1, keepdims=True), most)
    blocks["d"], blocks["dmin"] = d[:, 0], dmin[:, 0]
    whole, whole_min = _whole(scale, d, 0, most), _whole(minimum, dmin, 0, most)
    step = (d * whole).reshape(-1)
    inverse = search.quotient(1, step)
    q = (x + (dmin * whole_min).reshape(-1)) * inverse
    rounded(q)
    excess = step * search.mean(q, w) - search.mean(x, w)
    whole_min = _whole(excess.reshape(shape), dmin, 0, most)
    np.multiply(np.add(x, (dmin * whole_min).reshape(-1), out=q), inverse, out=q)
    rounded(dither(q, rng))
    return _in_order(q, len(values)), whole.astype(np.uint8), whole_min.astype(np.uint8)


def _merged(parts: Any, bits: int) -> U8:
    """parts[:, :, i] beside each other in one byte, `bits` each, the first lowest."""
    shifts = np.arange(parts.shape[2], dtype=np.uint8) * np.uint8(bits)
    out: U8 = np.bitwise_or.reduce(parts << shifts[:, None], axis=2)
    return out


def _encode_q2_k(values: F32, rng: Rng = None, weights: F32 | None = None) -> Blocks:
    blocks = np.empty(len(values), Q2_K)
    q, scale, minimum = _with_minimum(values, blocks, dtypes.q2_k, 16, 3, 15, rng, weights)
    blocks["scales"] = scale | minimum << 4
    blocks["qs"] = _merged(q.reshape(-1, 2, 4, 32), 2)
    return blocks


def _encode_q3_k(values: F32, rng: Rng = None, weights: F32 | None = None) -> Blocks:
    blocks = np.empty(len(values), Q3_K)
    q, whole = _symmetric(values, blocks, dtypes.q3_k, -4, -32, rng, weights)
    scale = (whole + 32).astype(np.uint8)
    blocks["scales"][:, :8] = scale[:, :8] & 15 | scale[:, 8:] << 4
    blocks["scales"][:, 8:] = _merged((scale >> 4).reshape(-1, 1, 4, 4), 2)[:, 0]
    blocks["qs"] = _merged((q & 3).reshape(-1, 2, 4, 32), 2)
    blocks["hmask"] = _merged((q >> 2).reshape(-1, 1, 8, 32), 1)[:, 0]
    return blocks


def _pack_scale_min(blocks: Blocks, scale: U8, minimum: U8) -> None:
    blocks["scales"][:, :4] = scale[:, :4] | (scale[:, 4:] & 48) << 2
    blocks["scales"][:, 4:8] = minimum[:, :4] | (minimum[:, 4:] & 48) << 2
    blocks["scales"][:, 8:] = scale[:, 4:] & 15 | minimum[:, 4:] << 4


def _encode_q4_k(values: F32, rng: Rng = None, weights: F32 | None = None) -> Blocks:
    blocks = np.empty(len(values), Q4_K)
    q, scale, minimum = _with_minimum(values, blocks, dtypes.q4_k, 32, 15, 63, rng, weights)
    _pack_scale_min(blocks, scale, minimum)
    blocks["qs"] = _merged(q.reshape(-1, 4, 2, 32), 4)
    return blocks


def _encode_q5_k(values: F32, rng: Rng = None, weights: F32 | None = None) -> Blocks:
    blocks = np.empty(len(values), Q5_K)
    q, scale, minimum = _with_minimum(values, blocks, dtypes.q5_k, 32, 31, 63, rng, weights)
    _pack_scale_min(blocks, scale, minimum)
    blocks["qs"] = _merged((q & 15).reshape(-1, 4, 2, 32), 4)
    blocks["qh"] = _merged((q >> 4).reshape(-1, 1, 8, 32), 1)[:, 0]
    return blocks


def _encode_q6_k(values: F32, rng: Rng = None, weights: F32 | None = None) -> Blocks:
    blocks = np.empty(len(values), Q6_K)
    q, blocks["scales"] = _symmetric(values, blocks, dtypes.q6_k, -32, -128, rng, weights)
    runs = q.reshape(-1, 2, 2, 2, 32)  # [n, half, nibble, byte row, element]
    blocks["ql"] = runs[:, :, 0] & 15 | runs[:, :, 1] << 4
    blocks["qh"] = _merged((q >> 4).reshape(-1, 2, 4, 32), 2)
    return blocks


ROWS = (
    BlockFormat(dtypes.q2_k, Q2_K, _decode_q2_k, _encode_q2_k, dithers=True),
    BlockFormat(dtypes.q3_k, Q3_K, _decode_q3_k, _encode_q3_k, dithers=True),
    BlockFormat(dtypes.q4_k, Q4_K, _decode_q4_k, _encode_q4_k, dithers=True),
    BlockFormat(dtypes.q5_k, Q5_K, _decode_q5_k, _encode_q5_k, dithers=True),
    BlockFormat(dtypes.q6_k, Q6_K, _decode_q6_k, _encode_q6_k, dithers=True),
)
