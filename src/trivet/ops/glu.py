"""Gated units (arXiv:2002.05202): an activation of one half times the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trivet.graph import Node, Spec
from trivet.ops.elementwise import INF, add, erf, exp, gelu_erf, gelu_tanh, mul, silu, sub, tanh
from trivet.ops.rules import SECOND, floating, has_shape, operands, tolerance
from trivet.ops.table import TABLE, GradientContext, Sample, define


def _infer(op: str, gate: Spec, up: Spec) -> Spec:
    floating(op, gate, up)
    has_shape(op, "up", up, gate.shape)
    return gate


def _backward_infer(op: str, g: Spec, gate: Spec, up: Spec) -> tuple[Spec, Spec]:
    floating(op, g, gate, up)
    has_shape(op, "g", g, gate.shape)
    has_shape(op, "up", up, gate.shape)
    return gate, up


def _samples(backward: bool = False, **attrs: Any) -> list[Sample]:
    """Inputs ([g,] gate, up)."""

    def given(*shape: int) -> Any:
        lead = [shape] if backward else []
        return lambda r: [
            *(r.standard_normal(s) for s in lead),
            2 * r.standard_normal(shape),
            r.standard_normal(shape),
        ]

    hostile = [np.array([INF, 50.0, -50.0, 0.0]), np.array([1.0, 2.0, 1e4, INF])]
    far = [np.ones(5), np.array([90.0, -90.0, 1e4, -1e4, 0.0]), np.ones(5)]
    return [
        Sample(given(3, 17), attrs),
        Sample(given(1), attrs, note="size 1"),
        Sample(given(0, 4), attrs, note="empty"),
        Sample(lambda r: far if backward else hostile, attrs, gradient=False, note="hostile"),
    ]


def _slopes(activation: Any) -> Any:
    """The fallback of a gradient row."""

    def composed(g: Node, gate: Node, up: Node, **attrs: Any) -> tuple[Any, Any]:
        y = activation(**attrs)(gate)
        context = GradientContext((gate,), {}, (y,), (mul(g, up),), (True,))
        (dgate,) = TABLE[y.op].gradient(context)  # type: ignore[operator]
        return dgate, mul(g, y)

    return composed


def _swiglu_gradient(c: GradientContext) -> Any:
    return _swiglu_backward.node([c.g, *c.inputs], {})


_swiglu = define(
    "swiglu",
    infer=lambda gate, up: _infer("swiglu", gate, up),
    gradient=_swiglu_gradient,
    fallback=lambda gate, up: mul(silu(gate), up),
    fused=True,
    samples=_samples(),
    tolerance=tolerance(2e-6),
    doc="silu(gate) * up.",
)


def swiglu(gate: Any, up: Any) -> Any:
    """silu(gate) * up, of two floating arrays of one shape.

    >>> swiglu(np.zeros((2, 8), np.float32), np.zeros((2, 8), np.float32))
    <swiglu f32[2, 8]>
    """
    nodes, wrap = operands("swiglu", gate, up)
    return wrap(_swiglu.node(nodes, {}))


_swiglu_backward = define(
    "swiglu_backward",
    infer=lambda g, gate, up: _backward_infer("swiglu_backward", g, gate, up),
    gradient=SECOND,
    fallback=_slopes(lambda: silu),
    fused=True,
    samples=_samples(backward=True),
    tolerance=tolerance(4e-6),
    doc="The gradients of swiglu in gate and up, given g, gate and up.",
)


def swiglu_backward(g: Any, gate: Any, up: Any) -> Any:
    """(dgate, dup) of `swiglu`, for the gradient `g` of its result.

    >>> swiglu_backward(*[np.zeros((2, 8), np.float32)] * 3)
    (<item f32[2, 8]>, <item f32[2, 8]>)
    """
    return _swiglu_backward(g, gate, up)


def _gelu(approximate: bool) -> Any:
    return gelu_tanh if approximate else gelu_erf


def _geglu_gradient(c: GradientContext) -> Any:
    return _geglu_backward.node([c.g, *c.inputs], c.attrs)


def _geglu_composed(gate: Node, up: Node, approximate: bool) -> Any:
    return mul(_gelu(approximate)(gate), up)


_geglu = define(
    "geglu",
    attrs={"approximate": bool},
    infer=lambda gate, up, approximate: _infer("geglu", gate, up),
    gradient=_geglu_gradient,
    fallback=_geglu_composed,
    fused=True,
    samples=[*_samples(approximate=True), *_samples(approximate=False)],
    tolerance=tolerance(2e-6),
    doc="gelu(gate) * up, with the tanh approximation if approximate.",
)


def geglu(gate: Any, up: Any, approximate: bool = True) -> Any:
    """gelu(gate) * up, of two floating arrays of one shape; by the tanh approximation unless told.

    >>> geglu(np.zeros((2, 8), np.float32), np.zeros((2, 8), np.float32))
    <geglu f32[2, 8]>
    """
    nodes, wrap = operands("geglu", gate, up)
    return wrap(_geglu.node(nodes, {"approximate": approximate}))


_geglu_backward = define(
    "geglu_backward",
    attrs={"approximate": bool},
    infer=lambda g, gate, up, approximate: _backward_infer("geglu_backward", g, gate, up),
    gradient=SECOND,
    fallback=_slopes(_gelu),
    fused=True,
    samples=[*_samples(backward=True, approximate=True), *_samples(backward=True, approximate=False)],
    tolerance=tolerance(4e-6),
    doc="The gradients of geglu in gate and up, given g, gate and up.",
)


def geglu_backward(g: Any, gate: Any, up: Any, approximate: bool = True) -> Any:
    """(dgate, dup) of `geglu`, for the gradient `g` of its result.

    >>> geglu_backward(*[np.zeros((2, 8), np.float32)] * 3)
    (<item f32[2, 8]>, <item f32[2, 8]>)
    """
    return _geglu_backward(g, gate, up, approximate=approximate)


# --- the gradient of gelu itself ------------------------------------------------------------------


def _gelu_erf_slope(x: Node) -> Any:
    """Phi(x) + x phi(x), with the normal distribution's Phi and phi."""
    below = mul(0.5, add(1.0, erf(mul(x, math.sqrt(0.5)))))
    density = mul(1.0 / math.sqrt(2.0 * math.pi), exp(mul(-0.5, mul(x, x))))
    return add(below, mul(x, density))


