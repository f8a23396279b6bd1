"""Formats of 32 elements a block: q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl.

Bytes of one block, in order (f16 is little-endian IEEE half):

  q8_0    1. d f16   2. q i8[32]                          x[i] = d * q[i]
  q4_0    1. d f16   2. qs u8[16]                         x[i] = d * (q[i] - 8)
  q4_1    1. d f16   2. m f16   3. qs u8[16]              x[i] = d * q[i] + m
  q5_0    1. d f16   2. qh u8[4]   3. qs u8[16]           x[i] = d * (q[i] - 16)
  q5_1    1. d f16   2. m f16   3. qh u8[4]  4. qs u8[16] x[i] = d * q[i] + m
  iq4_nl  1. d f16   2. qs u8[16]                         x[i] = d * table[q[i]]

Byte j of qs holds the low four bits of element j (low nibble) and of element j + 16 (high nibble);
bit i of qh, counted from the lowest bit of its first byte, is the fifth bit of element i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import dtypes
from trivet.blocks import search
from trivet.blocks.row import F32, BlockFormat, Blocks, Rng, column, dither, half
from trivet.dtypes import DType

Q8_0 = np.dtype([("d", "<f2"), ("q", "i1", (32,))])
Q4_0 = np.dtype([("d", "<f2"), ("qs", "u1", (16,))])
Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", (16,))])
Q5_0 = np.dtype([("d", "<f2"), ("qh", "u1", (4,)), ("qs", "u1", (16,))])
Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", (4,)), ("qs", "u1", (16,))])
IQ4_NL = Q4_0

# The sixteen levels of iq4_nl, denser around zero where weights are.
IQ4_NL_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_LEVELS = np.array(IQ4_NL_LEVELS, np.float32)


def _nibbles(qs: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
    out[:, :16] = qs & 15
    out[:, 16:] = qs >> 4


def _five_bits(blocks: Blocks) -> npt.NDArray[np.uint8]:
    q = np.unpackbits(blocks["qh"], axis=1, bitorder="little")
    q <<= 4
    q[:, :16] |= blocks["qs"] & 15
    q[:, 16:] |= blocks["qs"] >> 4
    return q


def _decode_q8_0(blocks: Blocks, out: F32) -> None:
    out[:] = blocks["q"]
    out *= column(blocks["d"])


def _decode_q4_0(blocks: Blocks, out: F32) -> None:
    _nibbles(blocks["qs"], out)
    out -= 8
    out *= column(blocks["d"])


def _decode_q4_1(blocks: Blocks, out: F32) -> None:
    _nibbles(blocks["qs"], out)
    out *= column(blocks["d"])
    out += column(blocks["m"])


def _decode_q5_0(blocks: Blocks, out: F32) -> None:
    out[:] = _five_bits(blocks)
    out -= 16
    out *= column(blocks["d"])


def _decode_q5_1(blocks: Blocks, out: F32) -> None:
    out[:] = _five_bits(blocks)
    out *= column(blocks["d"])
    out += column(blocks["m"])


def _decode_iq4_nl(blocks: Blocks, out: F32) -> None:
    q = np.empty(out.shape, np.uint8)
    _nibbles(blocks["qs"], q)
    np.take(_LEVELS, q, out=out, mode="clip")
    out *= column(blocks["d"])


# --- encoders -------------------------------------------------------------------------------------------
#
# q8_0: the nearest level under a scale taken from the block's extreme, no search (so are caches written). The
# quotient is multiplied by 1/d in float32, as in ggml's encoder, so that the bytes are the same. The others
# search their scale (search.py), round it to f16, and take the codes nearest under what was stored. With a
# random generator, that last step rounds up or down by chance, so that on average nothing is lost.


def _inverse(d: F32) -> F32:
    """1/d, and 0 where d is zero or so small that 1/d overflows (its f16 is zero then)."""
    inverse = np.zeros_like(d)
    np.divide(np.float32(1), d, out=inverse, where=np.abs(d) > np.float32(2.0**-127))
    return inverse


def _encode_q8_0(values: F32, rng: Rng = None, weights: F32 | None = None) -> Blocks:
    d = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scaled = dither(values * _inverse(d), rng)
    size = np.abs(scaled)
    whole = np.floor(size)
    whole += size - whole >= 0.5  # to nearest, halves away from zero
    np.minimum(whole, 127, out=whole)
    blocks = np.empty(len(values), Q8_0)
    blocks["d"] = half(dtypes.q8_0, d[:, 0])
    blocks["q"] = np.copysign(whole, scaled)
    return blocks


def _by_scale_and_minimum(
    values: F32, blocks: Blocks, dtype: DType, last: int, rng: Rng, weights: F32 | None
) -> F32:
    """Writes d and m, and gives the codes [32, blocks] under them."""
    x, w = search.lanes(dtype, values, weights, 32)
    rounded = search.codes(0, last)
    scale, offset = search.scale_offset(x, w, last, signed=True)
    blocks["d"], blocks["m"] = half(dtype, scale), half(dtype, offset)
    d: F32 = blocks["d"].astype(np.float32)
    inverse, mean = search.quotient(1, d), search.mean(x, w)
    q = np.multiply(x - blocks["m"].astype(np.float32), inverse)
    rounded(q)
    blocks["m"] = half(dtype, mean - d * search.mean(q, w))  # that suits these codes best
    np.multiply(np.subtract(x, blocks["m"].astype(np.float32), out=q), inverse, out=q)
    rounded(dither(q, rng))
    return q


def _pack(blocks: Blocks, codes: npt.NDArray[Any]) -> Blocks:
    """Writes codes of four bits, or of five where there is a qh."""
    q = np.ascontiguousarray(codes.astype(np.uint8).T)
    blocks["qs"] = q[:, :16] & 15 | q[:, 16:] << np.uint8(4)
    if "qh" in (blocks.dtype.names or ()):
        blocks["qh"] = np.packbits(q >> 4, axis=1, bitorder="little")
    return blocks


def _encode_symmetric(dtype: DType, layout: np.dtype[Any], middle: int) -> Callable[..., Blocks]:
    rounded = search.codes(-middle, middle - 1)

    def encode(values: F32, rng: Rng = None, weights: F32 | None = None) -> Blocks:
        blocks = np.empty(len(values), layout)
        x, w = search.lanes(dtype, values, weights, 32)
        w = search.own_weights(x) if w is None else w
        blocks["d"] = half(dtype, search.scale(x, w, -middle, rounded))
        x *= search.quotient(1, blocks["d"].astype(np.float32))
        rounded(dither(x, rng))
        return _pack(blocks, x + np.float32(middle))

    return encode


def _encode_with_minimum(dtype: DType, layout: np.dtype[Any], last: int) -> Callable[..., Blocks]:
    def encode(values: F32, rng: Rng = None, weights: F32 | None = None) -> Blocks:
        blocks = np.empty(len(values), layout)
        return _pack(blocks, _by_scale_and_minimum(values, blocks, dtype, last, rng, weights))

    return encode


# The index of the level nearest to x, at 2 (x + 128): the levels' middles are whole numbers or halves.
_MIDDLES = (_LEVELS[1:] + _LEVELS[:-1]) / 2
_NEAREST = np.searchsorted(_MIDDLES, np.arange(512) / 2 - 128, side="right").astype(np.uint8)
_APART = IQ4_NL_LEVELS[1] - IQ4_NL_LEVELS[0]


def _nearest_level(x: F32) -> npt.NDArray[np.uint8]:
    at = (x.clip(-128, 127) * 2 + 256).astype(np.int16)
    return _NEAREST.take(at)


def _to_level(x: F32) -> None:
    _LEVELS.take(_nearest_level(x), out=x, mode="clip")


def _encode_iq4_nl(values: F32, rng: Rng = None, weights: F32 | None = None) -> Blocks:
    blocks = np.empty(len(values), IQ4_NL)
    x, w = search.lanes(dtypes.iq4_nl, values, weights, 32)
    w = search.own_weights(x) if w is None else w
    blocks["d"] = half(dtypes.iq4_nl, search.scale(x, w, IQ4_NL_LEVELS[0], _to_level, _APART))
    x *= search.quotient(1, blocks["d"].astype(np.float32))
    if rng is None:
        return _pack(blocks, _nearest_level(x))
    between = np.interp(x, _LEVELS, np.arange(16)).astype(np.float32)  # whole at the levels
    return _pack(blocks, np.rint(dither(between, rng)).clip(0, 15))


ROWS = tuple(
    BlockFormat(dtype, layout, decode, encode, dithers=True)
    for dtype, layout, decode, encode in (
        (dtypes.q8_0, Q8_0, _decode_q8_0, _encode_q8_0),
        (dtypes.q4_0, Q4_0, _decode_q4_0, _encode_symmetric(dtypes.q4_0, Q4_0, 8)),
        (dtypes.q4_1, Q4_1, _decode_q4_1, _encode_with_minimum(dtypes.q4_1, Q4_1, 15)),
        (dtypes.q5_0, Q5_0, _decode_q5_0, _encode_symmetric(dtypes.q5_0, Q5_0, 16)),
        (dtypes.q5_1, Q5_1, _decode_q5_1, _encode_with_minimum(dtypes.q5_1, Q5_1, 31)),
        (dtypes.iq4_nl, IQ4_NL, _decode_iq4_nl, _encode_iq4_nl),
    )
)
