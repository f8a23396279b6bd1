"""Attention over a paged cache (arXiv:2309.06180): a flat list of tokens, each of some sequence.

Keys and values stand in pools of pages of `page` slots: K [N, Hkv, D, page] (transposed, so that a vector
lane is a key), V [N, Hkv, page, Dv]. Token t belongs to sequence sequences[t] at position positions[t];
position p of sequence s stands in page pages[s, p // page], slot p % page. pages[s, i] < 0: not there.

A pool of q8_0 holds blocks of 32 elements of a head, so that D and Dv divide by 32; `blocks/pools.py` says
how its bytes stand.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trivet import dtypes
from trivet.dtypes import f32, i32
from trivet.errors import ShapeError, UnsupportedError
from trivet.graph import Node, Spec
from trivet.ops.attention import default_scale, grouped, masked_scores, visible, weights_of
from trivet.ops.elementwise import cast, iota, le, maximum, mul, sub, where
from trivet.ops.matmul import matmul
from trivet.ops.movement import permute, reshape, take
from trivet.ops.reduce import logsumexp
from trivet.ops.rules import has_rank, has_shape, one_of
from trivet.ops.table import NoGradient, Sample, Typed, define, unwrap

_SERVING = NoGradient("the cache serves generation, where nothing is differentiated; train with attention")
_DENSE = (dtypes.f32, dtypes.f16, dtypes.bf16)
_POOLS = (*_DENSE, dtypes.q8_0)


def _check_pages(op: str, page: Any, tokens: Any, positions: Spec, sequences: Spec, pages: Spec) -> None:
    one_of(op, (i32,), positions, sequences, pages)
    has_shape(op, "positions", positions, (tokens,))
    has_shape(op, "sequences", sequences, (tokens,))
    has_rank(op, "pages", pages, (2,))
    if not isinstance(page, int) or page < 1 or page % 16:
        raise ShapeError(f"[{op}] pages of {page} slots, wanted a multiple of 16")


def _check_blocks(op: str, pool: Spec, size: Any) -> None:
    if pool.dtype.is_packed and size % pool.dtype.block:
        raise ShapeError(
            f"[{op}] a head size of {size} in pools of {pool.dtype}, wanted a multiple of {pool.dtype.block}"
        )


def _append_infer(
    pool: Spec, new: Spec, positions: Spec, sequences: Spec, pages: Spec, transposed: bool
) -> Spec:
    one_of("kv_append", _POOLS, pool)
    one_of("kv_append", (f32,), new)
    has_rank("kv_append", "pool", pool, (4,))
    has_rank("kv_append", "new", new, (3,))
    tokens, heads, d = new.shape
    page = pool.shape[3 if transposed else 2]
    _check_blocks("kv_append", pool, d)
    has_shape(
        "kv_append",
        "pool",
        pool,
        (pool.shape[0], heads, d, page) if transposed else (pool.shape[0], heads, page, d),
    )
    _check_pages("kv_append", page, tokens, positions, sequences, pages)
    return pool


_PAGES = np.array([[3, 1, -1], [0, 4, 2]], np.int32)  # of two sequences in a pool of 5, 16 slots each
_SEQUENCES = np.array([0, 1, 1, 0, 1], np.int32)
_POSITIONS = np.array([17, 3, 16, 0, 40], np.int32)


def _pool(r: Any, shape: tuple[int, ...], dtype: Any) -> Typed:
    values = r.standard_normal(shape).astype(np.float32)
    if dtype is dtypes.bf16:  # bits whose lower half is cut off
        return Typed((values.view(np.uint32) >> 16).astype(np.uint16), dtype, shape)
    return Typed(values.astype(np.float16 if dtype is dtypes.f16 else np.float32), dtype, shape)


def _append_sample(transposed: bool, dtype: Any, tokens: int = 5, note: str = "") -> Sample:
    def make(r: Any) -> list[Any]:
        shape = (5, 2, 6, 16) if transposed else (5, 2, 16, 6)
        new = r.standard_normal((tokens, 2, 6)).astype(np.float32)
        return [_pool(r, shape, dtype), new, _POSITIONS[:tokens], _SEQUENCES[:tokens], _PAGES]

    return Sample(make, {"transposed": transposed}, note=note)


_kv_append = define(
    "kv_append",
    attrs={"transposed": bool},
    infer=_append_infer,
    gradient=_SERVING,
    samples=[
        *(_append_sample(t, d) for t in (True, False) for d in _DENSE),
        _append_sample(True, f32, 1, "one token"),
        _append_sample(False, f32, 0, "no tokens"),
    ],
    tolerance=dict.fromkeys(_DENSE, 0.0),
    doc="A page pool with new keys or values written at their tokens' places.",
    alias={0: 0},
)


def kv_append(pool: Any, new: Any, positions: Any, sequences: Any, pages: Any, transposed: bool) -> Any:
    """`pool` (f32, f16, bf16 or q8_0) with `new` f32 [T, Hkv, D] written where its tokens stand.

    `positions` and `sequences` are i32 [T], `pages` i32 [B, P]. `transposed` is true for keys, whose pool
    is [N, Hkv, D, page], and false for values, [N, Hkv, page, D]. A plan writes in place. A run whose
    position has no page raises InputError.
    """
    return _kv_append(pool, new, positions, sequences, pages, transposed=transposed)


def _infer(
    q: Spec, k_pool: Spec, v_pool: Spec, positions: Spec, sequences: Spec, pages: Spec, *slopes: Spec,
    scale: float, window: int, softcap: float, alibi: bool,
) -> Spec:  # fmt: skip
    op = "paged_attention"
    one_of(op, (f32,), q, *slopes)
    one_of(op, _POOLS, k_pool, v_pool)
    has_rank(op, "q", q, (3,))
    has_rank(op, "k_pool", k_pool, (4,))
    has_rank(op, "v_pool", v_pool, (4,))
    tokens, heads, d = q.shape
    count, kv, _, page = k_pool.shape
    grouped(op, heads, kv)
    _check_blocks(op, k_pool, d)
    _check_blocks(op, v_pool, v_pool.shape[3])
    has_shape(op, "k_pool", k_pool, (count, kv, d, page))
    has_shape(op, "v_pool", v_pool, (count, kv, page, v_pool.shape[3]))
    _check_pages(op, page, tokens, positions, sequences, pages)
    if len(slopes) != bool(alibi):
        raise ShapeError(f"[{op}] got {len(slopes)} optional inputs with alibi={bool(alibi)}")
    for s in slopes:
        has_shape(op, "slopes", s, (heads,))
    if window < 0 or softcap < 0:
        raise ShapeError(f"[{op}] window {window} and softcap {softcap} must be at least 0")
    return Spec((tokens, heads, v_pool.shape[3]), f32)


def _composed(
    q: Node, k_pool: Node, v_pool: Node, positions: Node, sequences: Node, pages: Node, *slopes: Node,
    scale: float, window: int, softcap: float, alibi: bool,
) -> Any:  # fmt: skip
    if k_pool.dtype.is_packed or v_pool.dtype.is_packed:
        raise UnsupportedError("[paged_attention] pools of q8_0 cannot be read by simpler ops")
    tokens, heads, d = q.shape
    _, kv, _, page = k_pool.shape
    group = grouped("paged_attention", heads, kv)
    ids = maximum(take(pages, sequences), 0)
    slots: Any = pages.shape[1] * page
    k = reshape(permute(take(k_pool, ids), (0, 2, 3, 1, 4)), (tokens, kv, d, slots))
    v = reshape(permute(take(v_pool, ids), (0, 2, 1, 3, 4)), (tokens, kv, slots, v_pool.shape[3]))
    position, key = reshape(positions, (tokens, 1, 1, 1)), iota((1, slots), 1, i32)
    bias = None
    if alibi:
        bias = mul(reshape(slopes[0], (kv, group, 1)), cast(sub(key, position), f32))
    s = mul(matmul(reshape(q, (tokens, kv, group, d)), cast(k, f32)), scale)
    masked = masked_scores(s, visible(position, key, True, window), softcap, bias).masked
    p = weights_of(masked, logsumexp(masked, -1, keepdims=True))
    seen = le(reshape(key, (slots, 1)), position)  # a free slot may hold anything, NaN included
    o = matmul(p, where(seen, cast(v, f32), 0.0))
    return reshape(o, (tokens, heads, v_pool.shape[3]))


def _sample(dtype: Any = f32, tokens: int = 5, note: str = "", alibi: bool = False, **attrs: Any) -> Sample:
    def make(r: Any) -> list[Any]:
        q = r.standard_normal((tokens, 4, 6)).astype(np.float32)
        pools = [_pool(r, (5, 2, 6, 16), dtype), _pool(r, (5, 2, 16, 7), dtype)]
        slopes = [(2.0 ** -np.arange(1, 5)).astype(np.float32)] if alibi else []
        return [q, *pools, _POSITIONS[:tokens], _SEQUENCES[:tokens], _PAGES, *slopes]

    return Sample(make, {"scale": 0.4, "window": 0, "softcap": 0.0, "alibi": alibi, **attrs}, note=note)


_paged_attention = define(
    "paged_attention",
    attrs={"scale": float, "window": int, "softcap": float, "alibi": bool},
    infer=_infer,
    gradient=_SERVING,
    fallback=_composed,
    fused=True,
    samples=[
        *(_sample(d) for d in _DENSE),
        _sample(window=5),
        _sample(softcap=0.9),
        _sample(alibi=True),
        _sample(dtypes.f16, window=17, softcap=2.0, alibi=True),
        _sample(tokens=1, note="one token"),
        _sample(tokens=0, note="no tokens"),
    ],
    tolerance={f32: 1e-5},
    doc="Attention of tokens over the pages of their own sequences, up to their own positions.",
)


def paged_attention(
    q: Any,
    k_pool: Any,
    v_pool: Any,
    positions: Any,
    sequences: Any,
    pages: Any,
    *,
    slopes: Any = None,
    scale: float | None = None,
    window: int = 0,
    softcap: float = 0.0,
) -> Any:
    """Attention of `q` f32 [T, H, D] over pools that `kv_append` filled: o f32 [T, H, Dv].

    Token t sees the keys 0..positions[t] of its own sequence, or the last `window` of them. `slopes` f32
    [H], `scale` (1/sqrt(D) unless given) and `softcap` are as in `attention`. A token's result does not
    depend on which other tokens are in the run.
    """
    nodes, wrap = unwrap(
        "paged_attention",
        [q, k_pool, v_pool, positions, sequences, pages, *([] if slopes is None else [slopes])],
    )
    attrs = {"window": window, "softcap": float(softcap), "alibi": slopes is not None}
    attrs["scale"] = float(scale) if scale is not None else default_scale("paged_attention", nodes[0])
    return wrap(_paged_attention.node(nodes, attrs))
