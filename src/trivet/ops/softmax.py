"""Softmax over one axis, causal softmax of attention scores, and the logarithm of softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from trivet import dtypes
from trivet.errors import ShapeError
from trivet.graph import Node, Spec
from trivet.ops.elementwise import INF, NAN, add, div, exp, iota, le, mul, sub, where
from trivet.ops.reduce import logsumexp, max, sum
from trivet.ops.rules import at_least, axis_of, floating, size_of, tolerance
from trivet.ops.table import GradientContext, Sample, define, unwrap


def _infer(op: str) -> Any:
    def infer(x: Spec, axis: int) -> Spec:
        floating(op, x)
        if not 0 <= axis < x.ndim:
            raise ShapeError(f"[{op}] axis {axis} out of range for shape {x.shape}")
        return x

    return infer


_SAMPLES = (
    Sample(lambda r: (r.standard_normal((3, 7)),), {"axis": 1}),
    Sample(lambda r: (r.standard_normal((2, 3, 5)),), {"axis": 1}),
    Sample(lambda r: (r.standard_normal((1, 1)),), {"axis": 0}, note="size 1"),
    Sample(lambda r: (np.zeros((0, 3)),), {"axis": 1}, note="empty"),
    Sample(lambda r: (np.zeros((3, 0)),), {"axis": 1}, note="an empty axis"),
    Sample(lambda r: (np.array([[1e4, 1e4 - 8, 0.0], [-6e4, -6e4, 6e4]]),), {"axis": 1}, note="huge"),
    Sample(lambda r: (np.array([[-INF, 0.0, 1.0], [-INF, -INF, 5.0], [NAN, 0.0, 1.0]]),), {"axis": 1},
           gradient=False, note="masked, NaN"),
    Sample(lambda r: (r.standard_normal((2, 1025)),), {"axis": 1}, gradient=False, note="long"),
)  # fmt: skip


def _composed(x: Node, axis: int) -> Any:
    if x.shape[axis] == 0:
        return x
    e = exp(sub(x, max(x, axis, keepdims=True)))
    return div(e, sum(e, axis, keepdims=True))


def _gradient(c: GradientContext) -> list[Node]:
    axis = c.attrs.get("axis", c.y.ndim - 1)
    return [mul(c.y, sub(c.g, sum(mul(c.g, c.y), axis, keepdims=True)))]


_softmax = define(
    "softmax",
    attrs={"axis": int},
    infer=_infer("softmax"),
    gradient=_gradient,
    fallback=_composed,
    fused=True,
    samples=_SAMPLES,
    tolerance=tolerance(2e-6),
    doc="exp(x) / sum(exp(x)) over an axis, stable for any finite input.",
)


def softmax(x: Any, axis: int = -1) -> Any:
    """exp(x) / sum(exp(x)) over `axis` of a floating array, stable for any finite input.

    -inf gives 0; a line of nothing but -inf gives NaN.

    >>> softmax(np.zeros((2, 4), np.float32))
    <softmax f32[2, 4]>
    >>> softmax(np.zeros((2, 4), np.float32), axis=3)
    Traceback (most recent call last):
    trivet.errors.ShapeError: [softmax] axis 3 out of range for shape (2, 4)
    """
    (node,), wrap = unwrap("softmax", [x])
    return wrap(_softmax.node([node], {"axis": axis_of("softmax", axis, node.shape)}))


def _log_composed(x: Node, axis: int) -> Any:
    return sub(x, logsumexp(x, axis, keepdims=True))


_log_softmax = define(
    "log_softmax",
    attrs={"axis": int},
    infer=_infer("log_softmax"),
    gradient=lambda c: [sub(c.g, mul(exp(c.y), sum(c.g, c.attrs["axis"], keepdims=True)))],
    fallback=_log_composed,
    fused=True,
    samples=_SAMPLES,
    tolerance=tolerance(4e-6),
    doc="log(softmax(x)) over an axis, without the underflow.",
)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """x - logsumexp(x) over `axis` of a floating array.

    >>> log_softmax(np.zeros((2, 4), np.float32), axis=0)
    <log_softmax f32[2, 4]>
    """
    (node,), wrap = unwrap("log_softmax", [x])
    return wrap(_log_softmax.node([node], {"axis": axis_of("log_softmax", axis, node.shape)}))


def _causal_infer(x: Spec) -> Spec:
    floating("causal_softmax", x)
    at_least("causal_softmax", "x", x, 2)
    return x


def _causal_composed(x: Node) -> Any:
    t, s = x.shape[-2:]
    if s == 0:
        return x
    query = add(iota((t, 1), 0, dtypes.i64), size_of([s], dtypes.i64))
    seen = le(add(iota((1, s), 1, dtypes.i64), size_of([t], dtypes.i64)), query)
    some = le(size_of([t], dtypes.i64), query)  # sees at least key 0
    return where(some, softmax(where(seen, x, where(some, -INF, 0.0))), 0.0)


_causal_softmax = define(
    "causal_softmax",
    infer=_causal_infer,
    gradient=_gradient,
    fallback=_causal_composed,
    fused=True,
    samples=[
        Sample(lambda r: (r.standard_normal((2, 5, 5)),)),
        Sample(lambda r: (r.standard_normal((3, 7)),), note="a prefix is in the cache"),
        Sample(lambda r: (r.standard_normal((1, 9)),), note="one step"),
        Sample(lambda r: (r.standard_normal((5, 3)),), note="queries that see nothing"),
        Sample(lambda r: (np.zeros((2, 0, 3)),), note="empty"),
        Sample(lambda r: (np.array([[0.0, NAN, INF], [1.0, 2.0, INF], [1e4, 0.0, -INF]]),), gradient=False,
               note="what a query does not see does not matter"),
    ],
    tolerance=tolerance(2e-6),
    doc="Softmax over the last axis where query i of T sees the keys j <= i + S - T; the others get 0.",
)  # fmt: skip


def causal_softmax(x: Any) -> Any:
    """Softmax of scores [..., T, S] over S, where query i sees the keys j ≤ i + (S - T) and the others get 0.

    A query that sees no key (T > S) gets zeros.

    >>> causal_softmax(np.zeros((8, 5, 5), np.float32))
    <causal_softmax f32[8, 5, 5]>
    """
    return _causal_softmax(x)
