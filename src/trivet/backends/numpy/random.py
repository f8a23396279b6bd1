"""Philox4x32-10, as `ops/random.py` defines it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def rounds(c: list[Any], k0: int, k1: int) -> list[Any]:
    """The words for the counter `c` and the key (k0, k1): integers below 2**32, or arrays of them."""
    for _ in range(10):
        a, b = c[0] * _MULTIPLY[0], c[2] * _MULTIPLY[1]
        c = [(b >> 32) ^ c[1] ^ k0, b & _LOW, (a >> 32) ^ c[3] ^ k1, a & _LOW]
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c


def _words(key: Any, count: int) -> Any:
    """The first `count` words, as uint32."""
    block = np.arange((count + 3) // 4, dtype=np.uint64)
    seed, call = (int(k) & (2**64 - 1) for k in key)
    counter = [block & _LOW, block >> 32, *(np.full_like(block, w) for w in (call & _LOW, call >> 32))]
    words = np.stack(rounds(counter, seed & _LOW, seed >> 32), -1)
    return words.reshape(-1)[:count].astype(np.uint32)


def random_bits(key: Any, shape: tuple[int, ...]) -> Any:
    return _words(key, math.prod(shape)).view(np.int32).reshape(shape)


def random_uniform(key: Any, shape: tuple[int, ...]) -> Any:
    return (_words(key, math.prod(shape)) >> np.uint32(8)).reshape(shape) * 2.0**-24


def random_normal(key: Any, shape: tuple[int, ...]) -> Any:
    count = math.prod(shape)
    upper = (_words(key, (count + 3) // 4 * 4) >> np.uint32(8)).reshape(-1, 2)
    radius, angle = np.sqrt(-2 * np.log((upper[:, 0] + 1.0) * 2.0**-24)), 2 * np.pi * (upper[:, 1] * 2.0**-24)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1).reshape(-1)[:count].reshape(shape)
