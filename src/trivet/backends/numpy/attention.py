"""Attention and the paged cache: a head and a chunk of queries at a time, never T×S for all heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from trivet.blocks import pools
from trivet.dtypes import q8_0
from trivet.errors import InputError

_QUERIES = 128  # a chunk of scores stays in cache


class _Piece(NamedTuple):
    """Some queries, as rows: of all heads that share a key head; and the keys that any of them sees."""

    queries: Any  # index of [t, G, D] in q
    keys: Any  # index of [s, D] in k and v
    at: Any  # the position of each row
    key: Any  # the position of each key
    slope: Any  # of each row, [rows, 1]
    start: Any  # the first key of each row


def _scores(q: Any, k: Any, p: _Piece, scale: float, softcap: float) -> tuple[Any, Any]:
    """Scores, and their slope under the soft cap."""
    s, bend = scale * (q @ k.T), 1.0
    if softcap:
        t = np.tanh(s / softcap)
        s, bend = softcap * t, 1 - t * t
    return s + p.slope * (p.key - p.at[:, None]), bend


def _seen(p: _Piece, causal: bool, window: int) -> Any:
    behind = p.at[:, None] - p.key
    return ((behind >= 0) | (not causal)) & ((behind < window) | (not window)) & (p.key >= p.start)


def _span(at: Any, count: int, causal: bool, window: int) -> slice:
    """The keys that any of these queries sees."""
    low = max(0, int(at.min()) - window + 1) if window else 0
    return slice(low, max(low, min(count, int(at.max()) + 1) if causal else count))


def _weighted(p: Any, v: Any, seen: Any) -> Any:
    """p @ v, in which a value that a query does not see does not matter even if it is NaN."""
    odd = ~np.isfinite(v).all(-1)
    if not odd.any():
        return p @ v
    parts = np.where(seen[:, odd, None], p[:, odd, None] * v[odd], 0.0)
    return p[:, ~odd] @ v[~odd] + parts.sum(1)


def _attend(
    q: Any, k: Any, v: Any, piece: _Piece, causal: bool, window: int, scale: float, softcap: float
) -> tuple[Any, Any]:
    """(o [t, G, Dv], lse [t, G]) of the queries q [t, G, D]."""
    seen = _seen(piece, causal, window)
    s = np.where(seen, _scores(_rows(q), k, piece, scale, softcap)[0], -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(top == -np.inf, 0, top))
    total = p.sum(-1, keepdims=True)
    o = np.where(total == 0, 0.0, _weighted(p, v, seen) / total)
    return o.reshape(*q.shape[:2], -1), (top + np.log(total)).reshape(q.shape[:2])


def _rows(x: Any) -> Any:
    return x.reshape(-1, x.shape[-1])


def _pieces(q: Any, k: Any, rest: tuple[Any, ...], a: dict[str, Any]) -> Iterator[_Piece]:
    (batch, t, heads, _), (s, kv) = q.shape, k.shape[1:3]
    group = heads // kv
    slopes = rest[-1] if a["alibi"] else np.zeros(heads)
    starts = rest[a["lengths"]] if a["starts"] else np.zeros((batch, t), np.int32)
    if starts.size and (starts[:, 0].min() < 0 or (np.diff(starts, axis=1) < 0).any()):
        raise InputError("[attention] starts are negative, or decrease along a row")
    for b in range(batch):
        count = min(s, max(0, int(rest[0][b]))) if a["lengths"] else s
        for start in range(0, t, _QUERIES):
            rows = slice(start, min(t, start + _QUERIES))
            at = np.arange(rows.start, rows.stop) + (s - t)
            span = _span(at, count, a["causal"], a["window"])
            for h in range(kv):
                mine = slice(h * group, (h + 1) * group)
                yield _Piece(
                    (b, rows, mine), (b, span, h), np.repeat(at, group), np.arange(span.start, span.stop),
                    np.tile(slopes[mine], len(at))[:, None], np.repeat(starts[b, rows], group)[:, None],
                )  # fmt: skip


def attention(q: Any, k: Any, v: Any, *rest: Any, **a: Any) -> tuple[Any, Any]:
    o, lse = np.empty((*q.shape[:3], v.shape[3])), np.empty(q.shape[:3])
    for p in _pieces(q, k, rest, a):
        parts = q[p.queries], k[p.keys], v[p.keys]
        o[p.queries], lse[p.queries] = _attend(*parts, p, a["causal"], a["window"], a["scale"], a["softcap"])
    return o, lse


def attention_backward(
    g: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, *rest: Any, **a: Any
) -> tuple[Any, Any, Any]:
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for piece in _pieces(q, k, rest, a):
        gs, qs, os = (_rows(x[piece.queries]) for x in (g, q, o))
        ks, vs, total = k[piece.keys], v[piece.keys], lse[piece.queries].reshape(-1, 1)
        s, bend = _scores(qs, ks, piece, a["scale"], a["softcap"])
        seen = _seen(piece, a["causal"], a["window"]) & (total > -np.inf)
        p = np.where(seen, np.exp(s - total), 0.0)
        ds = p * (gs @ vs.T - (gs * os).sum(-1, keepdims=True)) * bend * a["scale"]
        dq[piece.queries] += (ds @ ks).reshape(dq[piece.queries].shape)
        dk[piece.keys] += ds.T @ qs
        dv[piece.keys] += p.T @ gs
    return dq, dk, dv


# --- the paged cache -----------------------------------------------------------------------------


def _page_ids(op: str, pages: Any, sequence: Any, index: Any, count: int) -> Any:
    """pages[sequence, index], all of it in range."""
    for name, value, limit in (("sequence", sequence, pages.shape[0]), ("page index", index, pages.shape[1])):
        if np.any((value < 0) | (value >= limit)):
            raise InputError(f"[{op}] a {name} is outside 0..{limit - 1}")
    ids = pages[sequence, index]
    if np.any((ids < 0) | (ids >= count)):
        raise InputError(
            f"[{op}] a page that is needed is not there: ids {ids.min()}..{ids.max()} of {count}"
        )
    return ids


def _page_size(pool: Any, keys: bool) -> int:
    """Slots of a page. Pools of q8_0 are in storage form: the rows of keys are blocks of 32 slots."""
    if keys and pool.dtype == np.uint8:
        return int(pool.shape[3]) // q8_0.nbytes * q8_0.block
    return int(pool.shape[3 if keys else 2])


def _pages(pool: Any, ids: Any, page: int, keys: bool) -> Any:
    """What pages of a pool hold: [heads, slots, size], page after page."""
    some = pool[ids]
    if pool.dtype == np.uint8:
        some = pools.read(some, page, keys=keys)
    elif keys:
        some = some.swapaxes(2, 3)
    some = some.swapaxes(0, 1)
    return some.reshape(len(some), -1, some.shape[-1])


def kv_append(pool: Any, new: Any, positions: Any, sequences: Any, pages: Any, transposed: bool) -> Any:
    pool = pool.copy()
    packed = pool.dtype == np.uint8
    page = _page_size(pool, keys=transposed)
    ids = _page_ids("kv_append", pages, sequences, positions // page, len(pool))
    if packed:
        pools.write(pool, page, ids, positions % page, new, keys=transposed)
    elif transposed:
        pool[ids, :, :, positions % page] = new
    else:
        pool[ids, :, positions % page] = new
    return pool


def paged_attention(
    q: Any, k_pool: Any, v_pool: Any, positions: Any, sequences: Any, pages: Any, *slopes: Any,
    scale: float, window: int, softcap: float, alibi: bool,
) -> Any:  # fmt: skip
    """Sequence by sequence: gathers the keys and values that its tokens see, and attends."""
    tokens, heads, _ = q.shape
    page, group = _page_size(k_pool, keys=True), heads // k_pool.shape[1]
    slope = slopes[0] if alibi else np.zeros(heads)
    packed = v_pool.dtype == np.uint8
    width = v_pool.shape[3] // q8_0.nbytes * q8_0.block if packed else v_pool.shape[3]
    o = np.empty((tokens, heads, width))
    for sequence in np.unique(sequences):
        mine = np.flatnonzero(sequences == sequence)
        for rows in np.split(mine, range(_QUERIES, len(mine), _QUERIES)):
            at = positions[rows]
            span = _span(at, int(at.max()) + 1, True, window)
            index = np.arange(span.start // page, (span.stop + page - 1) // page)
            ids = _page_ids("paged_attention", pages, sequence, index, len(k_pool))
            inside = slice(span.start - span.start // page * page, None)
            keys = _pages(k_pool, ids, page, keys=True)[:, inside]
            values = _pages(v_pool, ids, page, keys=False)[:, inside]
            for h in range(heads // group):
                part, count = slice(h * group, (h + 1) * group), span.stop - span.start
                piece = _Piece(
                    (rows, part), h, np.repeat(at, group), np.arange(span.start, span.stop),
                    np.tile(slope[part], len(rows))[:, None], 0,
                )  # fmt: skip
                parts = q[rows, part], keys[h, :count], values[h, :count]
                o[rows, part], _ = _attend(*parts, piece, True, window, scale, softcap)
    return o


LOWERINGS: dict[str, Callable[..., Any]] = {
    "attention": attention,
    "attention_backward": attention_backward,
    "kv_append": kv_append,
    "paged_attention": paged_attention,
}
