"""The product with a weight matrix, dense or packed: what a model spends its time in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trivet import dtypes
from trivet.dtypes import DType
from trivet.errors import DTypeError
from trivet.graph import Node, Spec
from trivet.ops.dequantize import SAMPLED, packed_sample, widened
from trivet.ops.elementwise import add, cast
from trivet.ops.matmul import matmul
from trivet.ops.movement import reshape
from trivet.ops.reduce import sum
from trivet.ops.rules import (
    PACKED,
    alike,
    at_least,
    floating,
    has_rank,
    has_shape,
    one_of,
    to_dtype,
    tolerance,
)
from trivet.ops.table import GradientContext, Sample, define, unwrap

_WEIGHTS = (*dtypes.FLOATS, *dtypes.PACKED)


def _infer(x: Spec, w: Spec, *bias: Spec) -> Spec:
    floating("linear", x)
    one_of("linear", _WEIGHTS, w)
    has_rank("linear", "w", w, (2,))
    at_least("linear", "x", x, 1)
    has_shape("linear", "x", x, (*x.shape[:-1], w.shape[1]))
    for b in bias:
        alike("linear", x, b)
        has_shape("linear", "bias", b, w.shape[:1])
    return Spec((*x.shape[:-1], w.shape[0]), x.dtype)


def _composed(x: Node, w: Node, *bias: Node) -> Any:
    y = matmul(rows(x), widened(w, x.dtype), transpose_b=True)
    y = reshape(y, (*x.shape[:-1], w.shape[0]))
    return add(y, bias[0]) if bias else y


def rows(x: Node) -> Node:
    """[..., K] as [rows, K]."""
    count: Any = 1
    for size in x.shape[:-1]:
        count = count * size
    flat: Node = reshape(x, (count, x.shape[-1])) if x.ndim != 2 else x
    return flat


def weight_gradient(op: str, g: Node, x: Node, w: Node) -> Node:
    """The gradient in `w` of x @ w.T."""
    if w.dtype.is_packed:
        raise DTypeError(f"[{op}] a packed weight ({w.spec!r}) is constant and has no gradient")
    dw: Node = cast(matmul(rows(g), rows(x), transpose_a=True), w.dtype)
    return dw


def _gradient(c: GradientContext) -> Sequence[Node | None]:
    x, w, *bias = c.inputs
    return [
        linear_input_grad(c.g, w) if c.needs[0] else None,
        weight_gradient("linear", c.g, x, w) if c.needs[1] else None,
        *(sum(c.g, range(c.g.ndim - 1)) for _ in bias),
    ]


def _sample(
    x: tuple[int, ...], w: tuple[int, int], dtype: DType | None = None, bias: bool = False, note: str = ""
) -> Sample:
    def make(r: Any) -> list[Any]:
        weight = packed_sample(r, dtype, *w) if dtype else r.standard_normal(w)
        return [r.standard_normal(x), weight, *([r.standard_normal(w[0])] if bias else [])]

    return Sample(make, note=note)


def _float32_weight(r: Any) -> list[Any]:
    return [r.standard_normal((2, 5)), r.standard_normal((3, 5)).astype(np.float32)]


_linear = define(
    "linear",
    infer=_infer,
    gradient=_gradient,
    fallback=_composed,
    fused=True,
    samples=[
        _sample((3, 5), (4, 5)),
        _sample((2, 3, 33), (17, 33), bias=True),
        _sample((1, 7), (1, 7), note="one row"),
        _sample((5,), (3, 5), bias=True, note="a vector"),
        _sample((0, 5), (3, 5), note="empty"),
        _sample((2, 0), (3, 0), bias=True, note="an empty sum"),
        Sample(_float32_weight, note="dtypes differ"),
        *(_sample((t, 2 * d.block), (19, 2 * d.block), d) for d in SAMPLED for t in (1, 5)),
        _sample((3, 64), (33, 64), dtypes.q8_0, bias=True),
    ],
    tolerance=tolerance(2e-5) | PACKED,
    doc="x @ w.T + bias, with a weight of any floating or packed dtype.",
)


def linear(x: Any, w: Any, bias: Any = None) -> Any:
    """`x` [..., K] times the transpose of `w` [N, K], plus `bias` [N] if there is one; x's dtype.

    `w` is floating, or packed: then it is decoded on the way and never stored whole. `bias` is cast to
    x's dtype.

    >>> linear(np.zeros((2, 3, 8), np.float32), np.zeros((5, 8), np.float16))
    <linear f32[2, 3, 5]>
    """
    (node, weight, *rest), wrap = unwrap("linear", [x, w] if bias is None else [x, w, bias])
    return wrap(_linear.node([node, weight, *(to_dtype(b, node.dtype) for b in rest)], {}))


def _grad_infer(g: Spec, w: Spec) -> Spec:
    floating("linear_input_grad", g)
    one_of("linear_input_grad", _WEIGHTS, w)
    has_rank("linear_input_grad", "w", w, (2,))
    at_least("linear_input_grad", "g", g, 1)
    has_shape("linear_input_grad", "g", g, (*g.shape[:-1], w.shape[0]))
    return Spec((*g.shape[:-1], w.shape[1]), g.dtype)


def _grad_gradient(c: GradientContext) -> list[Node | None]:
    g, w = c.inputs
    return [
        linear(c.g, w) if c.needs[0] else None,
        weight_gradient("linear_input_grad", g, c.g, w) if c.needs[1] else None,
    ]


def _grad_composed(g: Node, w: Node) -> Any:
    return reshape(matmul(rows(g), widened(w, g.dtype)), (*g.shape[:-1], w.shape[1]))


_linear_input_grad = define(
    "linear_input_grad",
    infer=_grad_infer,
    gradient=_grad_gradient,
    fallback=_grad_composed,
    fused=True,
    samples=[
        _sample((3, 5), (5, 4)),
        _sample((2, 3, 17), (17, 33)),
        _sample((1, 1), (1, 7), note="size 1"),
        _sample((0, 5), (5, 3), note="empty"),
        *(_sample((3, 9), (9, 2 * d.block), d) for d in SAMPLED),
        _sample((2, 19, 40), (40, 96), dtypes.q4_1),
        _sample((37, 70), (70, 45), note="several tiles"),
    ],
    tolerance=tolerance(2e-5) | PACKED,
    doc="g @ w, the gradient of linear in x, with a weight of any floating or packed dtype.",
)


def linear_input_grad(g: Any, w: Any) -> Any:
    """`g` [..., N] times `w` [N, K], floating or packed: the gradient of `linear` in its input.

    >>> linear_input_grad(np.zeros((2, 5), np.float32), np.zeros((5, 8), np.float16))
    <linear_input_grad f32[2, 8]>
    """
    return _linear_input_grad(g, w)
