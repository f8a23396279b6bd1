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

from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import dtypes
from trivet.blocks.row import F32, BlockFormat, Blocks, column
from trivet.errors import NonFiniteError

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


# Encoders: the nearest level under a scale taken from the block's extremes, no search. The quotient
# is multiplied by 1/d in float32, as in ggml's reference encoders, so that the bytes are the same.


def _inverse(d: F32) -> F32:
    """1/d, and 0 where d is zero or so small that 1/d overflows (its f16 is zero then)."""
    inverse = np.zeros_like(d)
    np.divide(np.float32(1), d, out=inverse, where=np.abs(d) > np.float32(2.0**-127))
    return inverse


def _half(name: str, scale: F32) -> npt.NDArray[np.float16]:
    half = scale[:, 0].astype("<f2")
    if not np.isfinite(half).all():
        raise NonFiniteError(f"[quantize] {name}: a block's scale does not fit f16 (largest 65504)")
    return half


def _pack_nibbles(q: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return q[:, :16] | (q[:, 16:] << np.uint8(4))


def _encode_q8_0(values: F32) -> Blocks:
    d = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scaled = values * _inverse(d)
    size = np.abs(scaled)
    whole = np.floor(size)
    whole += size - whole >= 0.5  # to nearest, halves away from zero
    blocks = np.empty(len(values), Q8_0)
    blocks["d"] = _half("q8_0", d)
    blocks["q"] = np.copysign(whole, scaled)
    return blocks


def _encode_q4_0(values: F32) -> Blocks:
    at = np.abs(values).argmax(axis=1)[:, None]
    d = np.take_along_axis(values, at, axis=1) / np.float32(-8)  # the extreme falls on level -8
    blocks = np.empty(len(values), Q4_0)
    blocks["d"] = _half("q4_0", d)
    q = (values * _inverse(d) + np.float32(8.5)).astype(np.uint8).clip(0, 15)
    blocks["qs"] = _pack_nibbles(q)
    return blocks


def _encode_q4_1(values: F32) -> Blocks:
    low = values.min(axis=1, keepdims=True)
    d = (values.max(axis=1, keepdims=True) - low) / np.float32(15)
    blocks = np.empty(len(values), Q4_1)
    blocks["d"] = _half("q4_1", d)
    blocks["m"] = _half("q4_1", low)
    q = ((values - low) * _inverse(d) + np.float32(0.5)).astype(np.uint8).clip(0, 15)
    blocks["qs"] = _pack_nibbles(q)
    return blocks


ROWS = (
    BlockFormat(dtypes.q8_0, Q8_0, _decode_q8_0, _encode_q8_0),
    BlockFormat(dtypes.q4_0, Q4_0, _decode_q4_0, _encode_q4_0),
    BlockFormat(dtypes.q4_1, Q4_1, _decode_q4_1, _encode_q4_1),
    BlockFormat(dtypes.q5_0, Q5_0, _decode_q5_0),
    BlockFormat(dtypes.q5_1, Q5_1, _decode_q5_1),
    BlockFormat(dtypes.iq4_nl, IQ4_NL, _decode_iq4_nl),
)
