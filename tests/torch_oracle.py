"""PyTorch's idea of the rows it has: row name -> function of float64 tensors and the row's attributes.

A function returns None for a sample that PyTorch has no equivalent of.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def _reduction(function: Any) -> Any:
    return lambda x, axes, keepdims: function(x, dim=axes, keepdim=keepdims) if axes else None


def _argmax(x: Any, axis: int, keepdims: bool) -> Any:
    return torch.argmax(x, axis, keepdims)


def _matmul(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
    if not a.is_floating_point():
        a, b = a.to(torch.int32), b.to(torch.int32)
    return (a.mT if transpose_a else a) @ (b.mT if transpose_b else b)


def _addmm(c: Any, a: Any, b: Any, alpha: float, beta: float, transpose_a: bool, transpose_b: bool) -> Any:
    product = alpha * _matmul(a, b, transpose_a, transpose_b)
    return beta * c + product if beta else product


def _cast(x: Any, dtype: str) -> Any:
    """Float to float only: PyTorch's casts to integers are not defined outside their range."""
    names = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
    return x.to(names[dtype]).to(torch.float64) if dtype == "f64" and x.is_floating_point() else None


def _slice(x: Any, starts: Any, stops: Any, steps: Any) -> Any:
    return x[tuple(slice(*s) for s in zip(starts, stops, steps, strict=True))]


def _pad(x: Any, low: Any, high: Any, value: float) -> Any:
    widths = [w for pair in reversed(list(zip(low, high, strict=True))) for w in pair]
    return F.pad(x, widths, value=value)


def _take(x: Any, indices: Any, axis: int) -> Any:
    picked = torch.index_select(x, axis, indices.reshape(-1).long())
    return picked.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def _scatter_add(x: Any, indices: Any, updates: Any, axis: int) -> Any:
    flat = updates.reshape(*x.shape[:axis], -1, *x.shape[axis + 1 :])
    return torch.index_add(x, axis, indices.reshape(-1).long(), flat) if indices.numel() else None


def _iota(shape: Any, axis: int, dtype: str) -> Any:
    size = [-1 if a == axis else 1 for a in range(len(shape))]
    return (
        torch.arange(shape[axis])
        .reshape(size)
        .expand(shape)
        .to(torch.float64 if dtype == "f32" else torch.int64)
    )


def _causal_softmax(x: Any) -> Any:
    t, s = x.shape[-2:]
    hidden = torch.ones(t, s, dtype=torch.bool).triu(s - t + 1)
    return torch.softmax(x.masked_fill(hidden, -torch.inf), -1) if t <= s and x.isfinite().all() else None


def _attention(q: Any, k: Any, v: Any, *rest: Any, **a: Any) -> Any:
    """Only o, and only where every query sees something, nothing is NaN and there is no soft cap."""
    (batch, t, heads, _), s = q.shape, k.shape[1]
    if a["softcap"] or not (k.isfinite().all() and v.isfinite().all()):
        return None
    behind = torch.arange(t)[:, None] + (s - t) - torch.arange(s)
    seen = torch.ones(batch, 1, t, s, dtype=torch.bool)
    if a["causal"]:
        seen &= behind >= 0
    if a["window"]:
        seen &= behind < a["window"]
    if a["lengths"]:
        seen &= torch.arange(s) < rest[0].reshape(-1, 1, 1, 1)
    if a["starts"]:
        seen &= torch.arange(s) >= rest[a["lengths"]].reshape(batch, 1, t, 1)
    if not seen.any(-1).all():
        return None
    bias = torch.zeros(batch, heads, t, s, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    if a["alibi"]:
        bias = bias - rest[-1].reshape(-1, 1, 1) * behind
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=a["scale"], enable_gqa=True)
    return o.transpose(1, 2)


def _cross_entropy(logits: Any, targets: Any, ignore_index: int) -> Any:
    return F.cross_entropy(logits, targets.long(), ignore_index=ignore_index, reduction="none")


def _linear_cross_entropy(x: Any, w: Any, targets: Any, ignore_index: int) -> Any:
    return _cross_entropy(x @ w.T, targets, ignore_index)


def _top_k(x: Any, k: int) -> Any:
    return (
        torch.sort(x, dim=-1, descending=True, stable=True).values[..., :k] if not x.isnan().any() else None
    )


def _rows(x: Any, experts: Any) -> Any:
    return x[:, None].expand(*experts.shape, x.shape[-1]) if x.ndim == 2 else x


def _expert_linear(x: Any, w: Any, experts: Any) -> Any:
    return torch.einsum("tik,tink->tin", _rows(x, experts), w[experts.long()])


def _expert_linear_input_grad(g: Any, w: Any, experts: Any) -> Any:
    return torch.einsum("tin,tink->tik", g, w[experts.long()])


def _expert_linear_weight_grad(g: Any, x: Any, ids: Any, experts: int) -> Any:
    return torch.einsum("tie,tin,tik->enk", F.one_hot(ids.long(), experts).double(), g, _rows(x, ids))


def _where(cond: Any, a: Any, b: Any) -> Any:
    return torch.where(cond, a, b)


def _geglu(gate: Any, up: Any, approximate: bool) -> Any:
    return F.gelu(gate, approximate="tanh" if approximate else "none") * up


ORACLE: dict[str, Any] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow,
    "maximum": torch.maximum, "minimum": torch.minimum, "neg": torch.neg, "abs": torch.abs, "exp": torch.exp,
    "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sin": torch.sin, "cos": torch.cos,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "erf": torch.erf, "relu": torch.relu, "silu": F.silu,
    "gelu_erf": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "eq": torch.eq, "ne": torch.ne,
    "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "logical_and": torch.logical_and,
    "logical_or": torch.logical_or, "logical_not": torch.logical_not, "where": _where, "cast": _cast,
    "iota": _iota,
    "sum": _reduction(torch.sum), "mean": _reduction(torch.mean), "max": _reduction(torch.amax),
    "min": _reduction(torch.amin), "logsumexp": _reduction(torch.logsumexp), "argmax": _argmax,
    "matmul": _matmul, "addmm": _addmm,
    "reshape": lambda x, shape: torch.reshape(x, shape), "permute": lambda x, axes: torch.permute(x, axes),
    "broadcast_to": lambda x, shape: torch.broadcast_to(x, shape), "slice": _slice, "pad": _pad,
    "concat": lambda *xs, axis: torch.cat(xs, axis), "take": _take, "scatter_add": _scatter_add,
    "embedding": lambda ids, table: F.embedding(ids.long(), table),
    "softmax": lambda x, axis: torch.softmax(x, axis),
    "log_softmax": lambda x, axis: torch.log_softmax(x, axis),
    "causal_softmax": _causal_softmax,
    "rms_norm": lambda x, weight, eps: F.rms_norm(x, weight.shape, weight, eps),
    "layer_norm": lambda x, weight, bias, eps: F.layer_norm(x, weight.shape, weight, bias, eps),
    "attention": _attention, "linear": F.linear, "linear_input_grad": torch.matmul,
    "swiglu": lambda gate, up: F.silu(gate) * up, "geglu": _geglu, "cross_entropy": _cross_entropy,
    "linear_cross_entropy": _linear_cross_entropy, "top_k": _top_k, "expert_linear": _expert_linear,
    "expert_linear_input_grad": _expert_linear_input_grad,
    "expert_linear_weight_grad": _expert_linear_weight_grad,
}  # fmt: skip
