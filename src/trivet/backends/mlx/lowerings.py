"""What each row is in `mlx.core`. One line a row where that is enough.

Floats of 16 bits come as float32 and are rounded to the row's dtype afterwards, by the program; the products
of `products.py` take them as they are. Shapes and dtypes are checked already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from trivet import dtypes
from trivet.backends.mlx import attention, indexing, pools, rope
from trivet.backends.mlx.random import random_bits, random_normal, random_uniform
from trivet.backends.mlx.types import mlx_dtype


def _exp(x: Any) -> Any:
    """2**n times the exponential of what is left, which is small: MLX's own loses digits as x grows."""
    n = mx.clip(mx.round(x * (1 / math.log(2))), -160, 160)
    left = (x - n * _LN2) - n * _LN2_REST
    half = mx.floor(n / 2)
    return mx.exp(left) * _power(half) * _power(n - half)


_LN2 = 0.693359375  # of so few bits that its product with n is exact
_LN2_REST = math.log(2) - _LN2


def _power(n: Any) -> Any:
    """2**n, by the bits of the number."""
    return (((mx.nan_to_num(n, nan=0).astype(mx.int32)) + 127) << 23).view(mx.float32)


def _cast(x: Any, dtype: str) -> Any:
    """Floats to integers saturate, and NaN is 0."""
    target = dtypes.BY_NAME[dtype]
    if target.is_float or not mx.issubdtype(x.dtype, mx.floating):
        return x.astype(mlx_dtype(target))
    if target.kind == "bool":
        return x != 0
    kind = mlx_dtype(target)
    low, high = mx.iinfo(kind).min, mx.iinfo(kind).max
    over, under = x >= float(high), x <= float(low)
    inside = mx.where(mx.isnan(x) | over | under, 0, x).astype(kind)
    return mx.where(over, mx.array(high, kind), mx.where(under, mx.array(low, kind), inside))


def _iota(shape: tuple[int, ...], axis: int, dtype: str) -> Any:
    line = mx.arange(shape[axis]).astype(mlx_dtype(dtypes.BY_NAME[dtype]))
    return mx.broadcast_to(line.reshape((*[1] * axis, shape[axis], *[1] * (len(shape) - axis - 1))), shape)


def _pad(x: Any, low: Any, high: Any, value: float) -> Any:
    sides = list(zip(low, high, strict=True))
    return mx.pad(x, sides, constant_values=mx.array(value, x.dtype)) if x.ndim else x


def _slice(x: Any, starts: Any, stops: Any, steps: Any) -> Any:
    return x[tuple(map(slice, starts, stops, steps))] if x.ndim else x


# --- reductions ----------------------------------------------------------------------------------


def _reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return function(x, axes, keepdims) if axes else x

    return reduced


_RUN = 256  # so many numbers MLX may add one after another


def _left(x: Any, axes: tuple[int, ...], keepdims: bool) -> list[int]:
    """The shape after a reduction."""
    return [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes]


