"""The paged cache: written where a token stands, read a page at a time, as floats or in q8_0.

How the bytes of q8_0 stand is said in `trivet/blocks/pools.py`.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from trivet.backends.mlx import indexing
from trivet.dtypes import q8_0

_BLOCK, _BYTES = q8_0.block, q8_0.nbytes


def is_packed(pool: Any) -> bool:
    """Whether a pool is of q8_0."""
    return bool(pool.dtype == mx.uint8)


def page_size(pool: Any, keys: bool) -> int:
    """Slots of a page."""
    if keys and is_packed(pool):
        return int(pool.shape[3]) // _BYTES * _BLOCK
    return int(pool.shape[3 if keys else 2])


def kv_append(pool: Any, new: Any, positions: Any, sequences: Any, pages: Any, transposed: bool) -> Any:
    """A position without a page is dropped: no array can say it from inside a program."""
    if not new.size:
        return pool
    page = page_size(pool, transposed)
    held = mx.where(positions >= 0, positions, 0)
    ids = pages[sequences, mx.minimum(held // page, pages.shape[1] - 1)]
    good = (positions >= 0) & (held // page < pages.shape[1]) & indexing.inside(ids, pool.shape[0])
    places = _packed_places if is_packed(pool) else _places
    heads, whole = pool.shape[1], pool.shape[2] * pool.shape[3]
    kind = mx.int64 if pool.size >= 2**31 else mx.int32
    starts = mx.where(good, ids, 0).astype(kind)[:, None] * heads + mx.arange(heads, dtype=kind)
    within = places((held % page).astype(kind)[:, None], page, new.shape[-1], transposed)
    at = (starts * whole)[..., None] + within[:, None, :]
    made = _packed(new) if is_packed(pool) else new.astype(pool.dtype)
    tokens = len(new)
    flat = indexing.put(pool.reshape(-1), at.reshape(tokens, -1), made.reshape(tokens, -1), good)
    return flat.reshape(pool.shape)


def _places(slots: Any, page: int, size: int, keys: bool) -> Any:
    """Where the elements of a head stand in its page: slots [T, 1] -> [T, size]."""
    element = mx.arange(size, dtype=slots.dtype)
    return element * page + slots if keys else slots * size + element


def _packed_places(slots: Any, page: int, size: int, keys: bool) -> Any:
    """The same of bytes: of scales, low and high, and of codes."""
    blocks = size // _BLOCK
    at = 2 * _places(slots, page, blocks, keys)
    codes = 2 * blocks * page + _places(slots, page, size, keys)
    return mx.concatenate([at, at + 1, codes], 1)


def _packed(new: Any) -> Any:
    """Bytes of new [T, heads, size], as `_packed_places` has them."""
    tokens, heads, size = new.shape
    x = new.reshape(tokens, heads, size // _BLOCK, _BLOCK)
    d = mx.max(mx.abs(x), -1)
    d = d / 127
    half, tiny = d.astype(mx.float16), d <= 2.0**-126
    inverse = mx.where(tiny, 0, 1 / mx.where(tiny, 1, d))[..., None]
    scaled = mx.where(mx.isfinite(half)[..., None], x, 0) * inverse
    whole = mx.sign(scaled) * mx.floor(mx.abs(scaled) + 0.5)  # to nearest, halves away from zero
    half = mx.where(mx.isfinite(half), half, mx.array(float("nan"), mx.float16))
    scales = half[..., None].view(mx.uint8)
    codes = whole.astype(mx.int8).view(mx.uint8).reshape(tokens, heads, size)
    return mx.concatenate([scales[..., 0], scales[..., 1], codes], -1)


def read(pool: Any, ids: Any, keys: bool) -> Any:
    """What pages `ids` [B, P] hold, in float32, in the order of their slots: [B, heads, slots, size]."""
    page, pages = page_size(pool, keys), pool[ids]
    held = _opened(pages, page, keys) if is_packed(pool) else pages.swapaxes(-1, -2) if keys else pages
    count, heads, _, size = held.shape[1:]
    return held.swapaxes(1, 2).reshape(len(ids), heads, count * page, size).astype(mx.float32)


def _opened(pages: Any, page: int, keys: bool) -> Any:
    """Bytes [B, P, heads, ., .] -> float32 [B, P, heads, page, size]."""
    lead = pages.shape[:3]
    flat = pages.reshape(*lead, -1)
    count = flat.shape[-1] // _BYTES  # of blocks
    size = count * _BLOCK // page
    scales, codes = flat[..., : 2 * count].view(mx.float16), flat[..., 2 * count :].view(mx.int8)
    shapes = ((size // _BLOCK, page), (size, page)) if keys else ((page, size // _BLOCK), (page, size))
    scales, codes = scales.reshape(*lead, *shapes[0]), codes.reshape(*lead, *shapes[1])
    if keys:
        scales, codes = scales.swapaxes(-1, -2), codes.swapaxes(-1, -2)
    return mx.repeat(scales.astype(mx.float32), _BLOCK, axis=-1) * codes.astype(mx.float32)
