"""Pools of q8_0, in which a paged cache keeps keys or values in blocks of 32 elements of a head.

A pool of keys is [N, heads, size, page], one of values [N, heads, page, size]. Scales and codes stand apart.
Bytes of one head in one page, in order (x = scale * code):

  keys     1. scales f16 [size / 32][page]    2. codes i8 [size][page]
  values   1. scales f16 [page][size / 32]    2. codes i8 [page][size]

A block is quantised as q8_0 is in files, but one whose scale would not be finite is NaN, all of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trivet.blocks import quantize
from trivet.blocks.block32 import Q8_0
from trivet.dtypes import q8_0

Bytes = npt.NDArray[np.uint8]  # a pool in storage form: its rows are bytes


def _parts(pool: Bytes, page: int, keys: bool) -> tuple[Any, Any]:
    """Views of a pool's scales and codes, the slots first: [N, heads, page, size / 32] and [.., size]."""
    *lead, rows, row = pool.shape
    blocks = rows * row // q8_0.nbytes  # of a head in a page
    flat = pool.reshape(*lead, -1)
    scales = flat[..., : 2 * blocks].view("<f2")
    codes = flat[..., 2 * blocks :].view(np.int8)
    if keys:
        scales, codes = (x.reshape(*lead, -1, page).swapaxes(-1, -2) for x in (scales, codes))
        return scales, codes
    return scales.reshape(*lead, page, -1), codes.reshape(*lead, page, -1)


def write(pool: Bytes, page: int, ids: Any, slots: Any, new: Any, *, keys: bool) -> None:
    """Puts new [T, heads, size] at slots [T] of pages ids [T], in place."""
    scales, codes = _parts(pool, page, keys)
    values = np.ascontiguousarray(new, np.float32).reshape(-1, q8_0.block)
    with np.errstate(all="ignore"):
        bad = ~np.isfinite((np.abs(values).max(axis=1, initial=0) / np.float32(127)).astype(np.float16))
    made = quantize(np.where(bad[:, None], np.float32(0), values), q8_0).reshape(-1).view(Q8_0)
    made["d"][bad] = np.nan
    scales[ids, :, slots] = made["d"].reshape(*new.shape[:-1], -1)
    codes[ids, :, slots] = made["q"].reshape(new.shape)


def read(pool: Bytes, page: int, *, keys: bool) -> npt.NDArray[np.float64]:
    """What a pool, or pages of one, hold: [N, heads, page, size]."""
    scales, codes = _parts(pool, page, keys)
    with np.errstate(invalid="ignore"):  # a slot that nobody wrote may hold anything
        values: npt.NDArray[np.float64] = np.repeat(scales.astype(np.float64), q8_0.block, axis=-1) * codes
    return values
