"""Making tensors. Each is on a device from the start: the one asked for, else the first available one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trivet import dtypes, graph, ops, runtime
from trivet.dtypes import DType
from trivet.errors import CapacityError, DTypeError, InputError
from trivet.graph import Node
from trivet.tensor import dlpack
from trivet.tensor.array import DTypeLike, Tensor, dtype_of


def asarray(value: Any, dtype: DTypeLike | None = None, device: str | None = None) -> Tensor:
    """A tensor of a copy of `value`: numbers, nested lists, NumPy arrays, tensors, anything with DLPack.

    Python floats become f32, Python integers i64; arrays keep their dtype.

    >>> asarray([1, 2]).dtype, asarray([1.0]).dtype, asarray([1.0], "bf16").dtype
    (i64, f32, bf16)
    """
    if isinstance(value, Tensor):
        moved = value if device in (None, value.device) else value.to(runtime.resolve(device))
        return moved if dtype is None else moved.astype(dtype)
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | np.generic):
        loaded = from_dlpack(value, device)
        return loaded if dtype is None else loaded.astype(dtype)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DTypeError(f"[asarray] {type(value).__name__}: {error}") from None
    if not isinstance(value, np.ndarray | np.generic) and array.dtype == np.float64:
        array = array if dtype in (dtypes.f64, "f64") else array.astype(np.float32)
    if array.dtype == object:
        raise DTypeError(f"[asarray] {type(value).__name__} is not numbers in a regular shape")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if dtype is None:
        return _put(array, graph.of_numpy(array.dtype), device)
    target = dtype_of(dtype)
    if target is not dtypes.bf16:
        return _put(array.astype(graph.to_numpy(target)), target, device)
    return _put(graph.constant(array.astype(np.float32), target).value, target, device)


def _put(array: np.ndarray[Any, Any], dtype: DType, device: str | None) -> Tensor:
    return Tensor(runtime.put(array, dtype, device))


def from_dlpack(source: Any, device: str | None = None) -> Tensor:
    """A tensor of a copy of any object with `__dlpack__` whose memory is on the cpu, bf16 included."""
    array, dtype = dlpack.load(source)
    return _put(array, dtype, device)


def _scalar(value: float | int | bool, dtype: DType, device: str | None) -> Node:
    if dtype.kind == "int":
        limits = np.iinfo(graph.to_numpy(dtype))
        if not limits.min <= value <= limits.max:
            raise InputError(f"[full] {value} does not fit {dtype}, {limits.min} to {limits.max}")
    node = graph.constant(value, dtype)
    return runtime.put(node.value, dtype, device)


def full(
    shape: int | Sequence[int],
    value: float | int | bool,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """A tensor filled with one value; without a dtype, with that of the value: f32, i64 or bool.

    >>> full((2, 2), 7).numpy().tolist()
    [[7, 7], [7, 7]]
    """
    sizes = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else (shape,)
    if dtype is None:
        dtype = (
            dtypes.bool_ if isinstance(value, bool) else dtypes.i64 if isinstance(value, int) else dtypes.f32
        )
    return Tensor(ops.broadcast_to(_scalar(value, dtype_of(dtype), device), sizes))


def zeros(shape: int | Sequence[int], dtype: DTypeLike = dtypes.f32, device: str | None = None) -> Tensor:
    """A tensor of zeros."""
    return full(shape, 0, dtype, device)


def ones(shape: int | Sequence[int], dtype: DTypeLike = dtypes.f32, device: str | None = None) -> Tensor:
    """A tensor of ones."""
    return full(shape, 1, dtype, device)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    dtype: DTypeLike | None = None,
    device: str | None = None,
) -> Tensor:
    """The numbers from `start` by `step` to before `stop`; with one argument, from 0. i64, or f32 if any of
    the three is a float.

    >>> arange(3).numpy().tolist(), arange(1, 2, 0.5).numpy().tolist()
    ([0, 1, 2], [1.0, 1.5])
    """
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise InputError("[arange] a step of 0")
    kind = np.float32 if any(isinstance(v, float) for v in (start, stop, step)) else np.int64
    try:
        made = np.arange(start, stop, step).astype(kind)
    except MemoryError as error:
        raise CapacityError(f"[arange] {start} to {stop} by {step}: {error}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"[arange] {start!r} to {stop!r} by {step!r}: {error}") from None
    return asarray(made, dtype, device)


def random_key(seed: int, stream: int = 0, device: str | None = None) -> Tensor:
    """The key of a sequence of random numbers, for `random_uniform`, `random_normal` and `random_bits`. A key
    gives the same numbers on every device; the streams of one seed are independent of each other."""
    for what, number in (("seed", seed), ("stream", stream)):
        if not -(2**63) <= number < 2**63:
            raise InputError(f"[random_key] {what} {number} does not fit in 64 bits")
    return asarray(np.array([seed, stream], np.int64), device=device)
