"""The rows around matrix products. They take their operands as they are stored.

16-bit floats go to the matrix units and are summed in float32, float32 is multiplied as float32, and packed
weights are decoded on the way in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from trivet.backends.packed import stored
from trivet.backends.xla import attention, packed_linear
from trivet.backends.xla.lowerings import LOWERINGS, dlogits
from trivet.backends.xla.packed import DECODERS
from trivet.backends.xla.placement import has_kernels, spread
from trivet.dtypes import DType
from trivet.graph import Spec

_ROWS = 256  # rows of logits that stand in memory at once


def _summed(x: Any) -> Any:
    """The type in which products of x are summed."""
    return jnp.int32 if x.dtype == jnp.int8 else jnp.float64 if x.dtype == jnp.float64 else jnp.float32


def _dot(x: Any, y: Any, axes: tuple[int, int]) -> Any:
    """x and y, each of rank 2, summed over an axis of each, in float32."""
    return lax.dot_general(
        x,
        y,
        (((axes[0],), (axes[1],)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=_summed(x),
    )


def _flat(x: Any) -> Any:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _matmul(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
    return jnp.matmul(
        a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b,
        precision=lax.Precision.HIGHEST, preferred_element_type=_summed(a),
    )  # fmt: skip


def _addmm(c: Any, a: Any, b: Any, alpha: float, beta: float, **transposed: bool) -> Any:
    product = alpha * _matmul(a, b, **transposed)
    return product + beta * c.astype(product.dtype) if beta else product


def _met(x: Any, w: Any) -> tuple[Any, Any]:
    """x and a weight in the type in which they are multiplied: beside bf16 a weight is bf16; any other two
    unlike types meet in float32."""
    kind = x.dtype if x.dtype in (w.dtype, jnp.bfloat16) else jnp.float32
    return x.astype(kind), w.astype(kind)


def _by_weight(x: Any, w: Any, axis: int) -> Any:
    """x [T, .] and a weight, summed over x's last axis and one of w's."""
    return _dot(*_met(x, w), (1, axis))


class Packed(NamedTuple):
    """A weight that a kernel decodes as it multiplies."""

    rows: Any  # u8 [N, row bytes]
    dtype: DType


def _linear(x: Any, w: Any, *bias: Any) -> Any:
    flat = _flat(x)
    y = packed_linear.product(flat, *w) if isinstance(w, Packed) else _by_weight(flat, w, 1)
    y = y.reshape(*x.shape[:-1], y.shape[1])
    return y + bias[0].astype(y.dtype) if bias else y


def _linear_input_grad(g: Any, w: Any) -> Any:
    return _by_weight(_flat(g), w, 0).reshape(*g.shape[:-1], w.shape[1])


def _embedding(ids: Any, table: Any) -> Any:
    return _taken(table, ids, None)


def _taken(table: Any, ids: Any, missing: Any) -> Any:
    """table[ids]. One id is taken twice: as a slice, TPU's compiler would first copy the whole table."""
    some = jnp.tile(ids.reshape(-1), 2) if ids.size == 1 else ids.reshape(-1)
    rows = jnp.take(table, some, axis=0, mode="fill", fill_value=missing)
    return rows[: ids.size].reshape(*ids.shape, *table.shape[1:])


# --- experts -------------------------------------------------------------------------------------


def _few(w: Any, ids: Any) -> bool:
    """Whether to take the weights of the chosen experts, rather than to multiply with all of them."""
    return bool(0 < ids.size <= len(w))


def _expert_product(x: Any, w: Any, ids: Any, axis: int) -> Any:
    """x [T, .] or [T, k, .] and the weights w [E, N, K] of the experts `ids` [T, k], or those [T, k, N, K],
    summed over x's last axis and the axis -1 or -2 of w's."""
    if not ids.size:
        return jnp.zeros((*ids.shape, w.shape[-3 - axis]), x.dtype)
    if w.ndim == 3 and _few(w, ids):
        w = _taken(w, ids, None)
    x, w = _met(x, w)
    if w.ndim == 4:
        x = x if x.ndim == 3 else jnp.broadcast_to(x[:, None], (*ids.shape, x.shape[1]))
        words = "tik,tink->tin" if axis == -1 else "tin,tink->tik"
        return jnp.einsum(words, x, w, precision=lax.Precision.HIGHEST, preferred_element_type=_summed(x))
    every = lax.dot_general(
        x, w, (((x.ndim - 1,), (3 + axis,)), ((), ())),
        precision=lax.Precision.HIGHEST, preferred_element_type=_summed(x),
    )  # fmt: skip
    if x.ndim == 2:
        return jnp.take_along_axis(every, ids[:, :, None], 1, mode="fill")
    return jnp.take_along_axis(every, ids[:, :, None, None], 2, mode="fill")[:, :, 0]