_GELU = math.sqrt(2.0 / math.pi)


def _gelu_tanh_slope(x: Node) -> Any:
    square = mul(x, x)
    t = tanh(mul(_GELU, mul(x, add(1.0, mul(0.044715, square)))))
    inner = mul(_GELU, add(1.0, mul(3 * 0.044715, square)))
    return add(mul(0.5, add(1.0, t)), mul(mul(0.5, x), mul(sub(1.0, mul(t, t)), inner)))


def _gelu_composed(g: Node, x: Node, approximate: bool) -> Any:
    return mul(g, (_gelu_tanh_slope if approximate else _gelu_erf_slope)(x))


def _gelu_samples(approximate: bool) -> list[Sample]:
    attrs = {"approximate": approximate}
    far = np.array([90.0, -90.0, 1e4, -1e4, 0.0])
    return [
        Sample(lambda r: (r.standard_normal((3, 17)), 2 * r.standard_normal((3, 17))), attrs),
        Sample(lambda r: (np.zeros((0, 4)), np.zeros((0, 4))), attrs, note="empty"),
        Sample(lambda r: (np.ones(5), far), attrs, gradient=False, note="far"),
    ]


def _gelu_infer(g: Spec, x: Spec, approximate: bool) -> Spec:
    floating("gelu_backward", g, x)
    has_shape("gelu_backward", "g", g, x.shape)
    return x


_gelu_backward = define(
    "gelu_backward",
    attrs={"approximate": bool},
    infer=_gelu_infer,
    gradient=SECOND,
    fallback=_gelu_composed,
    fused=True,
    samples=[*_gelu_samples(True), *_gelu_samples(False)],
    tolerance=tolerance(4e-6),
    doc="The gradient of gelu_tanh, if approximate, or of gelu_erf, given g and x.",
)


def gelu_backward(g: Any, x: Any, approximate: bool = True) -> Any:
    """The gradient of `gelu_tanh`, or of `gelu_erf`, in x, for the gradient `g` of its result.

    >>> gelu_backward(*[np.zeros((2, 8), np.float32)] * 2)
    <gelu_backward f32[2, 8]>
    """
    return _gelu_backward(g, x, approximate=approximate)
