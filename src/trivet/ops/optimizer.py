"""What a training step does to gradients and parameters: sum them up, measure them, move by AdamW.

`accumulate` and `adamw` write into the states they are given, so a step holds each parameter and moment once.
Whether a step happens at all is decided before, by the number `adamw` scales gradients with: at 0 it changes
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trivet import dtypes
from trivet.dtypes import f32
from trivet.errors import ShapeError
from trivet.graph import Dim, Node, Size, Spec, constant
from trivet.ops.elementwise import abs, add, cast, div, eq, gt, maximum, mul, sqrt, sub, where
from trivet.ops.movement import concat, slice, take
from trivet.ops.reduce import max, sum
from trivet.ops.rules import has_shape, one_of
from trivet.ops.table import NoGradient, Sample, define, unwrap

_STEP = NoGradient("it is part of a training step, which is not differentiated")
_GRADIENTS = dtypes.FLOATS


# --- the global norm -----------------------------------------------------------------------------


def _norm_infer(*gs: Spec) -> tuple[Spec, Spec]:
    if not gs:
        raise ShapeError("[grad_norm] no gradients were given")
    for g in gs:
        one_of("grad_norm", _GRADIENTS, g)
    return Spec((), f32), Spec((), f32)


def _wide(g: Node) -> Any:
    return g if g.dtype is dtypes.f64 else cast(g, f32)


def _flat_sum(x: Any) -> Any:
    return cast(sum(x), f32)


def _norm_composed(*gs: Node) -> tuple[Any, Any]:
    peak: Any = constant(np.float32(0))
    for g in gs:
        largest = sum if 0 in g.shape else max  # an empty one has none, and adds 0
        peak = maximum(peak, cast(largest(abs(_wide(g))), f32))
    by = where(eq(peak, 0.0), 1.0, peak)
    total: Any = mul(peak, 0.0)
    for g in gs:
        scaled = div(_wide(g), cast(by, _wide(g).dtype))
        total = add(total, _flat_sum(mul(scaled, scaled)))
    return peak, sqrt(total)


def _gradients(*shapes: tuple[int, ...], scale: float = 1.0, note: str = "") -> Sample:
    return Sample(lambda r: [scale * r.standard_normal(s) for s in shapes], gradient=False, note=note)


_grad_norm = define(
    "grad_norm",
    infer=_norm_infer,
    gradient=_STEP,
    fallback=_norm_composed,
    fused=True,
    samples=[
        _gradients((3, 5)),
        _gradients((7,), (2, 1, 300), (), note="several, 0-d among them"),
        _gradients((0, 3), (4,), note="one is empty"),
        _gradients((0,), note="nothing at all"),
        _gradients((5,), (5,), scale=1e37, note="squares overflow"),
        _gradients((9,), scale=1e-30, note="squares underflow"),
        Sample(lambda r: [np.zeros(4)], gradient=False, note="all zero"),
        Sample(lambda r: [np.array([1.0, np.inf])], gradient=False, note="an infinity"),
        Sample(lambda r: [np.ones(3), np.array([np.nan, 1.0])], gradient=False, note="a NaN"),
    ],
    tolerance=dict.fromkeys(dtypes.FLOATS, 1e-6),
    doc="The largest |g| of all gradients, and their Euclidean norm divided by it.",
)


def grad_norm(gradients: Sequence[Any]) -> Any:
    """(peak, ratio), both f32 (): the largest magnitude, and the global norm divided by it (0 if peak is 0).

    Their product is the Euclidean norm of all the gradients together. In two factors it cannot overflow,
    however large a gradient is. A NaN or an infinity anywhere makes `peak` or `ratio` not finite.

    >>> grad_norm([np.ones((2, 3), np.float32), np.ones(4, np.float32)])
    (<item f32[]>, <item f32[]>)
    """
    return _grad_norm(*gradients)


# --- accumulation --------------------------------------------------------------------------------


def _accumulate_infer(total: Spec, g: Spec, keep: Spec) -> Spec:
    one_of("accumulate", (f32,), total, keep)
    one_of("accumulate", _GRADIENTS, g)
    has_shape("accumulate", "g", g, total.shape)
    has_shape("accumulate", "keep", keep, ())
    return total


def _accumulate_composed(total: Node, g: Node, keep: Node) -> Any:
    new = cast(g, f32)
    return where(eq(keep, 0.0), new, add(total, new))


def _accumulated(keep: float, *shape: int, note: str = "", old: float = 1.0) -> Sample:
    def make(r: Any) -> list[Any]:
        total = (old * r.standard_normal(shape)).astype(np.float32)
        return [total, r.standard_normal(shape), np.float32(keep)]

    return Sample(make, gradient=False, note=note)


_accumulate = define(
    "accumulate",
    infer=_accumulate_infer,
    gradient=_STEP,
    fallback=_accumulate_composed,
    fused=True,
    samples=[
        _accumulated(1, 3, 5),
        _accumulated(0, 300, note="the first: what was there is not read", old=np.nan),
        _accumulated(1, note="0-d"),
        _accumulated(1, 0, 2, note="empty"),
    ],
    tolerance=dict.fromkeys(dtypes.FLOATS, 1e-7),
    doc="A running f32 sum of gradients; begun anew with g where keep is 0.",
    alias={0: 0},
)


def accumulate(total: Any, g: Any, keep: Any) -> Any:
    """`total` f32 plus `g` (f32 or bf16, of its shape); `g` alone if `keep` f32 () is 0.

    Where `total` is a state, it is updated in place.

    >>> accumulate(np.zeros(3, np.float32), np.ones(3, np.float32), np.float32(0))
    <accumulate f32[3]>
    """
    return _accumulate(total, g, keep)


# --- AdamW ---------------------------------------------------------------------------------------


def _adamw_infer(
    p: Spec, g: Spec, m: Spec, v: Spec, rates: Spec, scale: Spec, beta1: float, beta2: float, eps: float,
    decay: float, first: int,
) -> tuple[Spec, Spec, Spec]:  # fmt: skip
    one_of("adamw", (f32,), p, m, v, rates, scale)
    one_of("adamw", _GRADIENTS, g)
    has_shape("adamw", "g", g, p.shape)
    if m.shape != p.shape or first:
        rows, all_rows = (s.shape[0] if s.ndim else 0 for s in (m, p))
        if isinstance(rows, Dim) or isinstance(all_rows, Dim) or not 0 <= first <= all_rows - rows:
            raise ShapeError(f"[adamw] m {m.shape} from row {first} on; p has shape {p.shape}")
        has_shape("adamw", "m", m, (rows, *p.shape[1:]))
    has_shape("adamw", "v", v, m.shape)
    has_shape("adamw", "rates", rates, (3,))
    has_shape("adamw", "scale", scale, ())
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1 and eps > 0 and decay >= 0):
        raise ShapeError(
            f"[adamw] beta1 {beta1}, beta2 {beta2}, eps {eps}, decay {decay}; wanted 0 <= beta < 1, eps > 0"
            " and decay >= 0"
        )
    return p, m, v


def _adamw_composed(
    p: Node, g: Node, m: Node, v: Node, rates: Node, scale: Node, beta1: float, beta2: float, eps: float,
    decay: float, first: int,
) -> tuple[Any, ...]:  # fmt: skip
    if m.shape != p.shape:
        stop: Size = first + m.shape[0]
        inside = _adamw_composed(
            _rows(p, first, stop), _rows(g, first, stop), m, v, rates, scale, beta1, beta2, eps, decay, 0
        )
        whole = concat([_rows(p, 0, first), inside[0], _rows(p, stop, p.shape[0])])
        return whole, *inside[1:]
    lr, m_rise, v_rise = (take(rates, np.int32(i), axis=0) for i in range(3))
    scaled = mul(cast(g, f32), scale)
    new_m = add(mul(m, beta1), mul(scaled, 1 - beta1))
    new_v = add(mul(v, beta2), mul(mul(scaled, scaled), 1 - beta2))
    step = div(mul(new_m, m_rise), add(sqrt(mul(new_v, v_rise)), eps))
    new_p = sub(mul(p, sub(1.0, mul(lr, decay))), mul(lr, step))
    go = gt(scale, 0.0)
    return where(go, new_p, p), where(go, new_m, m), where(go, new_v, v)


def _rows(x: Node, first: Size, stop: Size) -> Any:
    starts: Any = (first, *(0 for _ in x.shape[1:]))
    return slice(x, starts, (stop, *x.shape[1:]))


def _adamw_sample(
    *shape: int, scale: float = 0.5, g: float = 1.0, decay: float = 0.01, step: int = 3,
    page: tuple[int, int] | None = None, note: str = "",
) -> Sample:  # fmt: skip
    first, rows = page or (0, shape[0] if shape else 0)
    held = (rows, *shape[1:]) if shape else ()
    attrs = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": decay, "first": first}

    def make(r: Any) -> list[Any]:
        p, m = (r.standard_normal(s).astype(np.float32) for s in (shape, held))
        v = np.square(r.standard_normal(held)).astype(np.float32)
        rates = np.array([1e-2, 1 / (1 - 0.9**step), 1 / (1 - 0.999**step)], np.float32)
        gradient = np.full(shape, np.nan) if np.isnan(g) else g * r.standard_normal(shape)
        return [p, gradient, m, v, rates, np.float32(scale)]

    return Sample(make, attrs, gradient=False, note=note)


_adamw = define(
    "adamw",
    attrs={"beta1": float, "beta2": float, "eps": float, "decay": float, "first": int},
    infer=_adamw_infer,
    gradient=_STEP,
    fallback=_adamw_composed,
    fused=True,
    samples=[
        _adamw_sample(3, 5),
        _adamw_sample(1031, decay=0.0, step=1),
        _adamw_sample(note="0-d"),
        _adamw_sample(0, 3, note="empty"),
        _adamw_sample(7, 5, page=(2, 4), note="a page of moments"),
        _adamw_sample(300, page=(299, 1), scale=0, note="a page, and no step"),
        _adamw_sample(70, scale=0, g=float("nan"), note="no step: nothing changes, whatever g holds"),
        _adamw_sample(40, scale=1, g=1e18, note="as large as a gradient may be"),
    ],
    tolerance=dict.fromkeys(dtypes.FLOATS, 2e-6),
    doc="One step of AdamW (arXiv:1711.05101) of a parameter and its two moments, in place.",
    alias={0: 0, 1: 2, 2: 3},
)


def adamw(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    rates: Any,
    scale: Any,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.0,
    first: int = 0,
) -> Any:
    """(p, m, v) after one step of AdamW with decoupled decay, all f32 of one shape; `g` is f32 or bf16.

    Moments may be those of some rows alone, from row `first` on: then only those rows of p move.

    `rates` f32 [3] holds the learning rate and the bias corrections 1 / (1 - beta1^t) and
    1 / (1 - beta2^t) of step t = 1, 2, ... With u = g * scale (f32 ()):

        m = beta1 m + (1 - beta1) u         v = beta2 v + (1 - beta2) u^2
        p = p (1 - lr decay) - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

    A `scale` that is not above 0 leaves all three as they are. |u| must be below 1e18: its square is finite.

    >>> x = np.zeros(3, np.float32)
    >>> adamw(x, x, x, x, np.array([1e-3, 10, 1000], np.float32), np.float32(1))
    (<item f32[3]>, <item f32[3]>, <item f32[3]>)
    """
    attrs: dict[str, Any] = {"beta1": float(beta1), "beta2": float(beta2), "eps": float(eps)}
    attrs |= {"decay": float(decay), "first": first}
    nodes, wrap = unwrap("adamw", [p, g, m, v, rates, scale])
    return wrap(_adamw.node(nodes, attrs))
