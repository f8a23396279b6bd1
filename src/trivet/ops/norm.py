"""Layer norm (arXiv:1607.06450) and RMS norm (arXiv:1910.07467) over the last axis.

Weights have x's dtype or f32, as training holds them; their gradients have their own dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trivet.dtypes import f32, f64
from trivet.graph import Node, Spec
from trivet.ops.elementwise import add, cast, mul, rsqrt, sub
from trivet.ops.reduce import mean, sum
from trivet.ops.rules import SECOND, alike, at_least, floating, has_shape, one_of, to_dtype, tolerance
from trivet.ops.table import GradientContext, Sample, define, unwrap


def _check(op: str, x: Spec, **weights: Spec) -> None:
    floating(op, x)
    one_of(op, (x.dtype, f32), *weights.values())
    alike(op, *weights.values())
    at_least(op, "x", x, 1)
    for name, w in weights.items():
        has_shape(op, name, w, x.shape[-1:])


def _weight(w: Node, x: Node) -> Node:
    """A weight as a row takes it."""
    return w if w.dtype is f32 else to_dtype(w, x.dtype)


def _wide(x: Node, like: Node) -> Any:
    """What a norm of `like` is computed in: f32, or f64."""
    return cast(x, f64 if like.dtype is f64 else f32)


def _samples(weights: int, before: bool = False) -> list[Sample]:
    """Inputs ([g,] x, weights...)."""

    def make(shape: tuple[int, ...], scale: float = 1.0, kind: Any = np.float64) -> Any:
        def inputs(r: Any) -> list[Any]:
            lead = [r.standard_normal(shape)] if before else []
            return [
                *lead,
                scale * r.standard_normal(shape),
                *(r.standard_normal(shape[-1:]).astype(kind) for _ in range(weights)),
            ]

        return inputs

    eps = {"eps": 1e-5}
    return [
        Sample(make((3, 5)), eps),
        Sample(make((2, 3, 33)), eps),
        Sample(make((1, 1)), eps, note="size 1"),
        Sample(make((7,)), eps, note="one row"),
        Sample(make((0, 3)), eps, note="empty"),
        Sample(make((2, 5), 0.0), eps, gradient=False, note="zeros"),
        Sample(make((2, 5), 1e3), eps, gradient=False, note="large"),
        Sample(make((2, 70), kind=np.float32), eps, gradient=False, note="f32 weights"),
    ]


def _rows(x: Node) -> tuple[int, ...]:
    return tuple(range(x.ndim - 1))


# --- rms_norm ------------------------------------------------------------------------------------


def _rms_infer(x: Spec, weight: Spec, eps: float) -> Spec:
    _check("rms_norm", x, weight=weight)
    return x


def _rms_scale(x: Node, eps: float) -> Any:
    return rsqrt(add(mean(mul(x, x), -1, keepdims=True), eps))


def _rms_composed(x: Node, weight: Node, eps: float) -> Any:
    wide = _wide(x, x)
    return cast(mul(mul(wide, _rms_scale(wide, eps)), _wide(weight, x)), x.dtype)


def _rms_gradient(c: GradientContext) -> Any:
    return _rms_norm_backward.node([c.g, *c.inputs], c.attrs)


_rms_norm = define(
    "rms_norm",
    attrs={"eps": float},
    infer=_rms_infer,
    gradient=_rms_gradient,
    fallback=_rms_composed,
    fused=True,
    samples=_samples(1),
    tolerance=tolerance(4e-6),
    doc="x / sqrt(mean(x * x) + eps) * weight over the last axis.",
)


def rms_norm(x: Any, weight: Any, eps: float = 1e-5) -> Any:
    """x / sqrt(mean(x²) + eps) * weight, with `x` [..., K] and `weight` [K] (of x's dtype or f32; else cast).

    >>> rms_norm(np.zeros((4, 8), np.float32), np.ones(8, np.float32))
    <rms_norm f32[4, 8]>
    """
    (node, w), wrap = unwrap("rms_norm", [x, weight])
    return wrap(_rms_norm.node([node, _weight(w, node)], {"eps": float(eps)}))


def _rms_backward_infer(g: Spec, x: Spec, weight: Spec, eps: float) -> tuple[Spec, ...]:
    _check("rms_norm_backward", x, weight=weight)
    floating("rms_norm_backward", g, x)
    has_shape("rms_norm_backward", "g", g, x.shape)
    return x, weight


def _rms_backward_composed(g: Node, x: Node, weight: Node, eps: float) -> tuple[Any, ...]:
    g, wide = _wide(g, x), _wide(x, x)
    scale = _rms_scale(wide, eps)
    normed, gw = mul(wide, scale), mul(g, _wide(weight, x))
    dx = mul(scale, sub(gw, mul(normed, mean(mul(gw, normed), -1, keepdims=True))))
    return cast(dx, x.dtype), cast(sum(mul(g, normed), _rows(x)), weight.dtype)


_rms_norm_backward = define(
    "rms_norm_backward",
    attrs={"eps": float},
    infer=_rms_backward_infer,
    gradient=SECOND,
    fallback=_rms_backward_composed,
    fused=True,
    samples=_samples(1, before=True),
    tolerance=tolerance(2e-5),
    doc="The gradients of rms_norm in x and weight, given g, x and weight.",
)


def rms_norm_backward(g: Any, x: Any, weight: Any, eps: float = 1e-5) -> Any:
    """(dx, dweight) of `rms_norm`, for the gradient `g` of its result.

    >>> rms_norm_backward(*[np.zeros((4, 8), np.float32)] * 2, np.ones(8, np.float32))
    (<item f32[4, 8]>, <item f32[8]>)
    """
    return _rms_norm_backward(g, x, weight, eps=float(eps))


# --- layer_norm ----------------------------------------------------------------------------------


def _layer_infer(x: Spec, weight: Spec, bias: Spec, eps: float) -> Spec:
    _check("layer_norm", x, weight=weight, bias=bias)
    return x


def _standardised(x: Node, eps: float) -> tuple[Any, Any]:
    """(x - mean) / deviation, and 1 / deviation."""
    centred = sub(x, mean(x, -1, keepdims=True))
    scale = _rms_scale(centred, eps)
    return mul(centred, scale), scale


def _layer_composed(x: Node, weight: Node, bias: Node, eps: float) -> Any:
    wide = _standardised(_wide(x, x), eps)[0]
    return cast(add(mul(wide, _wide(weight, x)), _wide(bias, x)), x.dtype)


def _layer_gradient(c: GradientContext) -> Any:
    return _layer_norm_backward.node([c.g, *c.inputs[:2]], c.attrs)


_layer_norm = define(
    "layer_norm",
    attrs={"eps": float},
    infer=_layer_infer,
    gradient=_layer_gradient,
    fallback=_layer_composed,
    fused=True,
    samples=_samples(2),
    tolerance=tolerance(1e-5),
    doc="(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias over the last axis.",
)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    """(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias over the last axis of `x` [..., K].

    `weight` and `bias` are [K], both of x's dtype or f32, else cast; the variance is the biased one.

    >>> layer_norm(np.zeros((4, 8), np.float32), np.ones(8, np.float32), np.zeros(8, np.float32))
    <layer_norm f32[4, 8]>
    """
    (node, w, b), wrap = unwrap("layer_norm", [x, weight, bias])
    weights = [_weight(w, node), _weight(b, node)]
    if weights[0].dtype is not weights[1].dtype:
        weights = [to_dtype(w, node.dtype) for w in weights]
    return wrap(_layer_norm.node([node, *weights], {"eps": float(eps)}))


def _layer_backward_infer(g: Spec, x: Spec, weight: Spec, eps: float) -> tuple[Spec, ...]:
    _check("layer_norm_backward", x, weight=weight)
    floating("layer_norm_backward", g, x)
    has_shape("layer_norm_backward", "g", g, x.shape)
    return x, weight, weight


def _layer_backward_composed(g: Node, x: Node, weight: Node, eps: float) -> tuple[Any, ...]:
    g = _wide(g, x)
    normed, scale = _standardised(_wide(x, x), eps)
    gw = mul(g, _wide(weight, x))
    centred = sub(gw, mean(gw, -1, keepdims=True))
    dx = mul(scale, sub(centred, mul(normed, mean(mul(gw, normed), -1, keepdims=True))))
    dweight, dbias = (cast(sum(d, _rows(x)), weight.dtype) for d in (mul(g, normed), g))
    return cast(dx, x.dtype), dweight, dbias


_layer_norm_backward = define(
    "layer_norm_backward",
    attrs={"eps": float},
    infer=_layer_backward_infer,
    gradient=SECOND,
    fallback=_layer_backward_composed,
    fused=True,
    samples=_samples(1, before=True),
    tolerance=tolerance(2e-5),
    doc="The gradients of layer_norm in x, weight and bias, given g, x and weight.",
)


def layer_norm_backward(g: Any, x: Any, weight: Any, eps: float = 1e-5) -> Any:
    """(dx, dweight, dbias) of `layer_norm`, for the gradient `g` of its result.

    >>> len(layer_norm_backward(*[np.zeros((4, 8), np.float32)] * 2, np.ones(8, np.float32)))
    3
    """
    return _layer_norm_backward(g, x, weight, eps=float(eps))
