"""Gated units (arXiv:2002.05202): an activation of one half times the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from trivet.graph import Node, Spec
from trivet.ops.elementwise import INF, gelu_erf, gelu_tanh, mul, silu
from trivet.ops.rules import floating, has_shape, operands, tolerance
from trivet.ops.table import TABLE, GradientContext, Sample, define


def _infer(op: str, gate: Spec, up: Spec) -> Spec:
    floating(op, gate, up)
    has_shape(op, "up", up, gate.shape)
    return gate


def _samples(**attrs: Any) -> list[Sample]:
    def pair(*shape: int) -> Any:
        return lambda r: (2 * r.standard_normal(shape), r.standard_normal(shape))

    return [
        Sample(pair(3, 17), attrs),
        Sample(pair(1), attrs, note="size 1"),
        Sample(pair(0, 4), attrs, note="empty"),
        Sample(lambda r: (np.array([INF, 50.0, -50.0, 0.0]), np.array([1.0, 2.0, 1e4, INF])), attrs,
               gradient=False, note="hostile"),
    ]  # fmt: skip


def _gradient(c: GradientContext, activation: Any) -> list[Any]:
    gate, up = c.inputs
    y = activation(gate)
    (dgate,) = TABLE[y.op].gradient(  # type: ignore[operator]
        GradientContext((gate,), {}, (y,), (mul(c.g, up),), (True,))
    )
    return [dgate, mul(c.g, y)]


_swiglu = define(
    "swiglu",
    infer=lambda gate, up: _infer("swiglu", gate, up),
    gradient=lambda c: _gradient(c, silu),
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


def _gelu(approximate: bool) -> Any:
    return gelu_tanh if approximate else gelu_erf


def _geglu_composed(gate: Node, up: Node, approximate: bool) -> Any:
    return mul(_gelu(approximate)(gate), up)


_geglu = define(
    "geglu",
    attrs={"approximate": bool},
    infer=lambda gate, up, approximate: _infer("geglu", gate, up),
    gradient=lambda c: _gradient(c, _gelu(c.attrs["approximate"])),
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
