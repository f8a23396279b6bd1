"""Reading and writing by index. MLX checks no index: what is out of range is turned away here.

A read gives NaN, or zero of integers; a write does not happen. (No array can say it from inside a program.)
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import mlx.core as mx


def inside(indices: Any, size: int) -> Any:
    """Which indices exist."""
    return (indices >= 0) & (indices < size)


def _spread(good: Any, axes: int) -> Any:
    """With so many axes of size 1 behind. (MLX crashes where no size is given one by one.)"""
    return good.reshape((*good.shape, *[1] * axes))


def take(x: Any, indices: Any, axis: int = 0) -> Any:
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    nothing = mx.array(float("nan") if mx.issubdtype(x.dtype, mx.inexact) else 0, x.dtype)
    if not x.size or not indices.size:
        return mx.broadcast_to(nothing, shape)
    good = inside(indices, x.shape[axis])
    found = mx.take(x, mx.where(good, indices, 0), axis).reshape(shape)
    return mx.where(_spread(good, x.ndim - axis - 1), found, nothing)


def scatter_add(x: Any, indices: Any, updates: Any, axis: int) -> Any:
    if not x.size or not updates.size:
        return x
    good = inside(indices, x.shape[axis])
    updates = mx.where(_spread(good, x.ndim - axis - 1), updates, 0).astype(x.dtype)
    at = (*[slice(None)] * axis, mx.where(good, indices, 0))
    # Metal: 64-bit integers are added on the processor, between kernels of the GPU
    with mx.stream(mx.cpu) if x.dtype == mx.int64 else nullcontext():
        return x.at[at].add(updates)


def put(flat: Any, at: Any, values: Any, good: Any) -> Any:
    """`flat` [n] with `values` [T, m] at the places `at` [T, m] of the tokens that are `good` [T].

    A token that is not writes what the first good one does, once more; where there is none, all write what
    stands there.
    """
    if not at.size or not flat.size:
        return flat
    lead = mx.argmax(good)
    at = mx.where(good[:, None], at, mx.where(good[lead], at[lead], mx.arange(at.shape[1], dtype=at.dtype)))
    values = mx.where(good[:, None], values, mx.where(good[lead], values[lead], flat[at[lead]]))
    return mx.put_along_axis(flat, at.reshape(-1), values.reshape(-1), 0)
