"""Pools of q8_0 inside a program: bytes, written where a token stands and read a page at a time.

How the bytes stand is said in `trivet/blocks/pools.py`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from trivet.dtypes import q8_0

_BLOCK, _BYTES = q8_0.block, q8_0.nbytes


def is_packed(pool: Any) -> bool:
    """Whether a pool is of q8_0."""
    return bool(pool.dtype == jnp.uint8)


def page_size(pool: Any, keys: bool) -> int:
    """Slots of a page."""
    if keys and is_packed(pool):
        return int(pool.shape[3]) // _BYTES * _BLOCK
    return int(pool.shape[3 if keys else 2])


def write(pool: Any, page: int, ids: Any, slots: Any, new: Any, keys: bool) -> Any:
    """The pool with new [T, heads, size] at slots [T] of pages ids [T]; what has no page is dropped."""
    tokens, heads, size = new.shape
    blocks, count = size // _BLOCK, size // _BLOCK * page
    scales, codes = _encoded(new.reshape(tokens, heads, blocks, _BLOCK))
    block, element = jnp.arange(blocks), jnp.arange(size)
    slots = slots[:, None]
    at_block = 2 * (block * page + slots if keys else slots * blocks + block)
    at_code = 2 * count + (element * page + slots if keys else slots * size + element)
    at = jnp.concatenate([at_block, at_block + 1, at_code], 1)[:, None, :]
    made = jnp.concatenate([scales[..., 0], scales[..., 1], codes.reshape(tokens, heads, size)], -1)
    flat = pool.reshape(*pool.shape[:2], -1)
    head = jnp.arange(heads)[None, :, None]
    return flat.at[ids[:, None, None], head, at].set(made, mode="drop").reshape(pool.shape)


def _encoded(x: Any) -> tuple[Any, Any]:
    """(bytes of the scales [..., blocks, 2], bytes of the codes [..., blocks, 32])."""
    d = jnp.max(jnp.abs(x), -1) / 127
    half = d.astype(jnp.float16)
    inverse = jnp.where(d > 2.0**-126, 1 / jnp.where(d > 2.0**-126, d, 1), 0)[..., None]
    scaled = jnp.where(jnp.isfinite(half)[..., None], x, 0) * inverse
    whole = jnp.sign(scaled) * jnp.floor(jnp.abs(scaled) + 0.5)  # to nearest, halves away from zero
    half = jnp.where(jnp.isfinite(half), half, jnp.nan)
    codes = lax.bitcast_convert_type(whole.astype(jnp.int8), jnp.uint8)
    return lax.bitcast_convert_type(half.astype(jnp.float16), jnp.uint8), codes


def read(pages: Any, page: int, keys: bool) -> Any:
    """What pages hold, in float32: [P, heads, ., .] -> [P, heads, page, size]."""
    lead = pages.shape[:2]
    flat = pages.reshape(*lead, -1)
    count = flat.shape[-1] // _BYTES  # of blocks
    size = count * _BLOCK // page
    scales = lax.bitcast_convert_type(flat[..., : 2 * count].reshape(*lead, count, 2), jnp.float16)
    codes = lax.bitcast_convert_type(flat[..., 2 * count :], jnp.int8)
    shapes = ((size // _BLOCK, page), (size, page)) if keys else ((page, size // _BLOCK), (page, size))
    scales, codes = scales.reshape(*lead, *shapes[0]), codes.reshape(*lead, *shapes[1])
    if keys:
        scales, codes = scales.swapaxes(-1, -2), codes.swapaxes(-1, -2)
    return jnp.repeat(scales.astype(jnp.float32), _BLOCK, axis=-1) * codes
