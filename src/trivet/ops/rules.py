"""What the shape and dtype rules of the rows share. Messages read "[op] what came, what was wanted"."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from trivet import arguments, dtypes
from trivet.dtypes import DType
from trivet.errors import DTypeError, ShapeError
from trivet.graph import Dim, Node, Shape, Size, Spec, constant
from trivet.ops.table import Infer, NoGradient, call, unwrap

INTS = (dtypes.i32, dtypes.i64)
ARITHMETIC = (*dtypes.FLOATS, *INTS)

#: The gradient column of a row that is a gradient.
SECOND = NoGradient("it is a gradient itself; differentiate its fallback for second derivatives")

#: A row that only moves or selects is exact.
EXACT = {dtypes.f32: 0.0, dtypes.f16: 0.0, dtypes.bf16: 0.0, dtypes.f64: 0.0}


def tolerance(single: float) -> dict[DType, float]:
    """Tolerances from float32's, relative to 1 + |expected|. Half precisions round the output once."""
    return {dtypes.f32: single, dtypes.f16: 1e-3, dtypes.bf16: 8e-3, dtypes.f64: 1e-12}


#: Products with packed weights may hold the other factor in 16 bits per block: this is relative to 1 + the
#: largest |expected| of the whole output.
PACKED = dict.fromkeys(dtypes.PACKED, 2e-4)
#: With bf16 activations a packed weight may be rounded to bf16 besides: relative to the same.
PACKED_BF16 = 4e-3


def one_of(op: str, allowed: Iterable[DType], *specs: Spec) -> None:
    """Each spec has one of these dtypes."""
    allowed = tuple(allowed)
    for spec in specs:
        if spec.dtype not in allowed:
            raise DTypeError(f"[{op}] takes {', '.join(map(str, allowed))}, not {spec!r}")


def alike(op: str, *specs: Spec) -> DType:
    """All specs have one dtype."""
    if any(s.dtype is not specs[0].dtype for s in specs):
        raise DTypeError(f"[{op}] dtypes must be equal, got {', '.join(map(repr, specs))}")
    return specs[0].dtype


def floating(op: str, *specs: Spec) -> DType:
    """All specs have one floating dtype."""
    one_of(op, dtypes.FLOATS, *specs)
    return alike(op, *specs)


def has_shape(op: str, what: str, spec: Spec, shape: Sequence[Size]) -> None:
    """The spec has exactly this shape."""
    if spec.shape != tuple(shape):
        raise ShapeError(f"[{op}] {what} has shape {spec.shape}, wanted {tuple(shape)}")


def has_rank(op: str, what: str, spec: Spec, ranks: Iterable[int]) -> None:
    """The spec has one of these numbers of dimensions."""
    ranks = tuple(ranks)
    if spec.ndim not in ranks:
        raise ShapeError(
            f"[{op}] {what} has shape {spec.shape}, wanted {' or '.join(map(str, ranks))} dimensions"
        )


def at_least(op: str, what: str, spec: Spec, rank: int) -> None:
    """The spec has at least `rank` dimensions."""
    if spec.ndim < rank:
        raise ShapeError(f"[{op}] {what} has shape {spec.shape}, wanted at least {rank} dimensions")


def axis_of(op: str, axis: int, shape: Shape) -> int:
    """The axis counted from the front.

    >>> axis_of("softmax", -1, (2, 4))
    1
    """
    axis = arguments.integer(axis, f"[{op}] axis")
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(f"[{op}] axis {axis} out of range for shape {shape}")
    return axis % len(shape)


def axes_of(op: str, axis: int | Sequence[int] | None, shape: Shape) -> tuple[int, ...]:
    """Axes counted from the front, sorted; None means all."""
    if axis is None:
        return tuple(range(len(shape)))
    axes = sorted(axis_of(op, a, shape) for a in (axis if isinstance(axis, Iterable) else (axis,)))
    if len(set(axes)) != len(axes):
        raise ShapeError(f"[{op}] axes {axis} name one axis twice for shape {shape}")
    return tuple(axes)


def sizes_of(op: str, shape: Iterable[Size]) -> Shape:
    """A shape as a caller gave it, as a tuple of ints and symbols."""
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise ShapeError(f"[{op}] shape {shape!r}; wanted a sequence of integers")
    sizes = tuple(
        s if isinstance(s, Dim) else arguments.integer(s, f"[{op}] size {i} of the shape")
        for i, s in enumerate(shape)
    )
    if any(isinstance(s, int) and s < 0 for s in sizes):
        raise ShapeError(f"[{op}] shape {sizes} has a negative size")
    return sizes


