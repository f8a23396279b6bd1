"""Philox4x32-10, as `ops/random.py` defines it: the same bits on every backend."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def _u64(x: int) -> Any:
    return jnp.uint64(x)


def _words(key: Any, count: int) -> Any:
    """The first `count` words, as uint32; four to a block."""
    low = _u64(0xFFFFFFFF)
    block = jnp.arange((count + 3) // 4, dtype=jnp.uint64)
    seed, call = key.astype(jnp.uint64)
    k0, k1 = seed & low, seed >> _u64(32)
    c = [block & low, block >> _u64(32), *(jnp.full_like(block, w) for w in (call & low, call >> _u64(32)))]
    for _ in range(10):
        a, b = c[0] * _u64(_MULTIPLY[0]), c[2] * _u64(_MULTIPLY[1])
        c = [(b >> _u64(32)) ^ c[1] ^ k0, b & low, (a >> _u64(32)) ^ c[3] ^ k1, a & low]
        k0, k1 = (k0 + _u64(_WEYL[0])) & low, (k1 + _u64(_WEYL[1])) & low
    return jnp.stack(c, -1).reshape(-1)[:count].astype(jnp.uint32)


def random_bits(key: Any, shape: tuple[int, ...]) -> Any:
    return _words(key, math.prod(shape)).astype(jnp.int32).reshape(shape)


def _upper(key: Any, count: int) -> Any:
    """Whole numbers below 2**24, in float32."""
    return (_words(key, count) >> 8).astype(jnp.float32)


def random_uniform(key: Any, shape: tuple[int, ...]) -> Any:
    return _upper(key, math.prod(shape)).reshape(shape) * 2.0**-24


def random_normal(key: Any, shape: tuple[int, ...]) -> Any:
    count = math.prod(shape)
    upper = _upper(key, (count + 3) // 4 * 4).reshape(-1, 2)
    radius = jnp.sqrt(-2 * jnp.log((upper[:, 0] + 1) * 2.0**-24))
    angle = upper[:, 1] * (2.0**-24 * 2 * math.pi)
    return (
        jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], -1).reshape(-1)[:count].reshape(shape)
    )
