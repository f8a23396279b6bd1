"""Attention with grouped heads, causal or not, with a window, a soft cap, ALiBi slopes and key lengths.

Query i of T stands at position p = i + (S - T) of the S keys. It sees key j if

    (not causal or j <= p) and (window == 0 or p - j < window) and (no lengths or j < length)
        and (no starts or j >= starts[i])

The score is s = scale * q.k, then softcap * tanh(s / softcap) if softcap, then + slope * (j - p) if there are
slopes. A query that sees nothing gives 0 and lse -inf. Backends compute it in memory linear in T and S
(arXiv:2205.14135); the fallback, its definition, does not.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from trivet import dtypes
from trivet.dtypes import f32, f64, i32
from trivet.errors import ShapeError, UnsupportedError
from trivet.graph import Node, Spec
from trivet.ops.elementwise import (
    INF,
    add,
    cast,
    div,
    eq,
    exp,
    iota,
    le,
    lt,
    mul,
    sub,
    tanh,
    where,
)
from trivet.ops.matmul import matmul
from trivet.ops.movement import permute, reshape
from trivet.ops.reduce import logsumexp, sum
from trivet.ops.rules import SECOND, floating, has_rank, has_shape, one_of, size_of, tolerance
from trivet.ops.table import GradientContext, Sample, define, unwrap

ATTRS = {
    "scale": float,
    "causal": bool,
    "window": int,
    "softcap": float,
    "lengths": bool,
    "starts": bool,
    "alibi": bool,
}


def grouped(op: str, heads: Any, kv_heads: Any) -> int:
    """How many query heads share a key head."""
    if not isinstance(heads, int) or not isinstance(kv_heads, int) or kv_heads < 1 or heads % kv_heads:
        raise ShapeError(f"[{op}] {heads} query heads do not divide among {kv_heads} key heads")
    return heads // kv_heads


def _check(op: str, q: Spec, k: Spec, v: Spec, rest: tuple[Spec, ...], attrs: dict[str, Any]) -> Spec:
    """Checks the shapes; gives the spec of o."""
    floating(op, q, k, v)
    for name, spec in (("q", q), ("k", k), ("v", v)):
        has_rank(op, name, spec, (4,))
    batch, t, heads, d = q.shape
    s, kv = k.shape[1:3]
    grouped(op, heads, kv)
    has_shape(op, "k", k, (batch, s, kv, d))
    has_shape(op, "v", v, (batch, s, kv, v.shape[3]))
    options = {"lengths": ("key_lengths", i32, (batch,)), "starts": ("starts", i32, (batch, t))}
    options["alibi"] = ("slopes", f32, (heads,))
    named = [n for n in options if attrs[n]]
    if len(rest) != len(named):
        raise ShapeError(f"[{op}] got {len(rest)} optional inputs for the flags {named}")
    for flag, spec in zip(named, rest, strict=True):
        name, dtype, shape = options[flag]
        one_of(op, (dtype,), spec)
        has_shape(op, name, spec, shape)
    if attrs["window"] < 0 or attrs["softcap"] < 0:
        raise ShapeError(f"[{op}] window {attrs['window']} and softcap {attrs['softcap']} must be at least 0")
    return Spec((batch, t, heads, v.shape[3]), q.dtype)


def _infer(q: Spec, k: Spec, v: Spec, *rest: Spec, **attrs: Any) -> tuple[Spec, Spec]:
    out = _check("attention", q, k, v, rest, attrs)
    return out, Spec(out.shape[:3], f32)


# --- the definition ------------------------------------------------------------------------------


class _Scores(NamedTuple):
    """Scores [B, Hkv, G, T, S] with -inf where a query does not see, and the tanh of the soft cap."""

    masked: Node
    capped: Node | None


def _split(x: Node, group: int) -> Any:
    """[B, T, H, D] as [B, Hkv, G, T, D]; with group 0, keys as [B, Hkv, 1, S, D]. In f32 or wider."""
    b, t, h, d = x.shape
    parts = reshape(x, (b, t, h // group, group, d) if group else (b, t, h, 1, d))
    return cast(permute(parts, (0, 2, 3, 1, 4)), f64 if x.dtype is f64 else f32)


def _merge(x: Node) -> Any:
    """[B, Hkv, G, T, D] as [B, T, H, D]."""
    b, kv, group, t, d = x.shape
    return reshape(permute(x, (0, 3, 1, 2, 4)), (b, t, kv * group, d))


def masked_scores(s: Node, seen: list[Any], softcap: float, bias: Any) -> _Scores:
    """Soft cap, then bias, then -inf where not all of `seen` hold."""
    capped = tanh(div(s, softcap)) if softcap else None
    if capped is not None:
        s = mul(capped, softcap)
    if bias is not None:
        s = add(s, bias)
    for mask in seen:
        s = where(mask, s, -INF)
    return _Scores(s, capped)


def visible(position: Any, key: Any, causal: bool, window: int) -> list[Any]:
    """The masks that a query at `position` puts on `key`."""
    seen = [le(key, position)] if causal else []
    return [*seen, lt(sub(position, key), window)] if window else seen


def _scores(q: Node, k: Node, rest: tuple[Node, ...], attrs: dict[str, Any]) -> _Scores:
    t, s = q.shape[1], k.shape[1]
    group = grouped("attention", q.shape[2], k.shape[2])
    raw = mul(matmul(_split(q, group), _split(k, 0), transpose_b=True), attrs["scale"])
    position = sub(add(iota((t, 1), 0, i32), size_of([s], i32)), size_of([t], i32))
    key = iota((1, s), 1, i32)
    seen = visible(position, key, attrs["causal"], attrs["window"])
    if attrs["lengths"]:
        seen.append(lt(key, reshape(rest[0], (q.shape[0], 1, 1, 1, 1))))
    if attrs["starts"]:
        seen.append(le(reshape(rest[attrs["lengths"]], (q.shape[0], 1, 1, t, 1)), key))
    bias = None
    if attrs["alibi"]:
        slopes = reshape(rest[-1], (k.shape[2], group, 1, 1))
        bias = cast(mul(slopes, cast(sub(key, position), f32)), raw.dtype)
    return masked_scores(raw, seen, attrs["softcap"], bias)


def weights_of(masked: Node, lse: Node) -> Any:
    """exp(s - lse), 0 in a row that sees nothing."""
    return exp(sub(masked, where(eq(lse, -INF), 0.0, lse)))


def _composed(q: Node, k: Node, v: Node, *rest: Node, **attrs: Any) -> tuple[Any, Any]:
    masked = _scores(q, k, rest, attrs).masked
    lse = logsumexp(masked, -1, keepdims=True)
    values = _split(v, 0)
    if attrs["lengths"]:  # padding may hold anything, NaN included
        inside = lt(iota((v.shape[1], 1), 0, i32), reshape(rest[0], (v.shape[0], 1, 1, 1, 1)))
        values = where(inside, values, 0.0)
    o = _merge(matmul(weights_of(masked, lse), values))
    return cast(o, q.dtype), cast(reshape(_merge(lse), q.shape[:3]), f32)


def _gradient(c: GradientContext) -> list[Node | None]:
    if c.gs[0] is None or c.gs[1] is not None:
        raise UnsupportedError("[attention] the gradient of lse is not there; only o may be differentiated")
    back = _attention_backward.node([c.gs[0], *c.inputs[:3], *c.ys, *c.inputs[3:]], c.attrs)
    return [*back, *[None] * (len(c.inputs) - 3)]  # type: ignore[misc]


# --- samples -------------------------------------------------------------------------------------


def _inputs(
    r: Any, shape: tuple[int, ...], lengths: Any = None, starts: Any = None, alibi: bool = False
) -> list[Any]:
    b, t, s, h, kv, d, dv = shape
    out = [
        r.standard_normal((b, t, h, d)),
        r.standard_normal((b, s, kv, d)),
        r.standard_normal((b, s, kv, dv)),
    ]
    out += [np.array(x, np.int32) for x in (lengths, starts) if x is not None]
    return [*out, (2.0 ** -np.arange(1, h + 1)).astype(np.float32)] if alibi else out


def _sample(
    shape: tuple[int, ...],
    note: str = "",
    *,
    lengths: Any = None,
    starts: Any = None,
    alibi: bool = False,
    backward: bool = False,
    **attrs: Any,
) -> Sample:
    """`shape` is (B, T, S, H, Hkv, D, Dv)."""
    flags = {"scale": 0.3, "causal": True, "window": 0, "softcap": 0.0, **attrs}
    flags |= {"lengths": lengths is not None, "starts": starts is not None, "alibi": alibi}

    def make(r: Any) -> list[Any]:
        inputs = _inputs(r, shape, lengths, starts, alibi)
        if not backward:
            return inputs
        b, t, _, h, _, _, dv = shape
        o, lse = _numbers(inputs, flags)
        return [r.standard_normal((b, t, h, dv)), *inputs[:3], o, lse.astype(np.float32), *inputs[3:]]

    return Sample(make, flags, note=note)


def _numbers(inputs: list[Any], attrs: dict[str, Any]) -> tuple[Any, Any]:
    """What attention gives for a sample, so that the backward rows get a true (o, lse)."""
    q, k, v = inputs[:3]
    (_, t, h, _), (s, kv) = q.shape, k.shape[1:3]
    k, v = np.repeat(k, h // kv, 2), np.repeat(v, h // kv, 2)
    score = attrs["scale"] * np.einsum("bthd,bshd->bhts", q, k)
    if attrs["softcap"]:
        score = attrs["softcap"] * np.tanh(score / attrs["softcap"])
    far = np.arange(s) - (np.arange(t)[:, None] + s - t)
    if attrs["alibi"]:
        score = score + inputs[-1][:, None, None] * far
    seen = (far <= 0) | (not attrs["causal"])
    if attrs["window"]:
        seen &= -far < attrs["window"]
    seen = np.broadcast_to(seen, score.shape)
    if attrs["lengths"]:
        seen = seen & (np.arange(s) < inputs[3][:, None, None, None])
    if attrs["starts"]:
        seen = seen & (np.arange(s) >= inputs[3 + attrs["lengths"]][:, None, :, None])
    with np.errstate(divide="ignore"):
        lse = np.log(np.sum(np.where(seen, np.exp(score), 0.0), -1, keepdims=True))
    p = np.where(seen, np.exp(score - np.where(np.isinf(lse), 0, lse)), 0.0)
    return np.einsum("bhts,bshd->bthd", p, v), lse[..., 0].swapaxes(1, 2)


def _samples(backward: bool) -> list[Sample]:
    return [
        _sample((2, 5, 5, 4, 2, 8, 8), backward=backward),
        _sample((1, 3, 7, 4, 1, 6, 5), "a prefix in the cache, one key head", backward=backward),
        _sample((1, 1, 9, 3, 3, 4, 4), "one step", backward=backward),
        _sample((2, 4, 6, 2, 2, 3, 3), causal=False, backward=backward),
        _sample((1, 7, 7, 2, 1, 4, 4), window=3, backward=backward),
        _sample((1, 4, 6, 2, 1, 4, 4), causal=False, window=2, backward=backward),
        _sample((1, 5, 5, 2, 1, 4, 4), softcap=0.7, backward=backward),
        _sample((1, 5, 8, 4, 2, 4, 4), alibi=True, backward=backward),
        _sample(
            (3, 4, 4, 2, 1, 4, 4), "one sees nothing", causal=False, lengths=[4, 0, 2], backward=backward
        ),
        _sample((2, 4, 5, 2, 2, 4, 4), lengths=[5, 3], alibi=True, softcap=1.5, window=4, backward=backward),
        _sample((1, 5, 3, 2, 1, 4, 4), "more queries than keys", backward=backward),
        _sample((1, 0, 3, 2, 1, 4, 4), "no queries", backward=backward),
        _sample((1, 2, 0, 2, 1, 4, 4), "no keys", backward=backward),
        _sample((1, 37, 83, 3, 1, 17, 9), "odd, several tiles", backward=backward),
        _sample((2, 6, 6, 2, 1, 4, 4), starts=[[0, 0, 2, 2, 2, 5], [0] * 6], backward=backward),
        _sample((1, 4, 7, 2, 1, 4, 4), lengths=[6], starts=[[1, 3, 3, 9]], alibi=True, backward=backward),
        _sample(
            (1, 200, 200, 2, 1, 8, 8),
            "sequences packed one behind the other",
            starts=[[0] * 30 + [30] * 100 + [130] * 70],
            backward=backward,
        ),
    ]


def _huge(r: Any) -> list[Any]:
    return [x * s for x, s in zip(_inputs(r, (1, 4, 4, 2, 1, 4, 4)), (100.0, 100.0, 1.0), strict=True)]


def _padded(r: Any) -> list[Any]:
    q, k, v, lengths = _inputs(r, (2, 3, 5, 2, 1, 4, 4), [5, 2])
    k[1, 2:], v[1, 2:] = INF, np.nan
    return [q, k, v, lengths]


_attention = define(
    "attention",
    attrs=ATTRS,
    infer=_infer,
    gradient=_gradient,
    fallback=_composed,
    fused=True,
    samples=[
        *_samples(False),
        Sample(_huge, _samples(False)[0].attrs, gradient=False, note="scores of thousands"),
        Sample(_padded, _samples(False)[8].attrs, gradient=False, note="what padding holds does not matter"),
    ],
    tolerance=tolerance(1e-5),
    doc="Attention with grouped heads; gives o and the log-sum-exp of each query's scores.",
)


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    key_lengths: Any = None,
    starts: Any = None,
    slopes: Any = None,
    scale: float | None = None,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
) -> Any:
    """Attention of `q` [B, T, H, D] over `k` [B, S, Hkv, D] and `v` [B, S, Hkv, Dv]: o [B, T, H, Dv].

    H is a multiple of Hkv. `key_lengths` i32 [B] hides keys from there on. `starts` i32 [B, T] hides the keys
    before a query's own start, so that sequences packed one behind the other do not see each other; along T
    it must not decrease. `slopes` f32 [H] are ALiBi's (arXiv:2108.12409); `scale` is 1/sqrt(D) unless given;
    `window` and `softcap` 0 mean none. Queries stand at the end of the keys: query i is at i + (S - T).

    >>> x = np.zeros((1, 5, 2, 8), np.float32)
    >>> attention(np.zeros((1, 5, 6, 8), np.float32), x, x, causal=True)
    <item f32[1, 5, 6, 8]>
    """
    optional = [x for x in (key_lengths, starts, slopes) if x is not None]
    nodes, wrap = unwrap("attention", [q, k, v, *optional])
    attrs = {"causal": causal, "window": window, "softcap": float(softcap)}
    attrs |= {"lengths": key_lengths is not None, "starts": starts is not None, "alibi": slopes is not None}
    attrs["scale"] = float(scale) if scale is not None else default_scale("attention", nodes[0])
    out = _attention.node(nodes, attrs)
    assert isinstance(out, tuple)
    return wrap(out[0])


def default_scale(op: str, q: Node) -> float:
    """1 / sqrt(D)."""
    d = q.shape[-1] if q.ndim else 0
    if not isinstance(d, int) or d < 1:
        raise ShapeError(f"[{op}] q has shape {q.shape}, wanted [..., H, D] with D of at least 1")
    return 1 / math.sqrt(d)


# --- backward ------------------------------------------------------------------------------------


def _backward_infer(
    g: Spec, q: Spec, k: Spec, v: Spec, o: Spec, lse: Spec, *rest: Spec, **attrs: Any
) -> tuple[Spec, ...]:
    out = _check("attention_backward", q, k, v, rest, attrs)
    floating("attention_backward", g, o, q)
    one_of("attention_backward", (f32,), lse)
    has_shape("attention_backward", "g", g, out.shape)
    has_shape("attention_backward", "o", o, out.shape)
    has_shape("attention_backward", "lse", lse, out.shape[:3])
    return q, k, v


def _backward_composed(
    g: Node, q: Node, k: Node, v: Node, o: Node, lse: Node, *rest: Node, **attrs: Any
) -> tuple[Any, ...]:
    group = grouped("attention_backward", q.shape[2], k.shape[2])
    masked, capped = _scores(q, k, rest, attrs)
    gs, total = _split(g, group), _split(reshape(lse, (*lse.shape, 1)), group)
    p = weights_of(masked, cast(total, masked.dtype))
    delta = sum(mul(gs, _split(o, group)), -1, keepdims=True)
    ds = mul(p, sub(matmul(gs, _split(v, 0), transpose_b=True), delta))
    if capped is not None:
        ds = mul(ds, sub(1.0, mul(capped, capped)))
    ds = mul(ds, attrs["scale"])
    dq = _merge(matmul(ds, _split(k, 0)))
    dk = sum(matmul(ds, _split(q, group), transpose_a=True), 2, keepdims=True)
    dv = sum(matmul(p, gs, transpose_a=True), 2, keepdims=True)
    return cast(dq, q.dtype), cast(_merge(dk), k.dtype), cast(_merge(dv), v.dtype)


_attention_backward = define(
    "attention_backward",
    attrs=ATTRS,
    infer=_backward_infer,
    gradient=SECOND,
    fallback=_backward_composed,
    fused=True,
    samples=_samples(True),
    tolerance={**tolerance(2e-5), dtypes.f16: 4e-3, dtypes.bf16: 4e-2, dtypes.f64: 1e-6},
    doc="The gradients of attention in q, k and v, given g, q, k, v, o and lse.",
)


def attention_backward(g: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, *optional: Any, **attrs: Any) -> Any:
    """(dq, dk, dv) of the row attention, for the gradient `g` of its o, in memory linear in T and S.

    `optional` are key_lengths, starts and slopes as the flags `lengths`, `starts` and `alibi` say; the other
    attributes are scale, causal, window and softcap. Slopes are constants.

    >>> x, lse = np.zeros((1, 5, 2, 8), np.float32), np.zeros((1, 5, 2), np.float32)
    >>> flags = dict(scale=1.0, causal=True, window=0, softcap=0.0, lengths=False, starts=False, alibi=False)
    >>> len(attention_backward(x, x, x, x, x, lse, **flags))
    3
    """
    return _attention_backward(g, q, k, v, o, lse, *optional, **attrs)
