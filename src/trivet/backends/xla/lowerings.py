"""What each row is in `jax.numpy`. One line a row where that is enough.

Floats of 16 bits come as float32 and are rounded to the row's dtype afterwards, by the program; the products
of `products.py` take them as they are, for the matrix units. Shapes and dtypes are checked already. An index
out of range cannot raise inside a program: it gives NaN (or zero, of integers) and writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from trivet import dtypes
from trivet.backends.xla import attention
from trivet.backends.xla.random import random_bits, random_normal, random_uniform
from trivet.backends.xla.types import jax_dtype


def _gelu(x: Any, approximate: bool) -> Any:
    return jax.nn.gelu(x, approximate=bool(approximate))


def _cast(x: Any, dtype: str) -> Any:
    """Floats to integers saturate, and NaN is 0."""
    target = dtypes.BY_NAME[dtype]
    if target.is_float or not jnp.issubdtype(x.dtype, jnp.floating):
        return x.astype(jax_dtype(target))
    if target.kind == "bool":
        return x != 0
    limits = jnp.iinfo(jax_dtype(target))
    inside = jnp.where(jnp.isnan(x) | (x >= limits.max) | (x <= limits.min), 0, x).astype(limits.dtype)
    return jnp.where(x >= limits.max, limits.max, jnp.where(x <= limits.min, limits.min, inside))


def _iota(shape: tuple[int, ...], axis: int, dtype: str) -> Any:
    return lax.broadcasted_iota(jax_dtype(dtypes.BY_NAME[dtype]), shape, axis)


def _pad(x: Any, low: Any, high: Any, value: float) -> Any:
    sides = list(zip(low, high, strict=True))
    return jnp.pad(x, sides, constant_values=jnp.asarray(value).astype(x.dtype)) if x.ndim else x


def _take(x: Any, indices: Any, axis: int) -> Any:
    """Of no rows JAX gives another shape."""
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return jnp.take(x, indices, axis, mode="fill").reshape(shape)


def _slice(x: Any, starts: Any, stops: Any, steps: Any) -> Any:
    return x[tuple(map(slice, starts, stops, steps))]


def _top_k(x: Any, k: int) -> tuple[Any, Any]:
    _, indices = lax.top_k(jnp.where(jnp.isnan(x), jnp.inf, x) + 0.0, k)  # -0 is no less than 0
    return jnp.take_along_axis(x, indices, -1), indices


# --- reductions ----------------------------------------------------------------------------------


def _reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axes, keepdims: function(x, axis=tuple(axes), keepdims=bool(keepdims))


def _sum(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    return jnp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _logsumexp(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    top = jnp.max(x, axis=axis, keepdims=True, initial=-jnp.inf)
    safe = jnp.where(jnp.isfinite(top), top, 0)
    total = safe + jnp.log(jnp.sum(jnp.exp(x - safe), axis=axis, keepdims=True))
    return total if keepdims else jnp.squeeze(total, axis)


def _causal_softmax(x: Any) -> Any:
    t, s = x.shape[-2:]
    seen = jnp.tril(jnp.ones((t, s), bool), s - t)
    return jnp.where(seen.any(-1, keepdims=True), _softmax(jnp.where(seen, x, -jnp.inf), -1), 0)


def _softmax(x: Any, axis: int) -> Any:
    e = jnp.exp(x - jnp.max(x, axis, keepdims=True, initial=-jnp.inf))
    return e / e.sum(axis, keepdims=True)


# --- rows of models ------------------------------------------------------------------------------


def _rows(x: Any) -> Any:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _rms(x: Any, eps: float) -> Any:
    return lax.rsqrt((x * x).mean(-1, keepdims=True) + eps)


def _rms_norm_backward(g: Any, x: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    scale = _rms(x, eps)
    normed, gw = x * scale, g * weight
    dx = scale * (gw - normed * (gw * normed).mean(-1, keepdims=True))
    return dx, _rows(g * normed).sum(0)


def _centred(x: Any) -> Any:
    return x - x.mean(-1, keepdims=True)


def _layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    centred = _centred(x)
    return centred * _rms(centred, eps) * weight + bias


def _layer_norm_backward(g: Any, x: Any, weight: Any, eps: float) -> tuple[Any, ...]:
    dx, dweight = _rms_norm_backward(g, _centred(x), weight, eps)
    return _centred(dx), dweight, _rows(g).sum(0)


def _rope(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    d = cos.shape[-1]
    c, s, turned = cos[..., None, :], sin[..., None, :], x[..., : 2 * d]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        out = jnp.stack([a * c - b * s, b * c + a * s], -1).reshape(turned.shape)
    else:
        a, b = turned[..., :d], turned[..., d:]
        out = jnp.concatenate([a * c - b * s, b * c + a * s], -1)
    return jnp.concatenate([out, x[..., 2 * d :]], -1)


def _slope(function: Callable[[Any], Any], x: Any) -> Any:
    """The derivative of an elementwise function."""
    return jax.jvp(function, (x,), (jnp.ones_like(x),))[1]


def _glu_backward(g: Any, gate: Any, up: Any, function: Callable[[Any], Any]) -> tuple[Any, Any]:
    return g * up * _slope(function, gate), g * function(gate)


def _cross_entropy(logits: Any, targets: Any, ignore_index: int) -> Any:
    counts = targets != ignore_index
    ids = jnp.where(counts, targets, 0)
    own = jnp.take_along_axis(logits, ids[:, None].astype(jnp.int32), 1, mode="fill")[:, 0]
    return jnp.where(counts, _logsumexp(logits, (1,), False) - own, 0)


def dlogits(g: Any, logits: Any, targets: Any, lse: Any, ignore_index: int) -> Any:
    """The gradient of cross_entropy in its logits."""
    counts = targets != ignore_index
    own = jnp.arange(logits.shape[1]) == targets[:, None]
    return jnp.where(counts[:, None], (jnp.exp(logits - lse[:, None]) - own) * g[:, None], 0)


def _cross_entropy_backward(g: Any, logits: Any, targets: Any, ignore_index: int) -> Any:
    return dlogits(g, logits, targets, _logsumexp(logits, (1,), False), ignore_index)


# --- the optimiser -------------------------------------------------------------------------------


def _grad_norm(*gs: Any) -> Any:
    peak = jnp.max(jnp.stack([jnp.max(jnp.abs(g), initial=0.0) for g in gs]))
    by = jnp.where(peak == 0, 1.0, peak)
    return peak, jnp.sqrt(jnp.stack([jnp.sum(jnp.square(g / by)) for g in gs]).sum())


def _adamw(
    p: Any, g: Any, m: Any, v: Any, rates: Any, scale: Any,
    beta1: float, beta2: float, eps: float, decay: float, first: int,
) -> Any:  # fmt: skip
    whole, rows = p, slice(first, first + len(m)) if p.ndim else ()
    p, g = p[rows], g[rows]
    go, u, (lr, m_rise, v_rise) = scale > 0, g * scale, rates
    m2, v2 = beta1 * m + (1 - beta1) * u, beta2 * v + (1 - beta2) * u * u
    p2 = p * (1 - lr * decay) - lr * (m2 * m_rise) / (jnp.sqrt(v2 * v_rise) + eps)
    p2, m2, v2 = jnp.where(go, p2, p), jnp.where(go, m2, m), jnp.where(go, v2, v)
    return (p2 if p2.shape == whole.shape else whole.at[rows].set(p2)), m2, v2


LOWERINGS: Mapping[str, Callable[..., Any]] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.divide, "pow": jnp.power,
    "maximum": jnp.maximum, "minimum": jnp.minimum, "neg": jnp.negative, "abs": jnp.abs, "exp": jnp.exp,
    "log": jnp.log, "sqrt": jnp.sqrt, "rsqrt": lax.rsqrt, "sin": jnp.sin, "cos": jnp.cos,
    "tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid, "erf": lax.erf, "relu": lambda x: jnp.maximum(x, 0),
    "silu": jax.nn.silu, "gelu_erf": lambda x: _gelu(x, False), "gelu_tanh": lambda x: _gelu(x, True),
    "eq": jnp.equal, "ne": jnp.not_equal, "lt": jnp.less, "le": jnp.less_equal, "gt": jnp.greater,
    "ge": jnp.greater_equal, "logical_and": jnp.logical_and, "logical_or": jnp.logical_or,
    "logical_not": jnp.logical_not, "where": jnp.where, "cast": _cast, "iota": _iota,
    "sum": _reduce(_sum), "mean": _reduce(jnp.mean), "max": _reduce(jnp.max), "min": _reduce(jnp.min),
    "logsumexp": _reduce(_logsumexp),
    "argmax": lambda x, axis, keepdims: jnp.argmax(x, axis=axis, keepdims=bool(keepdims)),
    "after": lambda x, g: x, "grad_norm": _grad_norm, "adamw": _adamw,
    "accumulate": lambda total, g, keep: jnp.where(keep, total + g, g),
    "reshape": lambda x, shape: x.reshape(shape), "permute": lambda x, axes: x.transpose(axes),
    "broadcast_to": lambda x, shape: jnp.broadcast_to(x, shape), "slice": _slice, "pad": _pad,
    "concat": lambda *xs, axis: jnp.concatenate(xs, axis),
    "take": _take, "top_k": _top_k,
    "scatter_add": lambda x, indices, updates, axis: (
        x.at[(*[slice(None)] * axis, indices)].add(updates, mode="drop")
    ),
    "softmax": _softmax, "causal_softmax": _causal_softmax,
    "log_softmax": jax.nn.log_softmax,
    "rms_norm": lambda x, weight, eps: x * _rms(x, eps) * weight, "rms_norm_backward": _rms_norm_backward,
    "layer_norm": _layer_norm, "layer_norm_backward": _layer_norm_backward,
    "rope_table": attention.rope_table, "rope": _rope,
    "swiglu": lambda gate, up: jax.nn.silu(gate) * up,
    "swiglu_backward": lambda g, gate, up: _glu_backward(g, gate, up, jax.nn.silu),
    "gelu_backward": lambda g, x, approximate: g * _slope(lambda y: _gelu(y, approximate), x),
    "geglu": lambda gate, up, approximate: _gelu(gate, approximate) * up,
    "geglu_backward": lambda g, gate, up, approximate: (
        _glu_backward(g, gate, up, lambda x: _gelu(x, approximate))
    ),
    "cross_entropy": _cross_entropy, "cross_entropy_backward": _cross_entropy_backward,
    "kv_append": attention.kv_append, "paged_attention": attention.paged_attention,
    "random_bits": random_bits, "random_uniform": random_uniform, "random_normal": random_normal,
}  # fmt: skip
