"""What each row means: NumPy, in float64 whatever the floating dtype. One line a row where that is enough.

Floats come as float64 and are rounded to the row's dtype afterwards, by the program. Shapes and dtypes are
checked already; indices, which are data, are checked here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from trivet import dtypes
from trivet.backends.numpy import attention, random
from trivet.errors import InputError
from trivet.graph import to_numpy


def _elementwise(function: Callable[[float], float]) -> Callable[[Any], Any]:
    ufunc = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(ufunc(x), np.float64)


erf = _elementwise(math.erf)


def _sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def _silu(x: Any) -> Any:
    return x * _sigmoid(x)


def _gelu_erf(x: Any) -> Any:
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _silu_slope(x: Any) -> Any:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


def _gelu_erf_slope(x: Any) -> Any:
    return 0.5 * (1 + erf(x * math.sqrt(0.5))) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _gelu_tanh_slope(x: Any) -> Any:
    c = math.sqrt(2 / math.pi)
    t = np.tanh(c * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x)


def _cast(x: Any, dtype: str) -> Any:
    target = dtypes.BY_NAME[dtype]
    if target.is_float and (x.dtype == np.float64 or target is dtypes.bf16):
        return x.astype(np.float64)  # the program rounds
    if x.dtype != np.float64 or target.kind == "bool":
        return x.astype(to_numpy(target))
    limits = np.iinfo(to_numpy(target))
    inside = np.where(np.isnan(x) | (x >= limits.max) | (x <= limits.min), 0, x).astype(to_numpy(target))
    return np.where(x >= limits.max, limits.max, np.where(x <= limits.min, limits.min, inside)).astype(
        inside.dtype
    )


def _iota(shape: tuple[int, ...], axis: int, dtype: str) -> Any:
    column = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return np.broadcast_to(column, shape).astype(to_numpy(dtypes.BY_NAME[dtype]))


# --- reductions ----------------------------------------------------------------------------------


def _reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axes, keepdims: np.asarray(function(x, axis=tuple(axes), keepdims=bool(keepdims)))


def _sum(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    return np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _mean(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    return np.divide(np.sum(x, axis=axis, keepdims=keepdims), math.prod(x.shape[a] for a in axis))


def _logsumexp(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    safe = np.where(np.isfinite(top), top, 0)
    total = safe + np.log(np.sum(np.exp(x - safe), axis=axis, keepdims=True))
    return total if keepdims else np.squeeze(total, axis)


def _argmax(x: Any, axis: int, keepdims: bool) -> Any:
    return np.argmax(x, axis=axis, keepdims=bool(keepdims))


# --- movement ------------------------------------------------------------------------------------


def _slice(x: Any, starts: Any, stops: Any, steps: Any) -> Any:
    if any(a > b for a, b in zip(starts, stops, strict=True)):
        raise InputError(f"[slice] starts {starts} and stops {stops} of shape {x.shape}")
    return x[tuple(map(slice, starts, stops, steps))]


def _pad(x: Any, low: Any, high: Any, value: float) -> Any:
    fill = np.asarray(value).astype(x.dtype)
    return np.pad(x, list(zip(low, high, strict=True)), constant_values=fill) if x.ndim else x


def _checked(op: str, indices: Any, size: int) -> Any:
    if np.any((indices < 0) | (indices >= size)):
        raise InputError(f"[{op}] indices {indices.min()}..{indices.max()} are not all in 0..{size - 1}")
    return indices


def _take(x: Any, indices: Any, axis: int) -> Any:
    return np.take(x, _checked("take", indices, x.shape[axis]), axis)


def _scatter_add(x: Any, indices: Any, updates: Any, axis: int) -> Any:
    out = x.copy()
    np.add.at(out, (*[slice(None)] * axis, _checked("scatter_add", indices, x.shape[axis])), updates)
    return out


# --- rows of models ------------------------------------------------------------------------------


def _softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - np.max(x, axis, keepdims=True, initial=-np.inf))
    return e / e.sum(axis, keepdims=True)


def _causal_softmax(x: Any) -> Any:
    t, s = x.shape[-2:]
    seen = np.tril(np.ones((t, s), bool), s - t)
    out = _softmax(np.where(seen, x, -np.inf), -1)
    return np.where(seen.any(-1, keepdims=True), out, 0)


def _log_softmax(x: Any, axis: int) -> Any:
    low = x - np.max(x, axis, keepdims=True, initial=-np.inf)  # of two huge numbers the difference stays
    return low - np.log(np.exp(low).sum(axis, keepdims=True))


def _rms(x: Any, eps: float) -> Any:
    return 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def _rms_norm(x: Any, weight: Any, eps: float) -> Any:
    return x * _rms(x, eps) * weight


def _rms_norm_backward(g: Any, x: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    scale = _rms(x, eps)
    normed, gw = x * scale, g * weight
    dx = scale * (gw - normed * (gw * normed).mean(-1, keepdims=True))
    return dx, (g * normed).reshape(-1, x.shape[-1]).sum(0)


def _centred(x: Any) -> Any:
    return x - x.mean(-1, keepdims=True)


def _layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    return _rms_norm(_centred(x), weight, eps) + bias


def _layer_norm_backward(g: Any, x: Any, weight: Any, eps: float) -> tuple[Any, ...]:
    dx, dweight = _rms_norm_backward(g, _centred(x), weight, eps)
    return _centred(dx), dweight, g.reshape(-1, x.shape[-1]).sum(0)


def _rope_table(positions: Any, inv_freq: Any, scale: float) -> tuple[Any, Any]:
    angle = positions[..., None] * inv_freq
    return np.cos(angle) * scale, np.sin(angle) * scale


def _rope(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    d, out = cos.shape[-1], x.copy()
    first, second = (
        (slice(0, 2 * d, 2), slice(1, 2 * d, 2)) if interleaved else (slice(0, d), slice(d, 2 * d))
    )
    a, b, c, s = x[..., first], x[..., second], cos[..., None, :], sin[..., None, :]
    out[..., first], out[..., second] = a * c - b * s, b * c + a * s
    return out


def _embedding(ids: Any, table: Any) -> Any:
    return table[_checked("embedding", ids, len(table))]


def _flat(x: Any) -> Any:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _linear(x: Any, w: Any, *bias: Any) -> Any:
    y = (_flat(x) @ w.T).reshape(*x.shape[:-1], len(w))
    return y + bias[0] if bias else y


def _top_k(x: Any, k: int) -> tuple[Any, Any]:
    indices = np.argsort(-np.where(np.isnan(x), np.inf, x), -1, kind="stable")[..., :k]
    return np.take_along_axis(x, indices, -1), indices.astype(np.int32)


def _each_expert(op: str, x: Any, ids: Any, count: int) -> Iterator[tuple[int, Any, Any]]:
    """(expert, which of ids [T, k] are it, their rows of x [T, K] or [T, k, K])."""
    every = np.broadcast_to(x[:, None], (*ids.shape, x.shape[-1])) if x.ndim == 2 else x
    for e in np.unique(_checked(op, ids, count)) if ids.size else ():
        yield e, ids == e, every[ids == e]


def _expert_product(op: str, x: Any, w: Any, ids: Any) -> Any:
    """x @ w[e], w [E, K, N]."""
    out = np.zeros((*ids.shape, w.shape[2]))
    for e, here, rows in _each_expert(op, x, ids, len(w)):
        out[here] = rows @ w[e]
    return out


def _expert_linear_weight_grad(g: Any, x: Any, ids: Any, experts: int) -> Any:
    out = np.zeros((experts, g.shape[-1], x.shape[-1]))
    for e, here, rows in _each_expert("expert_linear_weight_grad", x, ids, experts):
        out[e] = g[here].T @ rows
    return out


def _targets(op: str, targets: Any, ignore_index: int, classes: int) -> tuple[Any, Any]:
    """(which rows count, their targets with 0 in place of the ignored)."""
    counts = targets != ignore_index
    return counts, _checked(op, np.where(counts, targets, 0), classes)


def _cross_entropy(logits: Any, targets: Any, ignore_index: int) -> Any:
    counts, ids = _targets("cross_entropy", targets, ignore_index, logits.shape[1])
    return np.where(counts, _logsumexp(logits, (1,), False) - logits[np.arange(len(ids)), ids], 0)


def _dlogits(g: Any, logits: Any, targets: Any, lse: Any, ignore_index: int) -> Any:
    counts, ids = _targets("cross_entropy_backward", targets, ignore_index, logits.shape[1])
    p = np.exp(logits - lse[:, None])
    p[np.arange(len(ids)), ids] -= 1
    return np.where(counts[:, None], p * g[:, None], 0)


def _cross_entropy_backward(g: Any, logits: Any, targets: Any, ignore_index: int) -> Any:
    return _dlogits(g, logits, targets, _logsumexp(logits, (1,), False), ignore_index)


def _linear_cross_entropy(x: Any, w: Any, targets: Any, ignore_index: int) -> tuple[Any, Any]:
    logits = x @ w.T
    return _cross_entropy(logits, targets, ignore_index), _logsumexp(logits, (1,), False)


def _linear_cross_entropy_backward(
    g: Any, x: Any, w: Any, targets: Any, lse: Any, ignore_index: int, weight_grad: bool
) -> tuple[Any, ...]:
    d = _dlogits(g, x @ w.T, targets, lse, ignore_index)
    return (d @ w, d.T @ x) if weight_grad else (d @ w,)


def _linear_cross_entropy_slopes(x: Any, w: Any, targets: Any, ignore_index: int) -> tuple[Any, Any]:
    losses, lse = _linear_cross_entropy(x, w, targets, ignore_index)
    (dx,) = _linear_cross_entropy_backward(np.ones_like(losses), x, w, targets, lse, ignore_index, False)
    return losses, dx


def _matmul(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
    if a.dtype == np.int8:
        a, b = a.astype(np.int32), b.astype(np.int32)
    return np.matmul(a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b)


def _addmm(c: Any, a: Any, b: Any, alpha: float, beta: float, **transposed: bool) -> Any:
    product = alpha * _matmul(a, b, **transposed)
    return product + beta * c if beta else product


def _grad_norm(*gs: Any) -> Any:
    peak = np.max([np.max(np.abs(g), initial=0.0) for g in gs])
    by = peak if peak else 1.0
    return peak, np.sqrt(np.sum([np.sum(np.square(g / by)) for g in gs]))


def _adamw(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    rates: Any,
    scale: Any,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    first: int,
) -> Any:
    if not scale > 0:
        return p, m, v
    whole, rows = p, slice(first, first + len(m)) if p.ndim else ()
    p, g = p[rows], g[rows]
    u, (lr, m_rise, v_rise) = g * scale, rates
    beta1, rest1, beta2, rest2, eps, decay = (  # they are float32, as what they meet is
        float(np.float32(x)) for x in (beta1, 1 - beta1, beta2, 1 - beta2, eps, decay)
    )
    m, v = beta1 * m + rest1 * u, beta2 * v + rest2 * u * u
    moved = p * (1 - lr * decay) - lr * (m * m_rise) / (np.sqrt(v * v_rise) + eps)
    if m.shape != whole.shape:
        moved = np.concatenate([whole[:first], moved, whole[first + len(m) :]])
    return moved, m, v


LOWERINGS: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power,
    "maximum": np.maximum, "minimum": np.minimum, "neg": np.negative, "abs": np.abs, "exp": np.exp,
    "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "cos": np.cos,
    "tanh": np.tanh, "sigmoid": _sigmoid, "erf": erf, "relu": lambda x: np.maximum(x, 0), "silu": _silu,
    "gelu_erf": _gelu_erf, "gelu_tanh": _gelu_tanh,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
    "logical_not": np.logical_not, "where": np.where, "cast": _cast, "iota": _iota,
    "sum": _reduce(_sum), "mean": _reduce(_mean), "max": _reduce(np.max), "min": _reduce(np.min),
    "logsumexp": _reduce(_logsumexp), "argmax": _argmax,
    "matmul": _matmul, "addmm": _addmm,
    "after": lambda x, g: x, "grad_norm": _grad_norm, "adamw": _adamw,
    "accumulate": lambda total, g, keep: total + g if keep else g,
    "reshape": lambda x, shape: x.reshape(shape), "permute": lambda x, axes: x.transpose(axes),
    "broadcast_to": lambda x, shape: np.broadcast_to(x, shape), "slice": _slice, "pad": _pad,
    "concat": lambda *xs, axis: np.concatenate(xs, axis), "take": _take, "scatter_add": _scatter_add,
    "embedding": _embedding, "dequantize": lambda w: w, "softmax": _softmax,
    "causal_softmax": _causal_softmax, "log_softmax": _log_softmax,
    "rms_norm": _rms_norm, "rms_norm_backward": _rms_norm_backward,
    "layer_norm": _layer_norm, "layer_norm_backward": _layer_norm_backward, "rope_table": _rope_table,
    "rope": _rope, "linear": _linear,
    "linear_input_grad": lambda g, w: (_flat(g) @ w).reshape(*g.shape[:-1], w.shape[1]),
    "top_k": _top_k, "expert_linear_weight_grad": _expert_linear_weight_grad,
    "expert_linear": lambda x, w, ids: _expert_product("expert_linear", x, w.swapaxes(1, 2), ids),
    "expert_linear_input_grad": lambda g, w, ids: _expert_product("expert_linear_input_grad", g, w, ids),
    "swiglu": lambda gate, up: _silu(gate) * up,
    "swiglu_backward": lambda g, gate, up: (g * up * _silu_slope(gate), g * _silu(gate)),
    "gelu_backward": lambda g, x, approximate: g * (_gelu_tanh_slope if approximate else _gelu_erf_slope)(x),
    "geglu_backward": lambda g, gate, up, approximate: (
        g * up * (_gelu_tanh_slope if approximate else _gelu_erf_slope)(gate),
        g * (_gelu_tanh if approximate else _gelu_erf)(gate),
    ),
    "geglu": lambda gate, up, approximate: (_gelu_tanh if approximate else _gelu_erf)(gate) * up,
    "cross_entropy": _cross_entropy, "cross_entropy_backward": _cross_entropy_backward,
    "linear_cross_entropy": _linear_cross_entropy,
    "linear_cross_entropy_backward": _linear_cross_entropy_backward,
    "linear_cross_entropy_slopes": _linear_cross_entropy_slopes,
    **attention.LOWERINGS, "random_bits": random.random_bits, "random_uniform": random.random_uniform,
    "random_normal": random.random_normal,
}  # fmt: skip