def broadcast(op: str, *shapes: Shape) -> Shape:
    """The shape that NumPy's rules broadcast these to; symbolic sizes fit only themselves and 1.

    >>> broadcast("add", (Dim("T"), 1), (5,))
    (T, 5)
    """
    out: list[Size] = []
    for back in range(1, max(map(len, shapes)) + 1):
        sizes = {s[-back] for s in shapes if len(s) >= back} - {1}
        if len(sizes) > 1:
            raise ShapeError(f"[{op}] shapes {' and '.join(map(str, shapes))} do not broadcast")
        out.append(sizes.pop() if sizes else 1)
    return tuple(reversed(out))


def factors(shape: Iterable[Size]) -> tuple[int, Counter[Dim]]:
    """The number of elements as an integer times symbols, each reduced to its smallest form."""
    number, symbols = 1, Counter[Dim]()
    for size in shape:
        if isinstance(size, int):
            number *= size
        else:
            common = math.gcd(size.scale, size.offset)
            number *= common
            symbols[Dim(size.name, size.scale // common, size.offset // common)] += 1
    return number, symbols if number else Counter()


def elementwise(op: str, allowed: Sequence[DType], result: DType | None = None) -> Infer:
    """Inputs of one dtype out of `allowed`, broadcast together."""

    def infer(*specs: Spec) -> Spec:
        one_of(op, allowed, *specs)
        dtype = alike(op, *specs)
        return Spec(broadcast(op, *(s.shape for s in specs)), result or dtype)

    return infer


def weak(scalar: bool | int | float, dtype: DType) -> DType:
    """The dtype of an operation of a Python scalar and a `dtype`: the scalar gives way where it can."""
    if isinstance(scalar, float) and not dtype.is_float:
        return dtypes.f32
    if not isinstance(scalar, bool) and dtype.kind == "bool":
        return dtypes.i64
    return dtype


def operands(op: str, *args: Any) -> tuple[list[Node], Any]:
    """Arguments as nodes of one promoted dtype (Python scalars are weak), and the wrapper for the result."""
    nodes, wrap = unwrap(op, [a for a in args if not isinstance(a, bool | int | float)])
    scalars = [a for a in args if isinstance(a, bool | int | float)]
    if nodes:
        dtype = nodes[0].dtype
        for node in nodes[1:]:
            dtype = dtypes.promote(dtype, node.dtype)
    else:
        dtype = dtypes.bool_ if all(isinstance(s, bool) for s in scalars) else dtypes.i64
    if dtype.is_packed:
        dtypes.promote(dtype, dtypes.f32)  # raises, and says what to do
    for scalar in scalars:
        dtype = weak(scalar, dtype)
    rest = iter(nodes)
    return [
        constant(a, dtype) if isinstance(a, bool | int | float) else to_dtype(next(rest), dtype) for a in args
    ], wrap


def to_dtype(node: Node, dtype: DType) -> Node:
    """The node, cast if it has another dtype."""
    cast: Node = node if node.dtype is dtype else call("cast", node, dtype=dtype.name)
    return cast


def sum_to(g: Node, shape: Shape) -> Node:
    """Undoes a broadcast: sums `g` over what `shape` was stretched by."""
    lead = g.ndim - len(shape)
    axes = tuple(i for i in range(g.ndim) if i < lead or (shape[i - lead] == 1 and g.shape[i] != 1))
    out: Node = call("sum", g, axes=axes, keepdims=True) if axes else g
    return out if out.shape == shape else call("reshape", out, shape=shape)


def size_of(sizes: Iterable[Size], dtype: DType) -> Node:
    """The product of sizes as a 0-d node: a constant, or counted at run time if one is symbolic."""
    sizes = tuple(sizes)
    if all(isinstance(s, int) for s in sizes):
        return constant(math.prod(s for s in sizes if isinstance(s, int)), dtype)
    wide = dtypes.f32 if dtype in (dtypes.f16, dtypes.bf16) else dtype
    ones = call("broadcast_to", constant(1, wide), shape=sizes)
    return to_dtype(call("sum", ones, axes=tuple(range(len(sizes))), keepdims=False), dtype)
