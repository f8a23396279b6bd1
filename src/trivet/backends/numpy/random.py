"""Philox4x32-10, as `ops/random.py` defines it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_MULTIPLY = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)


def _words(key: Any, count: int) -> Any:
    """The first `count` words, as uint32."""
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    seed, call = (int(k) & (2**64 - 1) for k in key)
    c = [
        blocks & _LOW,
        blocks >> np.uint64(32),
        *(np.full_like(blocks, w) for w in (call & 0xFFFFFFFF, call >> 32)),
    ]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        a, b = c[0] * _MULTIPLY[0], c[2] * _MULTIPLY[1]
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ np.uint64(k0),
            b & _LOW,
            (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k1),
            a & _LOW,
        ]
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack(c, -1).reshape(-1)[:count].astype(np.uint32)


def random_bits(key: Any, shape: tuple[int, ...]) -> Any:
    return _words(key, math.prod(shape)).view(np.int32).reshape(shape)


def random_uniform(key: Any, shape: tuple[int, ...]) -> Any:
    return (_words(key, math.prod(shape)) >> np.uint32(8)).reshape(shape) * 2.0**-24


def random_normal(key: Any, shape: tuple[int, ...]) -> Any:
    count = math.prod(shape)
    upper = (_words(key, (count + 3) // 4 * 4) >> np.uint32(8)).reshape(-1, 2)
    radius, angle = np.sqrt(-2 * np.log((upper[:, 0] + 1.0) * 2.0**-24)), 2 * np.pi * (upper[:, 1] * 2.0**-24)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1).reshape(-1)[:count].reshape(shape)
