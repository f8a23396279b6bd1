"""Rows that move elements and compute nothing, and `scatter_add`, the gradient of `take`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trivet import dtypes
from trivet.dtypes import DType
from trivet.errors import ShapeError
from trivet.graph import Dim, Node, Shape, Size, Spec, constant
from trivet.ops.elementwise import HOSTILE
from trivet.ops.rules import (
    ARITHMETIC,
    EXACT,
    INTS,
    alike,
    at_least,
    axis_of,
    broadcast,
    factors,
    has_shape,
    one_of,
    sizes_of,
    sum_to,
    tolerance,
)
from trivet.ops.table import GradientContext, Sample, define, unwrap

_F, _I = np.float64, np.int32


def _count(shape: Sequence[int], dtype: Any = _F) -> Any:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


# --- reshape -------------------------------------------------------------------------------------


def _reshape_infer(x: Spec, shape: Shape) -> Spec:
    one_of("reshape", dtypes.DENSE, x)
    if factors(x.shape) != factors(shape):
        raise ShapeError(f"[reshape] shape {x.shape} has not as many elements as {tuple(shape)}")
    return Spec(tuple(shape), x.dtype)


_reshape = define(
    "reshape",
    attrs={"shape": tuple},
    infer=_reshape_infer,
    gradient=lambda c: [reshape(c.g, c.inputs[0].shape)],
    samples=[
        Sample(lambda r: (_count((2, 6)),), {"shape": (3, 2, 2)}),
        Sample(lambda r: (_count((1,)),), {"shape": ()}, note="to 0-d"),
        Sample(lambda r: (_count((0, 3)),), {"shape": (3, 0, 7)}, note="empty"),
        Sample(lambda r: (HOSTILE,), {"shape": (1, 11)}, gradient=False, note="hostile"),
        Sample(lambda r: (_count((4,), _I),), {"shape": (2, 2)}),
    ],
    tolerance=EXACT,
    doc="The same elements, row-major, in another shape.",
    alias={0: 0},
)


def reshape(x: Any, shape: Sequence[Size] | int) -> Any:
    """The same elements in row-major order under another shape; one size may be -1.

    >>> reshape(np.zeros((2, 6), np.float32), (4, -1))
    <reshape f32[4, 3]>
    """
    (node,), wrap = unwrap("reshape", [x])
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if -1 in sizes:
        sizes = _infer_size(node.shape, sizes)
    return wrap(_reshape.node([node], {"shape": sizes_of("reshape", sizes)}))


def _infer_size(old: Shape, new: Shape) -> Shape:
    """Replaces the one -1 in `new`."""
    number, symbols = factors(old)
    known, known_symbols = factors(s for s in new if s != -1)
    rest = list((symbols - known_symbols).elements())
    if new.count(-1) > 1 or known == 0 or number % known or known_symbols - symbols or len(rest) > 1:
        raise ShapeError(f"[reshape] shape {old} does not determine the -1 of {new}")
    size: Size = number // known * rest[0] if rest else number // known
    return tuple(size if s == -1 else s for s in new)


# --- permute, broadcast_to -----------------------------------------------------------------------


def _permute_infer(x: Spec, axes: tuple[int, ...]) -> Spec:
    one_of("permute", dtypes.DENSE, x)
    if sorted(axes) != list(range(x.ndim)):
        raise ShapeError(
            f"[permute] axes {tuple(axes)} are not an order of the {x.ndim} axes of shape {x.shape}"
        )
    return Spec(tuple(x.shape[a] for a in axes), x.dtype)


_permute = define(
    "permute",
    attrs={"axes": tuple},
    infer=_permute_infer,
    gradient=lambda c: [permute(c.g, tuple(int(a) for a in np.argsort(c.attrs["axes"])))],
    samples=[
        Sample(lambda r: (_count((2, 3, 5)),), {"axes": (2, 0, 1)}),
        Sample(lambda r: (_count((17, 19)),), {"axes": (1, 0)}),
        Sample(lambda r: (_count((2, 3, 4, 5)),), {"axes": (0, 2, 1, 3)}),
        Sample(lambda r: (_count(()),), {"axes": ()}, note="0-d"),
        Sample(lambda r: (_count((2, 0, 3)),), {"axes": (2, 1, 0)}, note="empty"),
        Sample(lambda r: (_count((2, 3), np.int64),), {"axes": (1, 0)}),
    ],
    tolerance=EXACT,
    doc="The axes in another order.",
)


def permute(x: Any, axes: Sequence[int]) -> Any:
    """The axes in another order; `axes[i]` is the axis of `x` that becomes axis `i`.

    >>> permute(np.zeros((2, 3, 5), np.float32), (-1, 0, 1))
    <permute f32[5, 2, 3]>
    """
    (node,), wrap = unwrap("permute", [x])
    return wrap(_permute.node([node], {"axes": tuple(axis_of("permute", a, node.shape) for a in axes)}))


def _broadcast_to_infer(x: Spec, shape: Shape) -> Spec:
    one_of("broadcast_to", dtypes.DENSE, x)
    if broadcast("broadcast_to", x.shape, tuple(shape)) != tuple(shape):
        raise ShapeError(f"[broadcast_to] shape {x.shape} does not stretch to {tuple(shape)}")
    return Spec(tuple(shape), x.dtype)


_broadcast_to = define(
    "broadcast_to",
    attrs={"shape": tuple},
    infer=_broadcast_to_infer,
    gradient=lambda c: [sum_to(c.g, c.inputs[0].shape)],
    samples=[
        Sample(lambda r: (r.standard_normal((3, 1)),), {"shape": (2, 3, 5)}),
        Sample(lambda r: (r.standard_normal(()),), {"shape": (4,)}, note="0-d"),
        Sample(lambda r: (r.standard_normal((1, 3)),), {"shape": (0, 3)}, note="empty"),
        Sample(lambda r: (np.array([[True], [False]]),), {"shape": (2, 3)}),
    ],
    tolerance=EXACT,
    doc="x stretched along axes of size 1 and new leading axes.",
)


def broadcast_to(x: Any, shape: Sequence[Size]) -> Any:
    """`x` stretched to `shape` by NumPy's broadcasting rules.

    >>> broadcast_to(np.zeros((3, 1), np.float32), (2, 3, 5))
    <broadcast_to f32[2, 3, 5]>
    """
    return _broadcast_to(x, shape=sizes_of("broadcast_to", shape))


def full(shape: Sequence[Size], value: float | int | bool, dtype: DType) -> Any:
    """An array filled with one value.

    >>> full((2, 3), 0.5, dtypes.f32)
    <broadcast_to f32[2, 3]>
    """
    return broadcast_to(constant(value, dtype), shape)


# --- slice, pad, concat --------------------------------------------------------------------------


def _slice_infer(x: Spec, starts: tuple[int, ...], stops: Shape, steps: tuple[int, ...]) -> Spec:
    one_of("slice", dtypes.DENSE, x)
    if not len(starts) == len(stops) == len(steps) == x.ndim:
        raise ShapeError(f"[slice] starts {starts}, stops {stops}, steps {steps} for shape {x.shape}")
    return Spec(tuple(map(_slice_size, x.shape, starts, stops, steps)), x.dtype)


def _slice_size(size: Size, start: int, stop: Size, step: int) -> Size:
    if isinstance(size, int):
        inside = isinstance(stop, int) and start <= stop <= size
    elif isinstance(stop, int):
        inside = start <= stop <= size.offset  # whatever the symbol is
    else:
        inside = (stop.name, stop.scale) == (size.name, size.scale) and stop.offset <= size.offset
    if not inside or start < 0 or step < 1:
        raise ShapeError(f"[slice] {start}:{stop}:{step} does not fit an axis of {size}")
    return stop - start if step == 1 else (stop - start + step - 1) // step


def _slice_gradient(c: GradientContext) -> list[Node]:
    """Puts g back among zeros: first `step - 1` zeros after each element, then what was cut off."""
    (x,), g = c.inputs, c.g
    low, high = list(c.attrs["starts"]), []
    for axis, (size, start, stop, step) in enumerate(
        zip(x.shape, low, c.attrs["stops"], c.attrs["steps"], strict=True)
    ):
        if step > 1:
            spread = pad(
                reshape(g, (*g.shape[: axis + 1], 1, *g.shape[axis + 1 :])), {axis + 1: (0, step - 1)}
            )
            g = reshape(spread, (*g.shape[:axis], g.shape[axis] * step, *g.shape[axis + 1 :]))
            stop = start + g.shape[axis]
            if stop > size:  # the zeros after the last element may stand outside
                g = slice(
                    g, [0] * g.ndim, [s - (stop - size) if a == axis else s for a, s in enumerate(g.shape)]
                )
                stop = size
        high.append(size - stop)
    return [pad(g, dict(enumerate(zip(low, high, strict=True))))]


_slice = define(
    "slice",
    attrs={"starts": tuple, "stops": tuple, "steps": tuple},
    infer=_slice_infer,
    gradient=_slice_gradient,
    samples=[
        Sample(lambda r: (_count((5, 7)),), {"starts": (1, 2), "stops": (4, 7), "steps": (1, 1)}),
        Sample(lambda r: (_count((7, 3)),), {"starts": (0, 0), "stops": (7, 3), "steps": (3, 2)}),
        Sample(lambda r: (_count((8,)),), {"starts": (1,), "stops": (6,), "steps": (2,)}),
        Sample(
            lambda r: (_count((3, 4)),), {"starts": (1, 4), "stops": (3, 4), "steps": (1, 1)}, note="empty"
        ),
        Sample(lambda r: (_count((6,), _I),), {"starts": (2,), "stops": (5,), "steps": (1,)}),
    ],
    tolerance=EXACT,
    doc="Every steps[i]-th element from starts[i] up to stops[i] along each axis.",
)


def slice(x: Any, starts: Sequence[int], stops: Sequence[Size], steps: Sequence[int] | None = None) -> Any:
    """`x[starts[0]:stops[0]:steps[0], ...]`, an entry per axis; steps are at least 1.

    Negative starts and stops count from the end and both stop at the ends, as in Python.

    >>> slice(np.zeros((5, 7), np.float32), (1, -3), (4, 99))
    <slice f32[3, 3]>
    """
    (node,), wrap = unwrap("slice", [x])
    if not len(starts) == len(stops) == len(steps or stops) == node.ndim:
        raise ShapeError(f"[slice] starts {starts}, stops {stops}, steps {steps} for shape {node.shape}")
    ends = tuple(map(_clamp, stops, node.shape))
    begins = tuple(_clamp(a, n) for a, n in zip(starts, node.shape, strict=True))
    begins = tuple(b if isinstance(e, Dim) else min(b, e) for b, e in zip(begins, ends, strict=True))
    return wrap(
        _slice.node([node], {"starts": begins, "stops": ends, "steps": tuple(steps or [1] * node.ndim)})
    )


def _clamp(at: Size, size: Size) -> Any:
    if isinstance(at, Dim):
        return at
    if isinstance(size, Dim):
        return size + at if at < 0 else at
    return max(0, size + at) if at < 0 else min(at, size)


def _pad_infer(x: Spec, low: tuple[int, ...], high: tuple[int, ...], value: float) -> Spec:
    one_of("pad", dtypes.DENSE, x)
    if not len(low) == len(high) == x.ndim or any(isinstance(n, Dim) or n < 0 for n in (*low, *high)):
        raise ShapeError(f"[pad] low {low}, high {high} for shape {x.shape}: an entry of at least 0 per axis")
    return Spec(tuple(n + a + b for n, a, b in zip(x.shape, low, high, strict=True)), x.dtype)


def _pad_gradient(c: GradientContext) -> list[Node]:
    low, shape = c.attrs["low"], c.inputs[0].shape
    return [slice(c.g, low, [a + n for a, n in zip(low, shape, strict=True)])]


_pad = define(
    "pad",
    attrs={"low": tuple, "high": tuple, "value": float},
    infer=_pad_infer,
    gradient=_pad_gradient,
    samples=[
        Sample(lambda r: (_count((2, 3)),), {"low": (1, 0), "high": (0, 2), "value": 0.0}),
        Sample(
            lambda r: (_count((3,)),),
            {"low": (2,), "high": (2,), "value": -np.inf},
            gradient=False,
            note="inf",
        ),
        Sample(lambda r: (_count((0, 2)),), {"low": (1, 1), "high": (1, 0), "value": 1.5}, note="empty"),
        Sample(lambda r: (_count((3,), _I),), {"low": (1,), "high": (0,), "value": 7.0}),
    ],
    tolerance=EXACT,
    doc="x with low[i] elements of value before and high[i] after it along each axis.",
)


def pad(x: Any, widths: dict[int, tuple[int, int]], value: float = 0.0) -> Any:
    """`x` with `value` around it: `widths` maps an axis to how many elements go before and after.

    >>> pad(np.zeros((2, 3), np.float32), {-1: (1, 2)})
    <pad f32[2, 6]>
    """
    (node,), wrap = unwrap("pad", [x])
    low, high = [0] * node.ndim, [0] * node.ndim
    for axis, (before, after) in widths.items():
        at = axis_of("pad", axis, node.shape)
        low[at], high[at] = before, after
    return wrap(_pad.node([node], {"low": tuple(low), "high": tuple(high), "value": float(value)}))


def _concat_infer(*xs: Spec, axis: int) -> Spec:
    if not xs or not 0 <= axis < xs[0].ndim:
        raise ShapeError(f"[concat] axis {axis} of {', '.join(map(repr, xs)) or 'nothing'}")
    one_of("concat", dtypes.DENSE, *xs)
    dtype = alike("concat", *xs)
    total: Size = 0
    for i, x in enumerate(xs):
        size = x.shape[axis] if axis < x.ndim else 0
        has_shape("concat", f"input {i}", x, (*xs[0].shape[:axis], size, *xs[0].shape[axis + 1 :]))
        total = total + size
    return Spec((*xs[0].shape[:axis], total, *xs[0].shape[axis + 1 :]), dtype)


def _concat_gradient(c: GradientContext) -> list[Node]:
    axis, at, grads = c.attrs["axis"], 0, []
    for x in c.inputs:
        starts = [at if a == axis else 0 for a in range(x.ndim)]
        grads.append(slice(c.g, starts, [s + n for s, n in zip(starts, x.shape, strict=True)]))
        at = at + x.shape[axis]
    return grads


_concat = define(
    "concat",
    attrs={"axis": int},
    infer=_concat_infer,
    gradient=_concat_gradient,
    samples=[
        Sample(lambda r: (_count((2, 3)), _count((2, 1)), _count((2, 4))), {"axis": 1}),
        Sample(lambda r: (_count((2, 3)), _count((0, 3)), _count((5, 3))), {"axis": 0}, note="an empty part"),
        Sample(lambda r: (_count((2, 3, 2)),), {"axis": 2}, note="one part"),
        Sample(lambda r: (_count((3,), _I), _count((2,), _I)), {"axis": 0}),
    ],
    tolerance=EXACT,
    doc="Arrays one after another along an axis.",
)


def concat(xs: Sequence[Any], axis: int = 0) -> Any:
    """Arrays of one dtype one after another along `axis`; all other sizes are equal.

    >>> concat([np.zeros((2, 3), np.float32), np.zeros((2, 1), np.float32)], axis=-1)
    <concat f32[2, 4]>
    """
    nodes, wrap = unwrap("concat", xs)
    if not nodes:
        raise ShapeError("[concat] of nothing, wanted at least one array")
    return wrap(_concat.node(nodes, {"axis": axis_of("concat", axis, nodes[0].shape)}))


# --- take, scatter_add ---------------------------------------------------------------------------


def _selection(op: str, x: Spec, indices: Spec, axis: int) -> Shape:
    """The shape of what is taken: the indices' shape in place of the axis."""
    one_of(op, INTS, indices)
    at_least(op, "x", x, 1)
    if not 0 <= axis < x.ndim:
        raise ShapeError(f"[{op}] axis {axis} out of range for shape {x.shape}")
    return (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _take_infer(x: Spec, indices: Spec, axis: int) -> Spec:
    one_of("take", dtypes.DENSE, x)
    return Spec(_selection("take", x, indices, axis), x.dtype)


def _take_gradient(c: GradientContext) -> list[Node | None]:
    x, indices = c.inputs
    return [scatter_add(full(x.shape, 0, x.dtype), indices, c.g, c.attrs["axis"]), None]


_take = define(
    "take",
    attrs={"axis": int},
    infer=_take_infer,
    gradient=_take_gradient,
    samples=[
        Sample(lambda r: (_count((5, 3)), np.array([[4, 0], [2, 2]], _I)), {"axis": 0}, note="a duplicate"),
        Sample(lambda r: (_count((2, 7, 3)), np.array([6, 1, 1])), {"axis": 1}),
        Sample(lambda r: (_count((4,)), np.array(2, _I)), {"axis": 0}, note="0-d index"),
        Sample(lambda r: (_count((3, 2)), np.zeros((0,), _I)), {"axis": 0}, note="empty"),
        Sample(lambda r: (_count((0, 2)), np.zeros((0, 3), _I)), {"axis": 0}, note="nothing of nothing"),
        Sample(lambda r: (_count((3, 2), np.int64), np.array([2, 0], _I)), {"axis": 0}),
    ],
    tolerance=EXACT,
    doc="Slices of x along an axis, picked by indices.",
)


def take(x: Any, indices: Any, axis: int = 0) -> Any:
    """`x`'s slices along `axis` picked by `indices` (i32 or i64, any shape, 0 ≤ index < size).

    A run that meets an index outside its range raises InputError.

    >>> take(np.zeros((5, 3), np.float32), np.array([[4, 0]]), axis=0)
    <take f32[1, 2, 3]>
    """
    nodes, wrap = unwrap("take", [x, indices])
    return wrap(_take.node(nodes, {"axis": axis_of("take", axis, nodes[0].shape)}))


def _scatter_add_infer(x: Spec, indices: Spec, updates: Spec, axis: int) -> Spec:
    one_of("scatter_add", ARITHMETIC, x, updates)
    alike("scatter_add", x, updates)
    has_shape("scatter_add", "updates", updates, _selection("scatter_add", x, indices, axis))
    return x


def _scatter_sample(x: Any, indices: Any, updates: Any, axis: int, note: str = "") -> Sample:
    def make(r: Any) -> list[Any]:
        return [r.standard_normal(x), indices, r.standard_normal(updates)]

    return Sample(make, {"axis": axis}, note=note)


_scatter_add = define(
    "scatter_add",
    attrs={"axis": int},
    infer=_scatter_add_infer,
    gradient=lambda c: [c.g, None, take(c.g, c.inputs[1], c.attrs["axis"])],
    samples=[
        _scatter_sample((5, 3), np.array([4, 0, 4, 4], _I), (4, 3), 0, "duplicates"),
        _scatter_sample((2, 3, 2), np.array([[1, 1], [0, 2]]), (2, 2, 2, 2), 1),
        _scatter_sample((3,), np.array(1, _I), (), 0, "0-d"),
        _scatter_sample((2, 2), np.zeros((0,), _I), (0, 2), 0, "empty"),
        Sample(lambda r: (_count((4,), _I), np.array([3, 3]), np.array([5, 6], _I)), {"axis": 0}),
    ],
    tolerance=tolerance(1e-6),
    doc="x with updates added at indices along an axis; duplicates add in the order of the indices.",
    alias={0: 0},
)


def scatter_add(x: Any, indices: Any, updates: Any, axis: int = 0) -> Any:
    """`x` with `updates` added to the slices along `axis` that `indices` name.

    `updates` has the shape of `take(x, indices, axis)`. Duplicates add in index order, on every backend.

    >>> scatter_add(np.zeros((5, 3), np.float32), np.array([1, 1]), np.ones((2, 3), np.float32))
    <scatter_add f32[5, 3]>
    """
    nodes, wrap = unwrap("scatter_add", [x, indices, updates])
    return wrap(_scatter_add.node(nodes, {"axis": axis_of("scatter_add", axis, nodes[0].shape)}))
