"""Philox4x32-10, as `ops/random.py` defines it: the same bits on every backend."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def _u64(x: int) -> Any:
    return mx.array(x, mx.uint64)


def _words(key: Any, count: int) -> Any:
    """The first `count` words, as uint32; four to a block."""
    low, half = _u64(0xFFFFFFFF), _u64(32)
    block = mx.arange((count + 3) // 4, dtype=mx.uint64)
    seed, call = (key[i].view(mx.uint64) for i in range(2))
    k0, k1 = seed & low, seed >> half
    c = [block & low, block >> half, *(mx.broadcast_to(w, block.shape) for w in (call & low, call >> half))]
    for _ in range(10):
        a, b = c[0] * _u64(_MULTIPLY[0]), c[2] * _u64(_MULTIPLY[1])
        c = [(b >> half) ^ c[1] ^ k0, b & low, (a >> half) ^ c[3] ^ k1, a & low]
        k0, k1 = (k0 + _u64(_WEYL[0])) & low, (k1 + _u64(_WEYL[1])) & low
    return mx.stack(c, -1).reshape(-1)[:count].astype(mx.uint32)


def random_bits(key: Any, shape: tuple[int, ...]) -> Any:
    return _words(key, math.prod(shape)).view(mx.int32).reshape(shape)


def _upper(key: Any, count: int) -> Any:
    """Whole numbers below 2**24, in float32."""
    return (_words(key, count) >> 8).astype(mx.float32)


def random_uniform(key: Any, shape: tuple[int, ...]) -> Any:
    return _upper(key, math.prod(shape)).reshape(shape) * 2.0**-24


def random_normal(key: Any, shape: tuple[int, ...]) -> Any:
    count = math.prod(shape)
    upper = _upper(key, (count + 3) // 4 * 4).reshape(-1, 2)
    radius = mx.sqrt(-2 * mx.log((upper[:, 0] + 1) * 2.0**-24))
    angle = upper[:, 1] * (2.0**-24 * 2 * math.pi)
    made = mx.stack([radius * mx.cos(angle), radius * mx.sin(angle)], -1)
    return made.reshape(-1)[:count].reshape(shape)
