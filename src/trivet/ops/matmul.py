"""The matrix product, and the same scaled and added to another matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from trivet.dtypes import i8, i32
from trivet.errors import ShapeError
from trivet.graph import Node, Shape, Spec
from trivet.ops.elementwise import add, mul
from trivet.ops.movement import broadcast_to, reshape
from trivet.ops.rules import at_least, broadcast, floating, has_shape, operands, sum_to, tolerance
from trivet.ops.table import GradientContext, Sample, define


def _product_shape(op: str, a: Spec, b: Spec, transpose_a: bool, transpose_b: bool) -> Shape:
    at_least(op, "a", a, 2)
    at_least(op, "b", b, 2)
    m, k = a.shape[-2:][::-1] if transpose_a else a.shape[-2:]
    k2, n = b.shape[-2:][::-1] if transpose_b else b.shape[-2:]
    if k != k2:
        flags = f"transpose_a={bool(transpose_a)}, transpose_b={bool(transpose_b)}"
        raise ShapeError(
            f"[{op}] shapes {a.shape} and {b.shape} with {flags}: inner sizes {k} and {k2} differ"
        )
    return (*broadcast(op, a.shape[:-2], b.shape[:-2]), m, n)


def _infer(a: Spec, b: Spec, transpose_a: bool, transpose_b: bool) -> Spec:
    dtype = i32 if a.dtype is i8 and b.dtype is i8 else floating("matmul", a, b)
    return Spec(_product_shape("matmul", a, b, transpose_a, transpose_b), dtype)


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


def _bytes(r: Any, *shape: int) -> Any:
    x = r.integers(-128, 128, shape, np.int8)
    x[0] = -128
    return x


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
            lambda r: (_bytes(r, 3, 70), _bytes(r, 5, 70)),
            {"transpose_a": False, "transpose_b": True},
            gradient=False,
            note="int8, its extremes among them",
        ),
        Sample(
            lambda r: (np.array([[np.inf, 1.0], [0.0, 1.0]]), np.array([[1.0, 0.0], [np.nan, 1e30]])),
            {"transpose_a": False, "transpose_b": False},
            gradient=False,
            note="hostile: 0 times infinity is NaN",
        ),
    ],
    tolerance=tolerance(2e-5),
    doc="The matrix product over the last two axes; leading axes broadcast. Of int8 it is int32.",
)


def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    """The product of `a` [..., M, K] and `b` [..., K, N] (each transposed if asked); leading axes broadcast.

    Floats, or two int8, whose product is int32 (modulo 2^32). One-dimensional arguments are a row (`a`) or a
    column (`b`), as in the Array API standard.

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


def _scaled(x: Any, by: float) -> Any:
    return x if by == 1 else mul(x, by)


def _addmm_infer(
    c: Spec, a: Spec, b: Spec, alpha: float, beta: float, transpose_a: bool, transpose_b: bool
) -> Spec:
    dtype = floating("addmm", c, a, b)
    shape = _product_shape("addmm", a, b, transpose_a, transpose_b)
    has_shape("addmm", "c", c, shape)
    return Spec(shape, dtype)


def _addmm_composed(
    c: Any, a: Any, b: Any, alpha: float, beta: float, transpose_a: bool, transpose_b: bool
) -> Any:
    product = _scaled(matmul(a, b, transpose_a, transpose_b), alpha)
    return product if beta == 0 else add(_scaled(c, beta), product)


def _addmm_gradient(c: GradientContext) -> list[Node | None]:
    _, a, b = c.inputs
    alpha, beta = c.attrs["alpha"], c.attrs["beta"]
    flags = {key: c.attrs[key] for key in ("transpose_a", "transpose_b")}
    product = GradientContext((a, b), flags, (), (c.g,), c.needs[1:])
    small = [_scaled(d, alpha) for d in _gradient(product)]  # in use a and b are narrow, and g is not
    return [None if beta == 0 else _scaled(c.g, beta), *small]


def _addmm_sample(
    a: tuple[int, ...],
    b: tuple[int, ...],
    c: Any,
    alpha: float,
    beta: float,
    tb: bool = False,
    note: str = "",
) -> Sample:
    return Sample(
        lambda r: (
            r.standard_normal(c) if isinstance(c, tuple) else c,
            r.standard_normal(a),
            r.standard_normal(b),
        ),
        {"alpha": alpha, "beta": beta, "transpose_a": False, "transpose_b": tb},
        gradient=beta != 0,  # c has none then
        note=note,
    )


_addmm = define(
    "addmm",
    attrs={"alpha": float, "beta": float, "transpose_a": bool, "transpose_b": bool},
    infer=_addmm_infer,
    fallback=_addmm_composed,
    fused=True,
    gradient=_addmm_gradient,
    samples=[
        _addmm_sample((3, 5), (5, 4), (3, 4), 1.0, 1.0),
        _addmm_sample((3, 5), (4, 5), (3, 4), 0.5, -2.0, tb=True),
        _addmm_sample((2, 3, 5), (5, 4), (2, 3, 4), 1.0, 0.25, note="a batch"),
        _addmm_sample((3, 0), (0, 4), (3, 4), 1.0, 2.0, note="an empty sum"),
        _addmm_sample((2, 5), (5, 3), np.full((2, 3), np.nan), 2.0, 0.0, note="beta 0 does not read a NaN"),
    ],
    tolerance=tolerance(2e-5),
    doc="beta * c + alpha * (a @ b), rounded once; with beta 0, c is not read.",
)


def addmm(
    c: Any,
    a: Any,
    b: Any,
    alpha: float = 1.0,
    beta: float = 1.0,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Any:
    """`beta * c + alpha * (a @ b)` for `a` [..., M, K], `b` [..., K, N] and `c`, broadcast to [..., M, N].

    With `beta` 0, `c` is not read: a NaN in it stays there.

    >>> addmm(np.zeros(4, np.float32), np.zeros((3, 5), np.float32), np.zeros((5, 4), np.float32))
    <addmm f32[3, 4]>
    """
    (x, y, z), wrap = operands("addmm", c, a, b)
    shape = _product_shape("addmm", y.spec, z.spec, transpose_a, transpose_b)
    attrs = {
        "alpha": float(alpha),
        "beta": float(beta),
        "transpose_a": transpose_a,
        "transpose_b": transpose_b,
    }
    return wrap(_addmm.node([x if x.shape == shape else broadcast_to(x, shape), y, z], attrs))
