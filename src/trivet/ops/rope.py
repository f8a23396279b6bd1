"""Rotary position embedding (arXiv:2104.09864): frequencies, the table of angles, and the rotation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from trivet.dtypes import f32, f64
from trivet.errors import InputError, ShapeError
from trivet.graph import Node, Spec
from trivet.ops.elementwise import add, cast, cos, mul, neg, sin, sub
from trivet.ops.movement import broadcast_to, concat, reshape, slice
from trivet.ops.reduce import sum
from trivet.ops.rules import INTS, floating, has_rank, has_shape, one_of, tolerance
from trivet.ops.table import GradientContext, NoGradient, Sample, Typed, define, unwrap

# --- frequencies ---------------------------------------------------------------------------------


def rope_frequencies(dim: int, theta: float, scaling: Mapping[str, Any] | None = None) -> tuple[Any, float]:
    """The inverse frequencies [dim / 2] in float64, and the factor on cosine and sine.

    `scaling` has "type" (or "rope_type") and what that type wants:

    - "default": nothing
    - "linear": factor
    - "yarn" (arXiv:2309.00071): factor, original_context; optional beta_fast 32, beta_slow 1,
      attention_factor (default 0.1 ln(factor) + 1), mscale and mscale_all_dim, truncate true
    - "llama3": factor, low_freq_factor, high_freq_factor, original_context
    - "factors": factors, a divisor for each frequency (GGUF's rope_freqs); optional attention_factor

    original_context is also taken under its Hugging Face name, original_max_position_embeddings.

    >>> rope_frequencies(4, 10000.0)
    (array([1.  , 0.01]), 1.0)
    """
    if dim < 2 or dim % 2:
        raise InputError(f"[rope_frequencies] dim {dim}, wanted an even number of at least 2")
    if not (theta > 0 and math.isfinite(theta)):
        raise InputError(f"[rope_frequencies] theta {theta}, wanted a positive number")
    base = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if scaling is None:
        return base, 1.0
    scaling = {_NAMES.get(key, key): value for key, value in scaling.items()}
    kind = scaling.get("type", "default")
    rules = {"default": _default, "linear": _linear, "yarn": _yarn, "llama3": _llama3, "factors": _factors}
    if kind not in rules:
        raise InputError(f"[rope_frequencies] rope_type {kind!r}, wanted one of {', '.join(rules)}")
    return rules[kind](base, theta, scaling)


_NAMES = {"rope_type": "type", "original_max_position_embeddings": "original_context"}


def _need(scaling: Mapping[str, Any], key: str) -> float:
    value = scaling.get(key)
    if not isinstance(value, int | float) or not (value > 0 and math.isfinite(value)):
        raise InputError(f"[rope_frequencies] scaling[{key!r}] is {value!r}, wanted a positive number")
    return float(value)


def _default(base: Any, theta: float, scaling: Mapping[str, Any]) -> tuple[Any, float]:
    return base, 1.0


def _linear(base: Any, theta: float, scaling: Mapping[str, Any]) -> tuple[Any, float]:
    return base / _need(scaling, "factor"), 1.0


def _factors(base: Any, theta: float, scaling: Mapping[str, Any]) -> tuple[Any, float]:
    factors = np.asarray(scaling.get("factors"), np.float64)
    if factors.shape != base.shape or not (factors > 0).all():
        raise InputError(
            f"[rope_frequencies] factors of shape {factors.shape}, wanted {base.shape}, all positive"
        )
    return base / factors, float(scaling.get("attention_factor") or 1.0)


def _yarn(base: Any, theta: float, scaling: Mapping[str, Any]) -> tuple[Any, float]:
    """Fast frequencies stay, slow ones are divided by the factor, and a ramp over the index joins them."""
    factor, context = _need(scaling, "factor"), _need(scaling, "original_context")
    dim = 2 * len(base)
    if theta == 1:
        raise InputError("[rope_frequencies] theta is 1, of which yarn can make nothing")
    fast, slow = (_turns(scaling, key, default) for key, default in (("beta_fast", 32), ("beta_slow", 1)))

    def index(turns: float) -> float:
        """The index of the frequency that makes `turns` turns over the original context."""
        return dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = index(fast), index(slow)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(len(base)) - low) / max(high - low, 0.001), 0, 1)
    return base / factor * ramp + base * (1 - ramp), _yarn_scale(factor, scaling)


def _turns(scaling: Mapping[str, Any], key: str, default: float) -> float:
    value = _need({key: scaling.get(key) or default}, key)
    if not 1e-9 < value < 1e9:
        raise InputError(f"[rope_frequencies] scaling[{key!r}] is {value!r}, wanted 1e-9 to 1e9")
    return value


def _yarn_scale(factor: float, scaling: Mapping[str, Any]) -> float:
    if scaling.get("attention_factor") is not None:
        return _need(scaling, "attention_factor")

    def scale(m: float) -> float:
        return 0.1 * m * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return scale(_need(scaling, "mscale")) / scale(_need(scaling, "mscale_all_dim"))
    return scale(1.0)


def _llama3(base: Any, theta: float, scaling: Mapping[str, Any]) -> tuple[Any, float]:
    """Wavelengths up to context/high stay, from context/low on are divided, and between them blend."""
    factor, context = _need(scaling, "factor"), _need(scaling, "original_context")
    low, high = _need(scaling, "low_freq_factor"), _need(scaling, "high_freq_factor")
    if not low < high:
        raise InputError(f"[rope_frequencies] low_freq_factor {low} is not below high_freq_factor {high}")
    turns = context * base / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - smooth) * base / factor + smooth * base, 1.0


# --- rope_table ----------------------------------------------------------------------------------


def _table_infer(positions: Spec, inv_freq: Spec, scale: float) -> tuple[Spec, Spec]:
    one_of("rope_table", INTS, positions)
    one_of("rope_table", (f64,), inv_freq)
    has_rank("rope_table", "inv_freq", inv_freq, (1,))
    spec = Spec((*positions.shape, *inv_freq.shape), f32)
    return spec, spec


def _table_composed(positions: Node, inv_freq: Node, scale: float) -> tuple[Any, Any]:
    angle = mul(cast(reshape(positions, (*positions.shape, 1)), f64), inv_freq)
    return cast(mul(cos(angle), scale), f32), cast(mul(sin(angle), scale), f32)


def _frequencies(d: int) -> Typed:
    return Typed(rope_frequencies(2 * d, 1e4)[0], f64, (d,))


_rope_table = define(
    "rope_table",
    attrs={"scale": float},
    infer=_table_infer,
    gradient=NoGradient("positions are integers and frequencies constants"),
    fallback=_table_composed,
    samples=[
        Sample(lambda r: (np.arange(7, dtype=np.int32), _frequencies(4)), {"scale": 1.0}),
        Sample(
            lambda r: (np.array([[0, 131071, 2**20]], np.int32), _frequencies(16)),
            {"scale": 1.25},
            note="far",
        ),
        Sample(lambda r: (np.zeros((0,), np.int32), _frequencies(2)), {"scale": 1.0}, note="empty"),
    ],
    tolerance={f32: 1e-6},
    doc="Cosines and sines of positions times inverse frequencies, with the angle in f64.",
)


def rope_table(positions: Any, inv_freq: Any, scale: float = 1.0) -> Any:
    """(cos, sin), f32 [..., T, d], of the angles `positions` [..., T] × `inv_freq` f64 [d], times `scale`.

    The angle is computed in float64: at position 100,000 a float32 angle is off by a hundredth.

    >>> rope_table(np.arange(5), rope_frequencies(8, 1e4)[0])
    (<item f32[5, 4]>, <item f32[5, 4]>)
    """
    return _rope_table(positions, inv_freq, scale=float(scale))


# --- rope ----------------------------------------------------------------------------------------


def _infer(x: Spec, cos: Spec, sin: Spec, interleaved: bool) -> Spec:
    floating("rope", x)
    one_of("rope", (f32,), cos, sin)
    if x.ndim < 3 or cos.ndim < 1:
        raise ShapeError(f"[rope] x {x.shape} and cos {cos.shape}, wanted [..., T, H, D] and [..., T, d]")
    d, whole = cos.shape[-1], x.shape[-1]
    for name, spec in (("cos", cos), ("sin", sin)):
        has_shape("rope", name, spec, (*x.shape[:-2], d))
    if not isinstance(d, int) or not isinstance(whole, int) or 2 * d > whole:
        raise ShapeError(f"[rope] cos {cos.shape} rotates 2*{d} elements of the {whole} in x {x.shape}")
    return x


def _halves(x: Node, d: int, interleaved: bool) -> tuple[Any, Any, Any]:
    """The two coordinates of each of the d planes, and the rest or None."""
    lead, whole = x.shape[:-1], x.shape[-1]
    turned = _last(x, 0, 2 * d)
    rest = _last(x, 2 * d, whole) if whole != 2 * d else None
    if not interleaved:
        return _last(turned, 0, d), _last(turned, d, 2 * d), rest
    pairs = reshape(turned, (*lead, d, 2))
    return reshape(_last(pairs, 0, 1), (*lead, d)), reshape(_last(pairs, 1, 2), (*lead, d)), rest


def _last(x: Node, start: int, stop: Any) -> Any:
    return slice(x, [*[0] * (x.ndim - 1), start], [*x.shape[:-1], stop])


def _join(a: Node, b: Node, rest: Node | None, interleaved: bool) -> Any:
    if interleaved:
        pair = [reshape(p, (*p.shape, 1)) for p in (a, b)]
        turned = reshape(concat(pair, -1), (*a.shape[:-1], 2 * a.shape[-1]))
    else:
        turned = concat([a, b], -1)
    return turned if rest is None else concat([turned, rest], -1)


def _planes(x: Node, c: Node, s: Node, interleaved: bool) -> tuple[Any, ...]:
    """Coordinates and the table, in f32 or wider, ready to multiply."""
    d = c.shape[-1]
    assert isinstance(d, int)
    wide = f64 if x.dtype is f64 else f32
    heads = (*c.shape[:-1], 1, d)
    a, b, rest = _halves(x, d, interleaved)
    return cast(a, wide), cast(b, wide), rest, cast(reshape(c, heads), wide), cast(reshape(s, heads), wide)


def _composed(x: Node, cos: Node, sin: Node, interleaved: bool) -> Any:
    a, b, rest, c, s = _planes(x, cos, sin, interleaved)
    first, second = sub(mul(a, c), mul(b, s)), add(mul(b, c), mul(a, s))
    return _join(cast(first, x.dtype), cast(second, x.dtype), rest, interleaved)


def _gradient(ctx: GradientContext) -> list[Node | None]:
    """The rotation back; and, if the table wants it, how far each plane turned."""
    (x, cos, sin), interleaved = ctx.inputs, bool(ctx.attrs["interleaved"])
    dx = _rope.node([ctx.g, cos, neg(sin)], ctx.attrs)
    assert isinstance(dx, Node)
    if not (ctx.needs[1] or ctx.needs[2]):
        return [dx, None, None]
    a, b, *_ = _planes(x, cos, sin, interleaved)
    ga, gb, *_ = _planes(ctx.g, cos, sin, interleaved)
    dcos, dsin = add(mul(ga, a), mul(gb, b)), sub(mul(gb, a), mul(ga, b))
    return [dx, cast(sum(dcos, -2), f32), cast(sum(dsin, -2), f32)]


def _sample(x: tuple[int, ...], d: int, interleaved: bool, note: str = "") -> Sample:
    def make(r: Any) -> list[Any]:
        angle = r.uniform(-4, 4, (*x[:-2], d))
        return [r.standard_normal(x), np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)]

    return Sample(make, {"interleaved": interleaved}, note=note)


_rope = define(
    "rope",
    attrs={"interleaved": bool},
    infer=_infer,
    gradient=_gradient,
    fallback=_composed,
    fused=True,
    samples=[
        _sample((5, 3, 8), 4, False),
        _sample((5, 3, 8), 4, True),
        _sample((2, 3, 1, 10), 3, False, "part of the head"),
        _sample((2, 3, 1, 10), 3, True, "part of the head"),
        _sample((1, 2, 34), 17, False, "one token, odd"),
        _sample((0, 2, 4), 2, True, "empty"),
    ],
    tolerance=tolerance(1e-6),
    doc="Rotates the first 2d elements of each head by its token's angles and passes the rest.",
)


def rope(x: Any, cos: Any, sin: Any, interleaved: bool = False) -> Any:
    """Rotates the first 2d elements of `x` [..., T, H, D] by angles given as `cos` and `sin` f32 [..., T, d].

    Plane i is elements (i, i + d), or (2i, 2i + 1) if `interleaved`; elements from 2d on pass. The table
    may lack leading axes of `x`.

    >>> rope(np.zeros((2, 5, 3, 8), np.float32), *rope_table(np.arange(5), rope_frequencies(8, 1e4)[0]))
    <rope f32[2, 5, 3, 8]>
    """
    (node, c, s), wrap = unwrap("rope", [x, cos, sin])
    want = (*node.shape[:-2], *c.shape[-1:])
    c, s = (t if t.shape == want else broadcast_to(t, want) for t in (c, s))
    return wrap(_rope.node([node, c, s], {"interleaved": interleaved}))
