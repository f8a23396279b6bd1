"""The rows around matrix products. They take their operands as they are stored.

Two of one 16-bit type are multiplied as they are: MLX sums in float32 and rounds once. Others meet in
float32, but beside bf16 a weight is bf16. MLX multiplies some packed weights itself (`affine.py`); the others
are decoded on the way in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from trivet.backends.mlx import attention, indexing
from trivet.backends.mlx.affine import product, values
from trivet.backends.mlx.lowerings import LOWERINGS, cross_entropy, dlogits
from trivet.backends.mlx.packed import DECODERS
from trivet.graph import Spec

_ROWS = 256  # rows of logits that stand in memory at once
_EXACT = 1024  # so many products of 8-bit integers are summed exactly in float32


def _flat(x: Any) -> Any:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _f32(x: Any) -> Any:
    return x.astype(mx.float32)


def _matmul(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
    a, b = a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b
    return _whole(a, b) if a.dtype == mx.int8 else a @ b


def _whole(a: Any, b: Any) -> Any:
    """The product of 8-bit integers, of which MLX multiplies none."""
    total: Any = 0
    for i in range(0, max(a.shape[-1], 1), _EXACT):
        piece = slice(i, i + _EXACT)
        total = total + (_f32(a[..., piece]) @ _f32(b[..., piece, :])).astype(mx.int32)
    return total


def _addmm(c: Any, a: Any, b: Any, alpha: float, beta: float, **transposed: bool) -> Any:
    if not beta:
        return alpha * _matmul(_f32(a), _f32(b), **transposed)
    return alpha * _matmul(_f32(a), _f32(b), **transposed) + beta * _f32(c)


def _met(x: Any, w: Any) -> tuple[Any, Any]:
    """x and a weight in the type in which they are multiplied."""
    if isinstance(w, tuple) or x.dtype == w.dtype:
        return x, w
    kind = x.dtype if x.dtype == mx.bfloat16 else mx.float32
    return x.astype(kind), w.astype(kind)


def _wide(w: Any) -> Any:
    """A weight in float32, or as MLX multiplies it."""
    return w if isinstance(w, tuple) else _f32(w)


def _linear(x: Any, w: Any, *bias: Any) -> Any:
    rows, w = _met(_flat(x), w)
    if bias and not isinstance(w, tuple) and rows.size and w.size:
        y = mx.addmm(bias[0].astype(rows.dtype), rows, w.T)  # rounded once
    else:
        y = product(rows, w, True) + (bias[0] if bias else 0)
    return y.reshape(*x.shape[:-1], y.shape[1])


def _linear_input_grad(g: Any, w: Any) -> Any:
    rows, w = _met(_flat(g), w)
    dx = product(rows, w, False)
    return dx.reshape(*g.shape[:-1], dx.shape[1])


# --- experts -------------------------------------------------------------------------------------


def _expert_product(x: Any, w: Any, ids: Any, transpose: bool) -> Any:
    """x [T, .] or [T, k, .] times the weights w [E, N, K] of the experts `ids` [T, k], or times their
    transposes."""
    w = w.swapaxes(1, 2) if transpose else w
    if not ids.size or not x.size or not w.size:
        return mx.zeros((*ids.shape, w.shape[2]))
    x, w = _met(x, w) if mx.metal.is_available() else (_f32(x), _f32(w))  # a processor gathers no others
    good = indexing.inside(ids, len(w))
    rows = mx.broadcast_to(x[:, None], (*ids.shape, x.shape[1])) if x.ndim == 2 else x
    y = mx.gather_mm(rows[:, :, None], w, rhs_indices=mx.where(good, ids, 0))[:, :, 0]
    return mx.where(good[:, :, None], y, math.nan)


# --- logits a piece at a time --------------------------------------------------------------------


def _pieces(n: int) -> list[slice]:
    return [slice(i, i + _ROWS) for i in range(0, n, _ROWS)]


def _linear_cross_entropy(x: Any, w: Any, targets: Any, ignore_index: int) -> tuple[Any, Any]:
    losses, lses, w = [mx.zeros((0,))], [mx.zeros((0,))], _wide(w)
    for cut in _pieces(len(x)):
        logits = product(_f32(x[cut]), w, True)
        losses.append(cross_entropy(logits, targets[cut], ignore_index))
        lses.append(LOWERINGS["logsumexp"](logits, (1,), False))
    return mx.concatenate(losses), mx.concatenate(lses)


def _linear_cross_entropy_backward(
    g: Any, x: Any, w: Any, targets: Any, lse: Any, ignore_index: int, weight_grad: bool
) -> tuple[Any, ...]:
    w = _wide(w)
    dw, dxs = mx.zeros(w.shape) if weight_grad else None, [mx.zeros((0, x.shape[1]))]
    for cut in _pieces(len(x)):
        rows = _f32(x[cut])
        d = dlogits(g[cut], product(rows, w, True), targets[cut], lse[cut], ignore_index)
        dxs.append(product(d, w, False))
        if weight_grad:
            dw = dw + d.T @ rows
    dx = mx.concatenate(dxs)
    return (dx, dw) if weight_grad else (dx,)


PRODUCTS: Mapping[str, Callable[..., Any]] = {
    "matmul": _matmul, "addmm": _addmm, "linear": _linear, "linear_input_grad": _linear_input_grad,
    "expert_linear": lambda x, w, ids: _expert_product(x, w, ids, True),
    "expert_linear_input_grad": lambda g, w, ids: _expert_product(g, w, ids, False),
    "embedding": lambda ids, table: indexing.take(table, ids), "dequantize": lambda w: w,
    "linear_cross_entropy": _linear_cross_entropy,
    "linear_cross_entropy_backward": _linear_cross_entropy_backward,
    "attention": attention.attention, "attention_backward": attention.attention_backward,
}  # fmt: skip


_TAKE_ARRANGED = {
    "linear", "linear_input_grad", "linear_cross_entropy", "linear_cross_entropy_backward",
}  # fmt: skip


_OF_EXPERTS = ("expert_linear", "expert_linear_input_grad")


def unpacked(row: str, inputs: list[Any], specs: list[Spec]) -> list[Any]:
    """The inputs of a row, packed ones decoded if it cannot use them; of an embedding only the rows that are
    taken, and of a few tokens' experts those that are chosen."""

    def opened(x: Any, spec: Spec) -> Any:
        if isinstance(x, tuple):
            return x if row in _TAKE_ARRANGED else values(x)
        return DECODERS.opened(x, spec)

    if row == "embedding" and specs[1].dtype.is_packed:
        return _taken(inputs[0], inputs[1], specs[1])
    if row in _OF_EXPERTS and specs[1].dtype.is_packed and inputs[2].size <= len(inputs[1]):
        x, w, ids = inputs  # of few tokens
        ids, w = _taken(ids, w, specs[1])
        return [x, w, ids]
    return list(map(opened, inputs, specs))


def _taken(ids: Any, table: Any, spec: Spec) -> list[Any]:
    """(where a row stands in what is taken, what is taken)."""
    if isinstance(table, tuple):
        rows = values(tuple(_flat(indexing.take(x, ids)) for x in table))
        return [mx.arange(ids.size).reshape(ids.shape), rows]
    return DECODERS.taken(ids, indexing.take(table, ids), indexing.inside(ids, len(table)), spec)