def _sum(x: Any, axes: tuple[int, ...], keepdims: bool = False) -> Any:
    """The sum of runs, then of their sums: MLX would add a whole axis up, and lose digits."""
    if not x.size:  # MLX's loop over an empty axis may read past its end, and never stop
        return mx.zeros(_left(x, axes, keepdims), x.dtype)
    for axis in axes:
        while x.shape[axis] > _RUN:
            before, n, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
            whole = n // _RUN * _RUN  # no mx.split: mx.compile fails where it stands in the same sum twice
            runs, rest = (x[(*[slice(None)] * axis, s)] for s in (slice(whole), slice(whole, n)))
            runs = runs.reshape((*before, n // _RUN, _RUN, *after)).sum(axis + 1)
            x = mx.concatenate([runs, rest.sum(axis, keepdims=True)], axis) if n % _RUN else runs
    return mx.sum(x, axes, keepdims=keepdims)


def _mean(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    return _sum(x, axes, keepdims) / math.prod(x.shape[i] for i in axes)


def _top(x: Any, axes: Any) -> Any:
    """The largest, -inf of nothing; the axes are kept."""
    return mx.max(x, axes, keepdims=True) if x.size else mx.full(_left(x, axes, True), -math.inf)


def _logsumexp(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    top = _top(x, axes)
    safe = mx.where(mx.isfinite(top), top, 0)
    total = safe + mx.log(_sum(mx.exp(x - safe), axes, keepdims=True))
    return total if keepdims else total.squeeze(axes)


def _extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return function(x, axes, keepdims) if x.size else mx.zeros(_left(x, axes, keepdims), x.dtype)

    return _reduce(reduced)


def _argmax(x: Any, axis: int, keepdims: bool) -> Any:
    """NaN counts as largest."""
    if not x.size:
        return mx.zeros(_left(x, (axis,), keepdims))
    nans = mx.isnan(x)
    found = mx.any(nans, axis, keepdims=keepdims)
    return mx.where(found, mx.argmax(nans, axis, keepdims), mx.argmax(x, axis, keepdims))


def _softmax(x: Any, axis: int) -> Any:
    e = mx.exp(x - _top(x, (axis,)))
    return e / _sum(e, (axis,), keepdims=True)


def _log_softmax(x: Any, axis: int) -> Any:
    x = x - _top(x, (axis,))
    return x - mx.log(_sum(mx.exp(x), (axis,), keepdims=True))


def _causal_softmax(x: Any) -> Any:
    t, s = x.shape[-2:]
    seen = mx.tril(mx.ones((t, s)), s - t) > 0
    return mx.where(mx.any(seen, -1, keepdims=True), _softmax(mx.where(seen, x, -math.inf), -1), 0)


# --- rows of models ------------------------------------------------------------------------------


def _rows(x: Any) -> Any:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _rms(x: Any, eps: float) -> Any:
    return mx.rsqrt((x * x).mean(-1, keepdims=True) + eps)


def _rms_norm_backward(g: Any, x: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    scale = _rms(x, eps)
    normed, gw = x * scale, g * weight
    dx = scale * (gw - normed * (gw * normed).mean(-1, keepdims=True))
    return dx, _sum(_rows(g * normed), (0,))


def _centred(x: Any) -> Any:
    return x - x.mean(-1, keepdims=True)


def _layer_norm_backward(g: Any, x: Any, weight: Any, eps: float) -> tuple[Any, ...]:
    dx, dweight = _rms_norm_backward(g, _centred(x), weight, eps)
    return _centred(dx), dweight, _sum(_rows(g), (0,))


def _silu(x: Any) -> Any:
    return x * mx.sigmoid(x)


def _silu_slope(x: Any) -> Any:
    s = mx.sigmoid(x)
    return s * (1 + x * (1 - s))


_TANH = math.sqrt(2 / math.pi)


def _gelu(x: Any, approximate: bool) -> Any:
    if approximate:
        return 0.5 * x * (1 + mx.tanh(_TANH * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + mx.erf(x * math.sqrt(0.5)))


def _gelu_slope(x: Any, approximate: bool) -> Any:
    if approximate:
        t = mx.tanh(_TANH * (x + 0.044715 * x * x * x))
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * _TANH * (1 + 3 * 0.044715 * x * x)
    return 0.5 * (1 + mx.erf(x * math.sqrt(0.5))) + x * mx.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _geglu_backward(g: Any, gate: Any, up: Any, approximate: bool) -> tuple[Any, Any]:
    return g * up * _gelu_slope(gate, approximate), g * _gelu(gate, approximate)


def cross_entropy(logits: Any, targets: Any, ignore_index: int) -> Any:
    counts = targets != ignore_index
    good = indexing.inside(targets, logits.shape[1])
    at = mx.where(good, targets, 0)[:, None]
    own = mx.where(good, mx.take_along_axis(logits, at, 1)[:, 0], math.nan) if at.size else mx.zeros((0,))
    return mx.where(counts, _logsumexp(logits, (1,), False) - own, 0)


def dlogits(g: Any, logits: Any, targets: Any, lse: Any, ignore_index: int) -> Any:
    """The gradient of cross_entropy in its logits."""
    counts = targets != ignore_index
    own = mx.arange(logits.shape[1]) == targets[:, None]
    return mx.where(counts[:, None], (mx.exp(logits - lse[:, None]) - own) * g[:, None], 0)


def _cross_entropy_backward(g: Any, logits: Any, targets: Any, ignore_index: int) -> Any:
    return dlogits(g, logits, targets, _logsumexp(logits, (1,), False), ignore_index)


# --- the optimiser -------------------------------------------------------------------------------


def _grad_norm(*gs: Any) -> Any:
    some = [g for g in gs if g.size]
    peak = mx.max(mx.stack([mx.zeros(()), *(mx.max(mx.abs(g)) for g in some)]))
    by = mx.where(peak == 0, 1.0, peak)
    return peak, mx.sqrt(mx.stack([mx.zeros(()), *(mx.sum(mx.square(g / by)) for g in some)]).sum())


def _adamw(
    p: Any, g: Any, m: Any, v: Any, rates: Any, scale: Any,
    beta1: float, beta2: float, eps: float, decay: float, first: int,
) -> Any:  # fmt: skip
    whole, part = p, bool(p.ndim) and p.shape != m.shape
    if part:
        p, g = p[first : first + len(m)], g[first : first + len(m)]
    go, u, (lr, m_rise, v_rise) = scale > 0, g * scale, (rates[i] for i in range(3))
    m2, v2 = beta1 * m + (1 - beta1) * u, beta2 * v + (1 - beta2) * u * u
    p2 = p * (1 - lr * decay) - lr * (m2 * m_rise) / (mx.sqrt(v2 * v_rise) + eps)
    p2, m2, v2 = mx.where(go, p2, p), mx.where(go, m2, m), mx.where(go, v2, v)
    return (mx.slice_update(whole, p2, mx.array([first]), (0,)) if part else p2), m2, v2


LOWERINGS: Mapping[str, Callable[..., Any]] = {
    "add": mx.add, "sub": mx.subtract, "mul": mx.multiply, "div": mx.divide, "pow": mx.power,
    "maximum": mx.maximum, "minimum": mx.minimum, "neg": mx.negative, "abs": mx.abs, "exp": _exp,
    "log": mx.log, "sqrt": mx.sqrt, "rsqrt": mx.rsqrt, "sin": mx.sin, "cos": mx.cos,
    "tanh": mx.tanh, "sigmoid": mx.sigmoid, "erf": mx.erf, "relu": lambda x: mx.maximum(x, 0),
    "silu": _silu, "gelu_erf": lambda x: _gelu(x, False), "gelu_tanh": lambda x: _gelu(x, True),
    "eq": mx.equal, "ne": mx.not_equal, "lt": mx.less, "le": mx.less_equal, "gt": mx.greater,
    "ge": mx.greater_equal, "logical_and": mx.logical_and, "logical_or": mx.logical_or,
    "logical_not": mx.logical_not, "where": mx.where, "cast": _cast, "iota": _iota,
    "sum": _reduce(_sum), "mean": _reduce(_mean), "max": _extreme(mx.max), "min": _extreme(mx.min),
    "logsumexp": _reduce(_logsumexp), "argmax": _argmax,
    "after": lambda x, g: x, "grad_norm": _grad_norm, "adamw": _adamw,
    "accumulate": lambda total, g, keep: mx.where(keep != 0, total + g, g),
    "reshape": lambda x, shape: x.reshape(shape), "permute": lambda x, axes: x.transpose(axes),
    "broadcast_to": lambda x, shape: mx.broadcast_to(x, shape), "slice": _slice, "pad": _pad,
    "concat": lambda *xs, axis: mx.concatenate(xs, axis),
    "take": indexing.take, "scatter_add": indexing.scatter_add,
    "softmax": _softmax, "causal_softmax": _causal_softmax,
    "log_softmax": _log_softmax,
    "rms_norm": lambda x, weight, eps: mx.fast.rms_norm(x, weight, eps),
    "rms_norm_backward": _rms_norm_backward,
    "layer_norm": lambda x, weight, bias, eps: mx.fast.layer_norm(x, weight, bias, eps),
    "layer_norm_backward": _layer_norm_backward,
    "rope_table": rope.rope_table, "rope": rope.rope,
    "swiglu": lambda gate, up: _silu(gate) * up,
    "swiglu_backward": lambda g, gate, up: (g * up * _silu_slope(gate), g * _silu(gate)),
    "gelu_backward": lambda g, x, approximate: g * _gelu_slope(x, approximate),
    "geglu": lambda gate, up, approximate: _gelu(gate, approximate) * up,
    "geglu_backward": _geglu_backward,
    "cross_entropy": cross_entropy, "cross_entropy_backward": _cross_entropy_backward,
    "kv_append": pools.kv_append, "paged_attention": attention.paged_attention,
    "random_bits": random_bits, "random_uniform": random_uniform, "random_normal": random_normal,
}  # fmt: skip
