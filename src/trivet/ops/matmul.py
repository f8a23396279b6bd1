"""The matrix product."""

from __future__ import annotations

from typing import Any

import numpy as np

from trivet.errors import ShapeError
from trivet.graph import Node, Spec
from trivet.ops.movement import reshape
from trivet.ops.rules import at_least, broadcast, floating, operands, sum_to, tolerance
from trivet.ops.table import GradientContext, Sample, define


def _infer(a: Spec, b: Spec, transpose_a: bool, transpose_b: bool) -> Spec:
    dtype = floating("matmul", a, b)
    at_least("matmul", "a", a, 2)
    at_least("matmul", "b", b, 2)
    m, k = a.shape[-2:][::-1] if transpose_a else a.shape[-2:]
    k2, n = b.shape[-2:][::-1] if transpose_b else b.shape[-2:]
    if k != k2:
        flags = f"transpose_a={bool(transpose_a)}, transpose_b={bool(transpose_b)}"
        raise ShapeError(
            f"[matmul] shapes {a.shape} and {b.shape} with {flags}: inner sizes {k} and {k2} differ"
        )
    return Spec((*broadcast("matmul", a.shape[:-2], b.shape[:-2]), m, n), dtype)


def _gradient(c: GradientContext) -> list[Node]:
    (a, b), g = c.inputs, c.g
    ta, tb = bool(c.attrs["transpose_a"]), bool(c.attrs["transpose_b"])
    da = matmul(b, g, tb, True) if ta else matmul(g, b, False, not tb)
    db = matmul(g, a, True, ta) if tb else matmul(a, g, not ta, False)
    return [sum_to(da, a.shape), sum_to(db, b.shape)]


def _sample(
    a: tuple[int, ...], b: tuple[int, ...], ta: bool = False, tb: bool = False, note: str = ""
) -> Sample:
    return Sample(
        lambda r: (r.standard_normal(a), r.standard_normal(b)),
        {"transpose_a": ta, "transpose_b": tb},
        note=note,
    )


_matmul = define(
    "matmul",
    attrs={"transpose_a": bool, "transpose_b": bool},
    infer=_infer,
    gradient=_gradient,
    samples=[
        _sample((3, 5), (5, 4)),
        _sample((5, 3), (5, 4), ta=True),
        _sample((3, 5), (4, 5), tb=True),
        _sample((5, 3), (4, 5), ta=True, tb=True),
        _sample((2, 1, 3, 5), (3, 5, 2), note="batch broadcast"),
        _sample((1, 33), (17, 33), tb=True, note="odd, one row"),
        _sample((1, 1), (1, 1), note="size 1"),
        _sample((2, 0), (0, 3), note="an empty sum"),
        _sample((0, 3), (3, 2), note="empty"),
        Sample(
            lambda r: (np.array([[np.inf, 1.0], [0.0, 1.0]]), np.array([[1.0, 0.0], [np.nan, 1e30]])),
            {"transpose_a": False, "transpose_b": False},
            gradient=False,
            note="hostile: 0 times infinity is NaN",
        ),
    ],
    tolerance=tolerance(2e-5),
    doc="The matrix product over the last two axes; leading axes broadcast.",
)


def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    """The product of `a` [..., M, K] and `b` [..., K, N] (each transposed if asked); leading axes broadcast.

    Floats only. One-dimensional arguments are a row (`a`) or a column (`b`), as in the Array API standard.

    >>> matmul(np.zeros((2, 3, 5), np.float32), np.zeros((4, 5), np.float32), transpose_b=True)
    <matmul f32[2, 3, 4]>
    """
    (x, y), wrap = operands("matmul", a, b)
    rows, columns = x.ndim == 1, y.ndim == 1
    if rows:
        x, transpose_a = reshape(x, (1, x.shape[0])), False
    if columns:
        y, transpose_b = reshape(y, (y.shape[0], 1)), False
    out = _matmul.node([x, y], {"transpose_a": transpose_a, "transpose_b": transpose_b})
    assert isinstance(out, Node)
    if rows or columns:
        out = reshape(
            out, (*out.shape[:-2], *([] if rows else out.shape[-2:-1]), *([] if columns else out.shape[-1:]))
        )
    return wrap(out)
