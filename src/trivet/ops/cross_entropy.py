"""Cross entropy of logits, and of the product x @ w.T without ever holding all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trivet import dtypes
from trivet.dtypes import f32
from trivet.errors import DTypeError, ShapeError, UnsupportedError
from trivet.graph import Node, Spec
from trivet.ops.dequantize import packed_sample
from trivet.ops.elementwise import INF, add, cast, eq, exp, iota, mul, sub, where
from trivet.ops.linear import linear, linear_input_grad
from trivet.ops.matmul import matmul
from trivet.ops.movement import reshape
from trivet.ops.reduce import logsumexp, sum
from trivet.ops.rules import INTS, PACKED, SECOND, floating, has_rank, has_shape, one_of, tolerance
from trivet.ops.table import GradientContext, Sample, define, unwrap


def _check(op: str, logits: Spec, targets: Spec) -> None:
    floating(op, logits)
    one_of(op, INTS, targets)
    has_rank(op, "logits", logits, (2,))
    has_shape(op, "targets", targets, logits.shape[:1])


def _infer(logits: Spec, targets: Spec, ignore_index: int) -> Spec:
    _check("cross_entropy", logits, targets)
    return Spec(targets.shape, f32)


def _wide(x: Node) -> Any:
    return x if x.dtype is dtypes.f64 else cast(x, f32)


def _column(x: Node) -> Any:
    return reshape(x, (*x.shape, 1))


def _is_target(logits: Node, targets: Node) -> Any:
    return eq(iota((1, logits.shape[1]), 1, targets.dtype), _column(targets))


def _losses(logits: Node, targets: Node, ignore_index: int) -> tuple[Any, Any]:
    """(losses, lse) from wide logits."""
    lse = logsumexp(logits, 1)
    picked = sum(where(_is_target(logits, targets), logits, 0.0), 1)
    return cast(where(eq(targets, ignore_index), 0.0, sub(lse, picked)), f32), cast(lse, f32)


def _dlogits(g: Node, logits: Node, targets: Node, lse: Node, ignore_index: int) -> Any:
    """(softmax - onehot) * g, 0 where ignored."""
    kept = where(eq(targets, ignore_index), 0.0, cast(g, logits.dtype))
    p = exp(sub(logits, _column(cast(lse, logits.dtype))))
    return mul(sub(p, cast(_is_target(logits, targets), logits.dtype)), _column(kept))


def _composed(logits: Node, targets: Node, ignore_index: int) -> Any:
    return _losses(_wide(logits), targets, ignore_index)[0]


def _gradient(c: GradientContext) -> list[Any]:
    return [_cross_entropy_backward.node([c.g, *c.inputs], c.attrs), None]


def _targets(r: Any, n: int, v: int, dtype: Any = np.int32, ignored: int = -100) -> Any:
    targets = r.integers(0, v, n).astype(dtype)
    targets[1::3] = ignored
    return targets


def _samples(backward: bool) -> list[Sample]:
    def make(n: int, v: int, scale: float = 1.0, *kind: Any) -> Any:
        def inputs(r: Any) -> list[Any]:
            g = [r.standard_normal(n).astype(np.float32)] if backward else []
            return [*g, scale * r.standard_normal((n, v)), _targets(r, n, v, *kind)]

        return inputs

    def masked(r: Any) -> list[Any]:
        logits = np.array([[1.0, -INF, 2.0], [np.nan, 0.0, 0.0], [-INF, 0.0, 0.0]])
        return [*([np.ones(3, np.float32)] if backward else []), logits, np.array([0, -100, 1])]

    ignore = {"ignore_index": -100}
    return [
        Sample(make(4, 7), ignore),
        Sample(make(3, 1), ignore, note="one class"),
        Sample(make(1, 1031), ignore, note="long"),
        Sample(make(0, 5), ignore, note="empty"),
        Sample(make(5, 9, 1e4), ignore, gradient=False, note="huge"),
        Sample(make(3, 4, 1.0, np.int64, 2), {"ignore_index": 2}, note="an id is ignored"),
        Sample(masked, ignore, gradient=False, note="-inf, and NaN where ignored"),
    ]


_cross_entropy = define(
    "cross_entropy",
    attrs={"ignore_index": int},
    infer=_infer,
    gradient=_gradient,
    fallback=_composed,
    fused=True,
    samples=_samples(False),
    tolerance={**tolerance(4e-6), dtypes.f16: 4e-6, dtypes.bf16: 4e-6},
    doc="logsumexp(logits) - logits[target] of each row, in f32; 0 where the target is ignore_index.",
)


def cross_entropy(logits: Any, targets: Any, ignore_index: int = -100) -> Any:
    """-log softmax(`logits`)[target] of each row: f32, of the shape of `targets`, 0 where ignored.

    `logits` is [..., V] and `targets` i32 or i64 [...], each 0 ≤ target < V or `ignore_index`; a run that
    meets another raises InputError. The losses are not averaged: divide their sum by the count you mean.

    >>> cross_entropy(np.zeros((2, 3, 50), np.float32), np.zeros((2, 3), np.int32))
    <reshape f32[2, 3]>
    """
    (x, t), wrap = unwrap("cross_entropy", [logits, targets])
    if x.ndim < 1 or x.shape[:-1] != t.shape:
        raise ShapeError(f"[cross_entropy] logits {x.shape} and targets {t.shape}, wanted [..., V] and [...]")
    flat, ids = _flat(x, t)
    return wrap(_restored(_cross_entropy.node([flat, ids], {"ignore_index": ignore_index}), t))


def _flat(x: Node, t: Node) -> tuple[Node, Node]:
    """Rows and their targets, with one leading axis."""
    if t.ndim == 1:
        return x, t
    ids = reshape(t, (-1,))
    return reshape(x, (*ids.shape, x.shape[-1])), ids


def _restored(losses: Any, t: Node) -> Any:
    return losses if losses.shape == t.shape else reshape(losses, t.shape)


def _backward_infer(g: Spec, logits: Spec, targets: Spec, ignore_index: int) -> Spec:
    _check("cross_entropy_backward", logits, targets)
    one_of("cross_entropy_backward", (f32,), g)
    has_shape("cross_entropy_backward", "g", g, targets.shape)
    return logits


def _backward_composed(g: Node, logits: Node, targets: Node, ignore_index: int) -> Any:
    wide = _wide(logits)
    rows = where(_column(eq(targets, ignore_index)), 0.0, wide)  # NaN in an ignored row is not looked at
    return cast(_dlogits(g, rows, targets, logsumexp(rows, 1), ignore_index), logits.dtype)


_cross_entropy_backward = define(
    "cross_entropy_backward",
    attrs={"ignore_index": int},
    infer=_backward_infer,
    gradient=SECOND,
    fallback=_backward_composed,
    fused=True,
    samples=_samples(True),
    tolerance=tolerance(4e-6),
    doc="The gradient of cross_entropy in the logits, given g f32 [N], logits and targets.",
)


def cross_entropy_backward(g: Any, logits: Any, targets: Any, ignore_index: int = -100) -> Any:
    """(softmax(logits) - onehot(targets)) * g of each row [N, V], 0 where ignored; the logits' dtype.

    >>> cross_entropy_backward(np.ones(2, np.float32), np.zeros((2, 5), np.float32), np.zeros(2, np.int32))
    <cross_entropy_backward f32[2, 5]>
    """
    return _cross_entropy_backward(g, logits, targets, ignore_index=ignore_index)


# --- fused with the last linear layer ------------------------------------------------------------


def _linear_check(op: str, x: Spec, w: Spec, targets: Spec) -> None:
    floating(op, x)
    one_of(op, (*dtypes.FLOATS, *dtypes.PACKED), w)
    one_of(op, INTS, targets)
    has_rank(op, "x", x, (2,))
    has_rank(op, "w", w, (2,))
    has_shape(op, "w", w, (w.shape[0], x.shape[1]))
    has_shape(op, "targets", targets, x.shape[:1])


def _linear_infer(x: Spec, w: Spec, targets: Spec, ignore_index: int) -> tuple[Spec, Spec]:
    _linear_check("linear_cross_entropy", x, w, targets)
    return Spec(targets.shape, f32), Spec(targets.shape, f32)


def _linear_composed(x: Node, w: Node, targets: Node, ignore_index: int) -> tuple[Any, Any]:
    return _losses(linear(_wide(x), w), targets, ignore_index)


def _linear_gradient(c: GradientContext) -> list[Node | None]:
    if c.gs[0] is None or c.gs[1] is not None:
        raise UnsupportedError("[linear_cross_entropy] only the losses may be differentiated, not lse")
    if c.needs[1] and c.inputs[1].dtype.is_packed:
        raise DTypeError("[linear_cross_entropy] a packed weight is constant and has no gradient")
    attrs = {**c.attrs, "weight_grad": c.needs[1]}
    back = _linear_cross_entropy_backward.node([c.gs[0], *c.inputs, c.ys[1]], attrs)
    assert isinstance(back, tuple)
    return [back[0], back[1] if c.needs[1] else None, None]


def _linear_samples(backward: bool) -> list[Sample]:
    def make(n: int, v: int, k: int, dtype: Any = None) -> Any:
        def inputs(r: Any) -> list[Any]:
            w: Any = packed_sample(r, dtype, v, k) if dtype else r.standard_normal((v, k))
            x, targets = r.standard_normal((n, k)), _targets(r, n, v)
            if not backward:
                return [x, w, targets]
            assert not dtype, "a packed weight needs trivet.blocks to make the lse of a sample"
            lse = np.log(np.exp(x @ w.T).sum(1)).astype(np.float32)
            return [r.standard_normal(n).astype(np.float32), x, w, targets, lse]

        return inputs

    flags = [{"weight_grad": True}, {"weight_grad": False}] if backward else [{}]
    shapes: Sequence[tuple[int, int, int]] = [(4, 7, 5), (3, 33, 17), (1, 1, 1), (5, 1000, 8)]
    samples = [Sample(make(*s), {"ignore_index": -100, **f}) for s in shapes for f in flags]
    if not backward:
        kinds = (dtypes.q8_0, dtypes.q4_1, dtypes.nf4d_64)
        samples += [Sample(make(3, 10, 64, d), {"ignore_index": -100}) for d in kinds]
    return samples


_linear_cross_entropy = define(
    "linear_cross_entropy",
    attrs={"ignore_index": int},
    infer=_linear_infer,
    gradient=_linear_gradient,
    fallback=_linear_composed,
    fused=True,
    samples=_linear_samples(False),
    tolerance={d: 2e-5 if d is not dtypes.f64 else 1e-12 for d in dtypes.FLOATS} | PACKED,
    doc="cross_entropy(x @ w.T) and the log-sum-exp of each row, slab by slab of the vocabulary.",
)


def linear_cross_entropy(x: Any, w: Any, targets: Any, ignore_index: int = -100) -> Any:
    """The losses `cross_entropy(linear(x, w), targets)`, without holding all the logits.

    `x` is [..., K], `w` [V, K] floating or packed, `targets` i32 or i64 [...]; f32 of the targets' shape.

    >>> x, w = np.zeros((4, 8), np.float32), np.zeros((50, 8), np.float32)
    >>> linear_cross_entropy(x, w, np.zeros(4, np.int32))
    <item f32[4]>
    """
    (h, table, t), wrap = unwrap("linear_cross_entropy", [x, w, targets])
    if h.ndim < 1 or h.shape[:-1] != t.shape:
        raise ShapeError(
            f"[linear_cross_entropy] x {h.shape} and targets {t.shape}, wanted [..., K] and [...]"
        )
    flat, ids = _flat(h, t)
    out = _linear_cross_entropy.node([flat, table, ids], {"ignore_index": ignore_index})
    assert isinstance(out, tuple)
    return wrap(_restored(out[0], t))


def _slopes_infer(x: Spec, w: Spec, targets: Spec, ignore_index: int) -> tuple[Spec, Spec]:
    _linear_check("linear_cross_entropy_slopes", x, w, targets)
    return Spec(targets.shape, f32), x


def _slopes_composed(x: Node, w: Node, targets: Node, ignore_index: int) -> tuple[Any, Any]:
    logits = linear(_wide(x), w)
    losses, lse = _losses(logits, targets, ignore_index)
    ones = where(eq(targets, ignore_index), 0.0, cast(add(mul(lse, 0.0), 1.0), f32))
    return losses, cast(linear_input_grad(_dlogits(ones, logits, targets, lse, ignore_index), w), x.dtype)


def _slopes_gradient(c: GradientContext) -> list[Node | None]:
    if c.gs[0] is None or c.gs[1] is not None:
        raise UnsupportedError("[linear_cross_entropy_slopes] only the losses may be differentiated")
    if c.needs[1]:  # w is not constant after all: as if the slopes had not been asked for
        losses = _linear_cross_entropy.node(c.inputs, c.attrs)
        assert isinstance(losses, tuple)
        return _linear_gradient(GradientContext(c.inputs, c.attrs, losses, c.gs, c.needs))
    dx: Node = mul(c.ys[1], cast(_column(c.gs[0]), c.ys[1].dtype))
    return [dx, None, None]


_linear_cross_entropy_slopes = define(
    "linear_cross_entropy_slopes",
    attrs={"ignore_index": int},
    infer=_slopes_infer,
    gradient=_slopes_gradient,
    fallback=_slopes_composed,
    fused=True,
    samples=_linear_samples(False),
    tolerance={**tolerance(2e-5), dtypes.f64: 1e-6} | PACKED,
    doc="linear_cross_entropy with a constant w: losses, and their gradients in x, in one pass.",
)


def linear_cross_entropy_slopes(x: Any, w: Any, targets: Any, ignore_index: int = -100) -> Any:
    """(losses f32 [N], dx [N, K] of each row's own loss) of `linear_cross_entropy` where `w` is constant.

    The logits are made once for both, where the gradient of `linear_cross_entropy` makes them again.

    >>> x, w = np.zeros((4, 8), np.float32), np.zeros((50, 8), np.float32)
    >>> linear_cross_entropy_slopes(x, w, np.zeros(4, np.int32))
    (<item f32[4]>, <item f32[4, 8]>)
    """
    return _linear_cross_entropy_slopes(x, w, targets, ignore_index=ignore_index)


def _linear_backward_infer(
    g: Spec, x: Spec, w: Spec, targets: Spec, lse: Spec, ignore_index: int, weight_grad: bool
) -> tuple[Spec, ...]:
    op = "linear_cross_entropy_backward"
    _linear_check(op, x, w, targets)
    one_of(op, (f32,), g, lse)
    has_shape(op, "g", g, targets.shape)
    has_shape(op, "lse", lse, targets.shape)
    if weight_grad and w.dtype.is_packed:
        raise DTypeError(f"[{op}] a packed weight ({w!r}) is constant and has no gradient")
    return (x, w) if weight_grad else (x,)


def _linear_backward_composed(
    g: Node, x: Node, w: Node, targets: Node, lse: Node, ignore_index: int, weight_grad: bool
) -> tuple[Any, ...]:
    wide = _wide(x)
    dlogits = _dlogits(g, linear(wide, w), targets, lse, ignore_index)
    dx = cast(linear_input_grad(dlogits, w), x.dtype)
    return (dx, cast(matmul(dlogits, wide, transpose_a=True), w.dtype)) if weight_grad else (dx,)


_linear_cross_entropy_backward = define(
    "linear_cross_entropy_backward",
    attrs={"ignore_index": int, "weight_grad": bool},
    infer=_linear_backward_infer,
    gradient=SECOND,
    fallback=_linear_backward_composed,
    fused=True,
    samples=_linear_samples(True),
    tolerance={**tolerance(2e-5), dtypes.f64: 1e-6},
    doc="The gradients of linear_cross_entropy in x and, if weight_grad, in w.",
)


def linear_cross_entropy_backward(
    g: Any, x: Any, w: Any, targets: Any, lse: Any, ignore_index: int = -100, weight_grad: bool = True
) -> Any:
    """(dx, dw), or (dx,) without `weight_grad`, of linear_cross_entropy, for `g` f32 [N] of its losses.

    >>> x, w, one = np.zeros((4, 8), np.float32), np.zeros((50, 8), np.float32), np.ones(4, np.float32)
    >>> linear_cross_entropy_backward(one, x, w, np.zeros(4, np.int32), one, weight_grad=False)
    (<item f32[4, 8]>,)
    """
    return _linear_cross_entropy_backward(
        g, x, w, targets, lse, ignore_index=ignore_index, weight_grad=weight_grad
    )
