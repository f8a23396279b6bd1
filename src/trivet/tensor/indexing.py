"""`x[...]` in rows: slice, reshape and take."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from trivet import ops
from trivet.errors import DTypeError, ShapeError, UnsupportedError
from trivet.graph import Dim, Node, Size, constant


def index(x: Node, key: Any) -> Node:
    """The part of `x` that `key` names: integers, slices with a step of at least 1, `...`, None, and at most
    one tensor or array of integers, which selects along its axis."""
    keys = _full(x, key if isinstance(key, tuple) else (key,))
    arrays = [k for k in keys if _is_array(k)]
    if len(arrays) > 1:
        raise UnsupportedError(f"[index] {len(arrays)} index arrays in one key; index one axis at a time")
    axes = [k for k in keys if k is not None]
    bounds = [_bounds(k, x.shape[axis], axis) for axis, k in enumerate(axes)]
    cut: Node = x
    if any(b != (0, n, 1) for b, n in zip(bounds, x.shape, strict=True)):
        cut = ops.slice(x, *map(list, zip(*bounds, strict=True)))
    shape, where = _shape(keys, cut.shape)
    if shape != cut.shape:
        cut = ops.reshape(cut, shape)
    return cut if where is None else _select(cut, arrays[0], where)


def _is_array(key: Any) -> bool:
    return hasattr(key, "node") or isinstance(key, Node | np.ndarray | list)


def _full(x: Node, keys: tuple[Any, ...]) -> list[Any]:
    """The keys with `...` written out, one per axis (and the Nones)."""
    taken = sum(k is not None and k is not Ellipsis for k in keys)
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1 or taken > x.ndim:
        raise ShapeError(f"[index] {len(dots)} ellipses and {taken} indices for shape {x.shape}")
    at = dots[0] if dots else len(keys)
    rest = [builtins.slice(None)] * (x.ndim - taken)
    return [*keys[:at], *rest, *keys[at + 1 :]]


def _bounds(key: Any, size: Size, axis: int) -> tuple[int, Size, int]:
    """Start, stop and step of one key along its axis."""
    if _is_array(key):
        return 0, size, 1
    if isinstance(key, builtins.slice):
        return _slice(key, size, axis)
    if isinstance(key, bool | np.bool_) or not hasattr(key, "__index__"):
        raise DTypeError(f"[index] {key!r} on axis {axis}; wanted an integer, a slice, ..., None or an array")
    at = key.__index__()
    if isinstance(size, Dim) and at >= 0:
        return at, at + 1, 1
    if isinstance(size, Dim) or not -size <= at < size:
        raise IndexError(f"[index] {at} is out of range for axis {axis} of size {size}")
    return at % size, at % size + 1, 1


def _slice(key: builtins.slice, size: Size, axis: int) -> tuple[int, Size, int]:
    step = 1 if key.step is None else key.step.__index__()
    if step < 1:
        raise UnsupportedError(f"[index] a step of {step} on axis {axis}; steps are at least 1")
    if isinstance(size, Dim):
        start = 0 if key.start is None else key.start.__index__()
        stop: Size = size if key.stop is None else key.stop
        if isinstance(stop, int) and stop < 0:
            stop = size + stop
        return start, stop, step
    start, end, _ = key.indices(size)
    return start, max(start, end), step


def _shape(keys: Sequence[Any], cut: Sequence[Size]) -> tuple[tuple[Size, ...], int | None]:
    """The shape without the axes of integers and with those of Nones, and where the index array stands."""
    shape: list[Size] = []
    where: int | None = None
    sizes = iter(cut)
    for key in keys:
        if key is None:
            shape.append(1)
            continue
        size = next(sizes)
        if _is_array(key):
            where = len(shape)
        if _is_array(key) or isinstance(key, builtins.slice):
            shape.append(size)
    return tuple(shape), where


def _select(x: Node, key: Any, axis: int) -> Node:
    indices = key.node if hasattr(key, "node") else key if isinstance(key, Node) else constant(key)
    if indices.dtype.kind != "int":
        raise UnsupportedError(
            f"[index] an index array of {indices.dtype}; wanted integers (see where for masks)"
        )
    if indices.dtype.nbytes == 1:
        indices = ops.cast(indices, "i32")
    size = x.shape[axis]
    low = ops.where(ops.lt(indices, 0), ops.add(indices, size), indices) if isinstance(size, int) else indices
    taken: Node = ops.take(x, low, axis=axis)
    return taken
