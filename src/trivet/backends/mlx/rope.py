"""Rotary tables and rotations. MLX has no 64-bit floats on Metal: angles are whole numbers there.

A frequency becomes the part of a turn that a position adds, times 2**64, made of the bits of its float64.
Its product with a position, modulo 2**64, is the part of a turn that is left: off by 2**-31 at 2**20.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

_TURN = round(2**66 / (2 * math.pi))  # turns of a radian, times 2**66
_LOW = 2**32 - 1


def _u64(x: int) -> Any:
    return mx.array(x, mx.uint64)


def _turns(bits: Any) -> Any:
    """float64 as its bits -> the fraction of a turn, times 2**64."""
    half, low = _u64(32), _u64(_LOW)
    digits = (bits & _u64(2**52 - 1)) | _u64(2**52)
    exponent = ((bits >> _u64(52)) & _u64(2047)).astype(mx.int32) - 1013
    high, rest, by, by_rest = digits >> half, digits & low, _u64(_TURN >> 32), _u64(_TURN & _LOW)
    product = high * by + ((high * by_rest + rest * by) >> half)  # digits * _TURN / 2**64
    left, right = (mx.clip(e, 0, 63).astype(mx.uint64) for e in (exponent, -exponent))
    turns = mx.where(exponent >= 0, product << left, product >> right)
    return mx.where((bits >> _u64(63)) == _u64(1), _u64(0) - turns, turns)


def rope_table(positions: Any, inv_freq: Any, scale: float) -> tuple[Any, Any]:
    """The upper 32 bits of the fraction, as a signed number, are the angle in half a turn either way."""
    part = positions[..., None].astype(mx.int64).view(mx.uint64) * _turns(inv_freq)
    angle = (part >> _u64(32)).astype(mx.uint32).view(mx.int32).astype(mx.float32) * (math.pi / 2**31)
    return mx.cos(angle) * scale, mx.sin(angle) * scale


def rope(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    d = cos.shape[-1]
    c, s, turned = cos[..., None, :], sin[..., None, :], x[..., : 2 * d]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        out = mx.stack([a * c - b * s, b * c + a * s], -1).reshape(turned.shape)
    else:
        a, b = turned[..., :d], turned[..., d:]
        out = mx.concatenate([a * c - b * s, b * c + a * s], -1)
    return mx.concatenate([out, x[..., 2 * d :]], -1)