# --- logits a piece at a time --------------------------------------------------------------------


def _pieces(x: Any, fill: Any) -> Any:
    """[T, ...] -> [pieces, _ROWS, ...]; one piece where T is small."""
    rows = min(len(x), _ROWS) or 1
    count = -(-len(x) // rows)
    padded = jnp.pad(x, [(0, count * rows - len(x)), *[(0, 0)] * (x.ndim - 1)], constant_values=fill)
    return padded.reshape(count, rows, *x.shape[1:])


def _linear_cross_entropy(x: Any, w: Any, targets: Any, ignore_index: int) -> tuple[Any, Any]:
    def piece(xs: Any) -> tuple[Any, Any]:
        rows, targets = map(spread, xs)
        logits = _by_weight(rows, w, 1)
        lse = LOWERINGS["logsumexp"](logits, (1,), False)
        return LOWERINGS["cross_entropy"](logits, targets, ignore_index), lse

    loss, lse = lax.map(piece, (_pieces(x, 0), _pieces(targets, ignore_index)))
    return loss.reshape(-1)[: len(x)], lse.reshape(-1)[: len(x)]


def _linear_cross_entropy_backward(
    g: Any, x: Any, w: Any, targets: Any, lse: Any, ignore_index: int, weight_grad: bool
) -> tuple[Any, ...]:
    def step(dw: Any, xs: Any) -> tuple[Any, Any]:
        g, rows, targets, lse = map(spread, xs)
        d = dlogits(g, _by_weight(rows, w, 1), targets, lse, ignore_index).astype(x.dtype)
        return dw + _dot(d, rows, (0, 0)) if weight_grad else dw, _by_weight(d, w, 0)

    zero = jnp.zeros(w.shape if weight_grad else (), jnp.float32)
    rows = _pieces(g.astype(jnp.float32), 0), _pieces(x, 0), _pieces(targets, ignore_index), _pieces(lse, 0)
    dw, dx = lax.scan(step, zero, rows)
    dx = dx.reshape(-1, x.shape[1])[: len(x)]
    return (dx, dw) if weight_grad else (dx,)


PRODUCTS: Mapping[str, Callable[..., Any]] = {
    "matmul": _matmul, "addmm": _addmm, "linear": _linear, "linear_input_grad": _linear_input_grad,
    "expert_linear": lambda x, w, ids: _expert_product(x, w, ids, -1),
    "expert_linear_input_grad": lambda g, w, ids: _expert_product(g, w, ids, -2),
    "embedding": _embedding, "dequantize": lambda w: w,
    "linear_cross_entropy": _linear_cross_entropy,
    "linear_cross_entropy_backward": _linear_cross_entropy_backward,
    "attention": attention.attention, "attention_backward": attention.attention_backward,
}  # fmt: skip


_OF_EXPERTS = ("expert_linear", "expert_linear_input_grad")


def unpacked(row: str, inputs: list[Any], specs: list[Spec]) -> list[Any]:
    """The inputs of a row, packed ones decoded. Of an embedding only the rows that are taken, and of a few
    tokens' experts those that are chosen."""

    def taken(ids: Any, table: Any) -> list[Any]:
        return DECODERS.taken(ids, _taken(table, ids, 0), (ids >= 0) & (ids < len(table)), specs[1])

    if row == "embedding" and specs[1].dtype.is_packed:
        return taken(*inputs)
    if row in _OF_EXPERTS and specs[1].dtype.is_packed and _few(inputs[1], inputs[2]):
        ids, w = taken(inputs[2], inputs[1])
        return [inputs[0], w, ids]
    if row == "linear" and specs[1].dtype.is_packed and has_kernels():
        x, w, *bias = inputs
        if packed_linear.takes(math.prod(x.shape[:-1]), w):
            return [x, Packed(w, stored(specs[1].dtype)), *bias]
    return list(map(DECODERS.opened, inputs, specs))
