"""Rows that reduce axes to one value. Reductions of no elements: sum 0, mean NaN, logsumexp -inf; max, min
and argmax refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trivet import dtypes
from trivet.dtypes import DType
from trivet.errors import ShapeError
from trivet.graph import Node, Shape, Spec
from trivet.ops.elementwise import HOSTILE, INF, NAN, cast, div, eq, exp, mul, sub, where
from trivet.ops.movement import broadcast_to, reshape
from trivet.ops.rules import ARITHMETIC, axes_of, axis_of, one_of, size_of, tolerance
from trivet.ops.table import GradientContext, Infer, NoGradient, Row, Sample, define, unwrap

Axis = int | Sequence[int] | None


def _reduced(op: str, shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    if sorted(set(axes_of(op, tuple(axes), shape))) != list(axes):
        raise ShapeError(f"[{op}] axes {tuple(axes)} are not sorted and counted from the front")
    return tuple(1 if i in axes else s for i, s in enumerate(shape) if keepdims or i not in axes)


def _infer(op: str, allowed: Sequence[DType], needs_one: bool) -> Infer:
    def infer(x: Spec, axes: tuple[int, ...], keepdims: bool) -> Spec:
        one_of(op, allowed, x)
        shape = _reduced(op, x.shape, axes, keepdims)
        if needs_one and any(x.shape[a] == 0 for a in axes):
            raise ShapeError(f"[{op}] of no elements: axes {axes} of shape {x.shape}")
        return Spec(shape, x.dtype)

    return infer


def _kept(c: GradientContext, value: Node) -> Node:
    """An output-shaped node with the reduced axes back, at size 1."""
    shape = tuple(1 if i in c.attrs["axes"] else s for i, s in enumerate(c.inputs[0].shape))
    kept: Node = reshape(value, shape)
    return kept


def _spread(c: GradientContext, value: Node) -> Node:
    spread: Node = broadcast_to(_kept(c, value), c.inputs[0].shape)
    return spread


def _mean_gradient(c: GradientContext) -> list[Node]:
    count = size_of((c.inputs[0].shape[a] for a in c.attrs["axes"]), c.g.dtype)
    return [_spread(c, div(c.g, count))]


def _extreme_gradient(c: GradientContext) -> list[Node]:
    """Equal extremes share the gradient."""
    won = cast(eq(c.inputs[0], _kept(c, c.y)), c.g.dtype)
    share = div(_kept(c, c.g), sum(won, axis=c.attrs["axes"], keepdims=True))
    return [mul(won, share)]


def _logsumexp_gradient(c: GradientContext) -> list[Node]:
    y = _kept(c, c.y)
    safe = where(eq(y, -INF), 0.0, y)  # exp(-inf - -inf) is NaN; exp(-inf - 0) is the 0 that is meant
    return [mul(exp(sub(c.inputs[0], safe)), _kept(c, c.g))]


def _given(values: Any) -> Callable[[Any], tuple[Any]]:
    return lambda r: (np.array(values),)


def _define(
    name: str,
    doc: str,
    gradient: Callable[[GradientContext], Any],
    *,
    allowed: Sequence[DType] = dtypes.FLOATS,
    needs_one: bool = False,
    fallback: Callable[..., Any] | None = None,
    hostile: Sequence[Any] = (HOSTILE,),
) -> Row:
    def attrs(*axes: int, keepdims: bool = False) -> dict[str, Any]:
        return {"axes": axes, "keepdims": keepdims}

    samples = [
        Sample(lambda r: (r.standard_normal((3, 5)),), attrs(1)),
        Sample(lambda r: (r.standard_normal((3, 4, 7)),), attrs(0, 2, keepdims=True)),
        Sample(lambda r: (r.standard_normal((2, 3)),), attrs(0, 1), note="all axes"),
        Sample(lambda r: (r.standard_normal((4, 1)),), attrs(1), note="size 1"),
        Sample(lambda r: (r.standard_normal((3,)),), attrs(), note="no axes"),
        Sample(lambda r: (np.zeros((0, 3)),), attrs(1, keepdims=True), note="empty result"),
        Sample(lambda r: (r.standard_normal((2, 2049)),), attrs(1), gradient=False, note="several chunks"),
        *(Sample(_given(h), attrs(0), gradient=False, note="hostile") for h in hostile),
    ]
    if not needs_one:
        samples.append(Sample(lambda r: (np.zeros((2, 0)),), attrs(1), gradient=False, note="of nothing"))
    if dtypes.i32 in allowed:
        samples += [
            Sample(_given(np.arange(-9, 12, dtype=t).reshape(3, 7)), attrs(0)) for t in (np.int32, np.int64)
        ]
    return define(
        name,
        attrs={"axes": tuple, "keepdims": bool},
        infer=_infer(name, allowed, needs_one),
        gradient=gradient,
        fallback=fallback,
        samples=samples,
        tolerance=tolerance(2e-6),
        doc=doc,
    )


def _call(row: Row, x: Any, axis: Axis, keepdims: bool) -> Any:
    (node,), wrap = unwrap(row.name, [x])
    return wrap(row.node([node], {"axes": axes_of(row.name, axis, node.shape), "keepdims": keepdims}))


_sum = _define("sum", "The sum over axes; 0 of nothing.", lambda c: [_spread(c, c.g)], allowed=ARITHMETIC)


def sum(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """The sum over `axis` (one, several, or None for all), of floats, i32 and i64; 0 of nothing.

    >>> sum(np.zeros((2, 3), np.float32), axis=-1, keepdims=True)
    <sum f32[2, 1]>
    """
    return _call(_sum, x, axis, keepdims)


def _mean_composed(x: Node, axes: tuple[int, ...], keepdims: bool) -> Any:
    return div(sum(x, axes, keepdims), size_of((x.shape[a] for a in axes), x.dtype))


_mean = _define("mean", "The mean over axes; NaN of nothing.", _mean_gradient, fallback=_mean_composed)


def mean(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """The mean over `axis` of a floating array; NaN of nothing.

    >>> mean(np.zeros((2, 3), np.float32))
    <mean f32[]>
    """
    return _call(_mean, x, axis, keepdims)


_PARTS = (HOSTILE, [INF, 1.0, -INF], [-INF, -INF], [1.0, -0.0, 0.0])

_max = _define("max", "The largest over axes; NaN if any is.", _extreme_gradient, allowed=ARITHMETIC,
               needs_one=True, hostile=_PARTS)  # fmt: skip
_min = _define("min", "The smallest over axes; NaN if any is.", _extreme_gradient, allowed=ARITHMETIC,
               needs_one=True, hostile=_PARTS)  # fmt: skip


def max(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """The largest over `axis`; NaN if any is. ShapeError where there is nothing to choose from.

    >>> max(np.zeros((2, 3), np.float32), axis=0)
    <max f32[3]>
    """
    return _call(_max, x, axis, keepdims)


def min(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """The smallest over `axis`; NaN if any is. ShapeError where there is nothing to choose from.

    >>> min(np.zeros((2, 3), np.float32), axis=0)
    <min f32[3]>
    """
    return _call(_min, x, axis, keepdims)


_LINES = ([1e4, 1e4 - 1, 0.0], [-INF, -INF], [-INF, 2.0], [INF, 1.0], [INF, INF], [NAN, 1.0], [-6e4, -6e4])

_logsumexp = _define(
    "logsumexp",
    "log(sum(exp(x))) over axes, without overflow; -inf of nothing.",
    _logsumexp_gradient,
    hostile=_LINES,
)


def logsumexp(x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """log(sum(exp(x))) over `axis` of a floating array, without overflow; -inf where all are -inf.

    >>> logsumexp(np.zeros((2, 3), np.float32), axis=1)
    <logsumexp f32[2]>
    """
    return _call(_logsumexp, x, axis, keepdims)


def _argmax_infer(x: Spec, axis: int, keepdims: bool) -> Spec:
    one_of("argmax", ARITHMETIC, x)
    shape = _reduced("argmax", x.shape, (axis,), keepdims)
    if x.shape[axis] == 0:
        raise ShapeError(f"[argmax] of no elements: axis {axis} of shape {x.shape}")
    return Spec(shape, dtypes.i64)


def _argmax_sample(make: Any, axis: int, keepdims: bool = False, note: str = "") -> Sample:
    return Sample(lambda r: (make(r),), {"axis": axis, "keepdims": keepdims}, note=note)


_argmax = define(
    "argmax",
    attrs={"axis": int, "keepdims": bool},
    infer=_argmax_infer,
    gradient=NoGradient("an index has no slope"),
    samples=[
        _argmax_sample(lambda r: r.permutation(15.0 * np.arange(15)).reshape(3, 5), 1),
        _argmax_sample(lambda r: r.permutation(24.0 * np.arange(24)).reshape(2, 3, 4), 0, keepdims=True),
        _argmax_sample(lambda r: np.array([[1.0, 3, 3, 0], [2, 2, 2, 2]]), 1, note="ties"),
        _argmax_sample(lambda r: np.array([[-INF, -INF], [1.0, NAN], [-INF, INF]]), 1, note="hostile"),
        _argmax_sample(lambda r: np.zeros((0, 3)), 1, note="empty"),
        _argmax_sample(lambda r: np.array([3, 9, 9], np.int32), 0),
    ],
    tolerance=dict.fromkeys(dtypes.FLOATS, 0.0),
    doc="The index of the first largest along an axis; NaN counts as largest.",
)


def argmax(x: Any, axis: int = -1, keepdims: bool = False) -> Any:
    """The i64 index of the largest along `axis`: the first of equals, and NaN counts as largest.

    >>> argmax(np.zeros((2, 3), np.float32))
    <argmax i64[2]>
    """
    (node,), wrap = unwrap("argmax", [x])
    return wrap(_argmax.node([node], {"axis": axis_of("argmax", axis, node.shape), "keepdims": keepdims}))
