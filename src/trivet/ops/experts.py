"""A mixture of experts (arXiv:1701.06538): choosing the largest, and products with weights of the chosen.

Token t is given to the experts experts[t, 0..k-1] of a stack w [E, N, K]. The fallbacks multiply with all
experts and choose afterwards; backends need not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trivet import dtypes
from trivet.dtypes import DType, f32, i32
from trivet.errors import DTypeError, ShapeError
from trivet.graph import Node, Spec
from trivet.ops.dequantize import packed_sample, widened
from trivet.ops.elementwise import INF, add, cast, eq, gt, iota, logical_and, logical_or, lt, mul, ne, where
from trivet.ops.linear import rows
from trivet.ops.matmul import matmul
from trivet.ops.movement import broadcast_to, permute, reshape, take
from trivet.ops.reduce import sum
from trivet.ops.rules import PACKED, at_least, floating, has_rank, has_shape, one_of, to_dtype, tolerance
from trivet.ops.table import GradientContext, Sample, Typed, define

_WEIGHTS = (*dtypes.FLOATS, *dtypes.IN_GGUF)


# --- the largest ---------------------------------------------------------------------------------


def _top_k_infer(x: Spec, k: int) -> tuple[Spec, Spec]:
    floating("top_k", x)
    at_least("top_k", "x", x, 1)
    size = x.shape[-1]
    if not isinstance(size, int) or not 1 <= k <= size:
        raise ShapeError(f"[top_k] k is {k} of x {x!r}; wanted 1 to its last size")
    return Spec((*x.shape[:-1], k), x.dtype), Spec((*x.shape[:-1], k), i32)


def _top_k_composed(x: Node, k: int) -> tuple[Any, Any]:
    lead, n = x.shape[:-1], x.shape[-1]
    key = where(ne(x, x), INF, x)
    other, own = reshape(key, (*lead, 1, n)), reshape(key, (*lead, n, 1))
    first = lt(iota((n, n), 1, i32), iota((n, n), 0, i32))
    before = logical_or(gt(other, own), logical_and(eq(other, own), first))
    rank = sum(cast(before, i32), -1)
    chosen = eq(reshape(rank, (*lead, 1, n)), iota((k, 1), 0, i32))
    values = sum(where(chosen, reshape(x, (*lead, 1, n)), 0.0), -1)
    return values, sum(where(chosen, iota((n,), 0, i32), 0), -1)


def _top_k_gradient(c: GradientContext) -> list[Node | None]:
    g, (_, indices), (x,) = c.gs[0], c.ys, c.inputs
    if g is None:
        return [None]
    here = eq(reshape(indices, (*indices.shape, 1)), iota((x.shape[-1],), 0, i32))
    return [sum(where(here, reshape(g, (*g.shape, 1)), 0.0), -2)]


def _top_k_sample(make: Any, k: int, note: str = "", gradient: bool = True) -> Sample:
    return Sample(lambda r: (make(r),), {"k": k}, gradient=gradient, note=note)


_top_k = define(
    "top_k",
    attrs={"k": int},
    infer=_top_k_infer,
    gradient=_top_k_gradient,
    fallback=_top_k_composed,
    fused=True,
    samples=[
        _top_k_sample(lambda r: r.permutation(33.0 * np.arange(66)).reshape(2, 3, 11), 4),
        _top_k_sample(lambda r: r.permutation(7.0 * np.arange(15)).reshape(3, 5), 5, "all of them"),
        _top_k_sample(lambda r: np.arange(3.0), 1, "a vector"),
        _top_k_sample(lambda r: np.array([[1.0, 3, 3, 0], [2, 2, 2, 2]]), 2, "ties", False),
        _top_k_sample(lambda r: np.array([[-INF, 1, -INF], [np.nan, INF, 2], [0.0, -0.0, -1]]), 3, "hostile",
                      False),
        _top_k_sample(lambda r: np.zeros((0, 4)), 2, "empty"),
    ],
    tolerance=dict.fromkeys(dtypes.FLOATS, 0.0),
    doc="The k largest of the last axis, in order, and where they stand; the first of equals comes first.",
)  # fmt: skip


def top_k(x: Any, k: int) -> Any:
    """The `k` largest along the last axis of `x` [..., N], the largest first: (values [..., k], indices i32
    [..., k]). Of equals the one that stands first comes first; NaN counts as infinity.

    >>> top_k(np.zeros((2, 8), np.float32), 3)
    (<item f32[2, 3]>, <item i32[2, 3]>)
    """
    return _top_k(x, k=k)


# --- products ------------------------------------------------------------------------------------


def _check(op: str, w: Spec, experts: Spec) -> None:
    one_of(op, _WEIGHTS, w)
    one_of(op, (i32,), experts)
    has_rank(op, "w", w, (3,))
    has_rank(op, "experts", experts, (2,))
    if w.shape[0] == 0:
        raise ShapeError(f"[{op}] w has shape {w.shape}, wanted an expert at least")


def _is_shared(op: str, x: Spec | Node, experts: Spec | Node) -> bool:
    """Whether all experts of a token take the same row."""
    if x.ndim not in (2, 3):
        raise ShapeError(f"[{op}] x has shape {x.shape}, wanted [T, K] or [T, k, K] for experts [T, k]")
    has_shape(op, "x", x if isinstance(x, Spec) else x.spec, (*experts.shape[: x.ndim - 1], x.shape[-1]))
    return x.ndim == 2


def _infer(x: Spec, w: Spec, experts: Spec) -> Spec:
    floating("expert_linear", x)
    _check("expert_linear", w, experts)
    _is_shared("expert_linear", x, experts)
    if x.shape[-1] != w.shape[2]:
        raise ShapeError(f"[expert_linear] x has shape {x.shape}, wanted [..., {w.shape[2]}] for w {w.shape}")
    return Spec((*experts.shape, w.shape[1]), x.dtype)


def _chosen(every: Node, experts: Node, count: Any, shared: bool) -> Any:
    """Of every [R, E * N], the rows [T, k, N] of each one's expert; R is T, or T * k."""
    tokens, k = experts.shape
    at = iota((tokens, 1), 0, i32) if shared else reshape(iota((tokens * k,), 0, i32), (tokens, k))
    flat = reshape(every, (every.shape[0] * count, every.shape[1] // count))
    return take(flat, add(mul(at, count), experts))


def _wide(x: Node, w: Node) -> tuple[Node, Node]:
    """What is multiplied: packed weights are not rounded to 16 bits."""
    kind = f32 if w.dtype.is_packed and x.dtype in dtypes.HALVES else x.dtype
    return rows(to_dtype(x, kind)), widened(w, kind)


def _composed(x: Node, w: Node, experts: Node) -> Any:
    flat, wide = _wide(x, w)
    e, n, k = w.shape
    every = matmul(flat, reshape(wide, (e * n, k)), transpose_b=True)
    return to_dtype(_chosen(every, experts, e, x.ndim == 2), x.dtype)


def _weight_gradient(op: str, g: Node, x: Node, w: Node, experts: Node) -> Node:
    if w.dtype.is_packed:
        raise DTypeError(f"[{op}] a packed weight ({w.spec!r}) is constant and has no gradient")
    count = w.shape[0]
    assert isinstance(count, int)
    dw: Node = cast(expert_linear_weight_grad(g, x, experts, count), w.dtype)
    return dw


def _summed(dx: Node, x: Node) -> Node:
    """The gradient in x of rows that stand for it, [T, k, K]."""
    total: Node = sum(dx, 1) if x.ndim == 2 else dx
    return total


def _gradient(c: GradientContext) -> list[Node | None]:
    x, w, experts = c.inputs
    return [
        _summed(expert_linear_input_grad(c.g, w, experts), x) if c.needs[0] else None,
        _weight_gradient("expert_linear", c.g, x, w, experts) if c.needs[1] else None,
        None,
    ]


def _sample(
    x: tuple[int, ...], w: tuple[int, int, int], experts: list[list[int]], dtype: DType | None = None,
    note: str = "",
) -> Sample:  # fmt: skip
    def weight(r: Any) -> Any:
        if dtype is None:
            return r.standard_normal(w)
        rows = packed_sample(r, dtype, w[0] * w[1], w[2])
        return Typed(rows.array, dtype, w)

    return Sample(lambda r: [r.standard_normal(x), weight(r), _ids(experts)], note=note)


def _ids(experts: list[list[int]]) -> Any:
    return np.array(experts or np.zeros((0, 2)), np.int32)


_PAIRS = [[0, 3], [3, 1], [1, 0], [0, 3], [4, 0]]


def _samples(inputs: bool) -> list[Sample]:
    """Of products with w, or (not `inputs`) with its transpose, whose x has k rows for each token."""

    def sized(x: int, w: tuple[int, int, int], experts: list[list[int]], *rest: Any, **more: Any) -> Sample:
        shape = (len(experts), x) if inputs else (*_ids(experts).shape, w[1])
        return _sample(shape, w, experts, *rest, **more)

    def packed(t: int, d: DType) -> Sample:
        return sized(2 * d.block, (5, 19, 2 * d.block), _PAIRS[:t], d)

    return [
        sized(7, (5, 6, 7), _PAIRS),
        _sample((5, 2, 7 if inputs else 6), (5, 6, 7), _PAIRS, note="a row for each expert"),
        sized(33, (3, 17, 33), [[2], [2], [0]]),
        sized(7, (1, 4, 7), [[0], [0]], note="one expert"),
        sized(7, (3, 4, 7), [[1, 1]], note="the same twice"),
        sized(7, (3, 4, 7), [], note="no tokens"),
        *(packed(5, d) for d in dtypes.IN_GGUF),
        packed(1, dtypes.q8_0),
        packed(1, dtypes.q4_k),
    ]


_expert_linear = define(
    "expert_linear",
    infer=_infer,
    gradient=_gradient,
    fallback=_composed,
    fused=True,
    samples=_samples(True),
    tolerance=tolerance(2e-5) | PACKED,
    doc="x @ w[e].T for each of the experts e that a row is given to.",
)


def expert_linear(x: Any, w: Any, experts: Any) -> Any:
    """`x` [T, K], or [T, k, K] with a row for each expert, times the transpose of `w` [E, N, K] of the
    `experts` i32 [T, k]: [T, k, N] of x's dtype. `w` is floating, or of a packed dtype that GGUF files hold.

    >>> x, experts = np.zeros((2, 8), np.float32), np.zeros((2, 3), np.int32)
    >>> expert_linear(x, np.zeros((4, 5, 8), np.float16), experts)
    <expert_linear f32[2, 3, 5]>
    """
    return _expert_linear(x, w, experts)


def _input_infer(g: Spec, w: Spec, experts: Spec) -> Spec:
    op = "expert_linear_input_grad"
    floating(op, g)
    _check(op, w, experts)
    has_shape(op, "g", g, (*experts.shape, w.shape[1]))
    return Spec((*experts.shape, w.shape[2]), g.dtype)


def _input_composed(g: Node, w: Node, experts: Node) -> Any:
    flat, wide = _wide(g, w)
    e, n, k = w.shape
    turned = reshape(permute(wide, (1, 0, 2)), (n, e * k))
    return to_dtype(_chosen(matmul(flat, turned), experts, e, False), g.dtype)


def _input_gradient(c: GradientContext) -> list[Node | None]:
    g, w, experts = c.inputs
    return [
        expert_linear(c.g, w, experts) if c.needs[0] else None,
        _weight_gradient("expert_linear_input_grad", g, c.g, w, experts) if c.needs[1] else None,
        None,
    ]


_expert_linear_input_grad = define(
    "expert_linear_input_grad",
    infer=_input_infer,
    gradient=_input_gradient,
    fallback=_input_composed,
    fused=True,
    samples=_samples(False),
    tolerance=tolerance(2e-5) | PACKED,
    doc="g @ w[e], the gradient of expert_linear in its rows.",
)


def expert_linear_input_grad(g: Any, w: Any, experts: Any) -> Any:
    """`g` [T, k, N] times `w` [E, N, K] of the `experts` i32 [T, k]: [T, k, K].

    >>> g, experts = np.zeros((2, 3, 5), np.float32), np.zeros((2, 3), np.int32)
    >>> expert_linear_input_grad(g, np.zeros((4, 5, 8), np.float16), experts)
    <expert_linear_input_grad f32[2, 3, 8]>
    """
    return _expert_linear_input_grad(g, w, experts)


def _weight_infer(g: Spec, x: Spec, ids: Spec, experts: int) -> Spec:
    op = "expert_linear_weight_grad"
    floating(op, g, x)
    one_of(op, (i32,), ids)
    has_rank(op, "ids", ids, (2,))
    has_rank(op, "g", g, (3,))
    has_shape(op, "g", g, (*ids.shape, g.shape[2]))
    _is_shared(op, x, ids)
    if experts < 1:
        raise ShapeError(f"[{op}] experts is {experts}, wanted 1 or more")
    return Spec((experts, g.shape[2], x.shape[-1]), g.dtype)


def _weight_composed(g: Node, x: Node, ids: Node, experts: int) -> Any:
    tokens, k = ids.shape
    n, width = g.shape[2], x.shape[-1]
    if x.ndim == 2:
        x = broadcast_to(reshape(x, (tokens, 1, width)), (tokens, k, width))
    taken = eq(reshape(ids, (tokens * k, 1, 1)), reshape(iota((experts,), 0, i32), (1, experts, 1)))
    spread = where(taken, reshape(g, (tokens * k, 1, n)), 0.0)
    dw = matmul(reshape(spread, (tokens * k, experts * n)), rows(x), transpose_a=True)
    return reshape(dw, (experts, n, width))


def _weight_slopes(c: GradientContext) -> list[Node | None]:
    g, x, ids = c.inputs
    return [
        expert_linear(x, c.g, ids) if c.needs[0] else None,
        _summed(expert_linear_input_grad(g, c.g, ids), x) if c.needs[1] else None,
        None,
    ]


def _weight_sample(x: tuple[int, ...], n: int, ids: list[list[int]], experts: int, note: str = "") -> Sample:
    return Sample(
        lambda r: [r.standard_normal((*_ids(ids).shape, n)), r.standard_normal(x), _ids(ids)],
        {"experts": experts},
        note=note,
    )


_expert_linear_weight_grad = define(
    "expert_linear_weight_grad",
    attrs={"experts": int},
    infer=_weight_infer,
    gradient=_weight_slopes,
    fallback=_weight_composed,
    fused=True,
    samples=[
        _weight_sample((5, 37), 6, _PAIRS, 5),
        _weight_sample((5, 2, 7), 3, _PAIRS, 6, "a row for each expert"),
        _weight_sample((2, 7), 4, [[0], [0]], 1, "one expert"),
        _weight_sample((1, 7), 4, [[1, 1]], 3, "the same twice"),
        _weight_sample((0, 7), 4, [], 2, "no tokens"),
    ],
    tolerance=tolerance(2e-5),
    doc="The gradient of expert_linear in w: of each expert, the sum of g x over its rows.",
)


def expert_linear_weight_grad(g: Any, x: Any, ids: Any, experts: int) -> Any:
    """The gradient [E, N, K] of `expert_linear` in its w, of which there are `experts`, for the gradient `g`
    [T, k, N] of its result; `x` [T, K] or [T, k, K] and `ids` i32 [T, k] are what it was given.

    >>> g, ids = np.zeros((2, 3, 5), np.float32), np.zeros((2, 3), np.int32)
    >>> expert_linear_weight_grad(g, np.zeros((2, 8), np.float32), ids, 4)
    <expert_linear_weight_grad f32[4, 5, 8]>
    """
    return _expert_linear_weight_grad(g, x, ids, experts=experts)
