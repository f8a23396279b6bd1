"""Attention and the paged cache: a head and a chunk of queries at a time, never T×S for all heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trivet.errors import InputError

_QUERIES = 256  # a chunk of scores stays in cache


def _scores(q: Any, k: Any, at: Any, key: Any, scale: float, softcap: float, slope: float) -> tuple[Any, Any]:
    """Scores of queries at positions `at` and keys at positions `key`, and their slope under the soft cap."""
    s, bend = scale * (q @ k.T), 1.0
    if softcap:
        t = np.tanh(s / softcap)
        s, bend = softcap * t, 1 - t * t
    return s + slope * (key - at[:, None]), bend


def _seen(at: Any, key: Any, causal: bool, window: int) -> Any:
    behind = at[:, None] - key
    return ((behind >= 0) | (not causal)) & ((behind < window) | (not window))


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
    q: Any, k: Any, v: Any, at: Any, key: Any, causal: bool, window: int, **score: float
) -> tuple[Any, Any]:
    """(o, lse) of one head."""
    seen = _seen(at, key, causal, window)
    s = np.where(seen, _scores(q, k, at, key, **score)[0], -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(top == -np.inf, 0, top))
    total = p.sum(-1, keepdims=True)
    o = np.where(total == 0, 0.0, _weighted(p, v, seen) / total)
    return o, (top + np.log(total))[:, 0]


def _pieces(q: Any, k: Any, rest: tuple[Any, ...], a: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Every (index of queries, index of keys, positions, key positions, slope) of an attention call."""
    (batch, t, heads, _), (s, kv) = q.shape, k.shape[1:3]
    slopes = rest[-1] if a["alibi"] else np.zeros(heads)
    for b in range(batch):
        count = min(s, max(0, int(rest[0][b]))) if a["lengths"] else s
        for start in range(0, t, _QUERIES):
            rows = slice(start, min(t, start + _QUERIES))
            at = np.arange(rows.start, rows.stop) + (s - t)
            span = _span(at, count, a["causal"], a["window"])
            for h in range(heads):
                key = np.arange(span.start, span.stop)
                yield (b, rows, h), (b, span, h // (heads // kv)), at, key, float(slopes[h])


def attention(q: Any, k: Any, v: Any, *rest: Any, **a: Any) -> tuple[Any, Any]:
    o, lse = np.empty((*q.shape[:3], v.shape[3])), np.empty(q.shape[:3])
    for x, y, at, key, slope in _pieces(q, k, rest, a):
        o[x], lse[x] = _attend(
            q[x],
            k[y],
            v[y],
            at,
            key,
            a["causal"],
            a["window"],
            scale=a["scale"],
            softcap=a["softcap"],
            slope=slope,
        )
    return o, lse


def attention_backward(
    g: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, *rest: Any, **a: Any
) -> tuple[Any, Any, Any]:
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for x, y, at, key, slope in _pieces(q, k, rest, a):
        s, bend = _scores(q[x], k[y], at, key, a["scale"], a["softcap"], slope)
        total = lse[x][:, None]
        seen = _seen(at, key, a["causal"], a["window"]) & (total > -np.inf)
        p = np.where(seen, np.exp(s - total), 0.0)
        ds = p * (g[x] @ v[y].T - (g[x] * o[x]).sum(-1, keepdims=True)) * bend * a["scale"]
        dq[x] += ds @ k[y]
        dk[y] += ds.T @ q[x]
        dv[y] += p.T @ g[x]
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


def kv_append(pool: Any, new: Any, positions: Any, sequences: Any, pages: Any, transposed: bool) -> Any:
    pool = pool.copy()
    page = pool.shape[3 if transposed else 2]
    ids = _page_ids("kv_append", pages, sequences, positions // page, len(pool))
    if transposed:
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
    page, group = k_pool.shape[3], heads // k_pool.shape[1]
    slope = slopes[0] if alibi else np.zeros(heads)
    o = np.empty((tokens, heads, v_pool.shape[3]))
    for sequence in np.unique(sequences):
        mine = np.flatnonzero(sequences == sequence)
        for rows in np.split(mine, range(_QUERIES, len(mine), _QUERIES)):
            at = positions[rows]
            span = _span(at, int(at.max()) + 1, True, window)
            index = np.arange(span.start // page, (span.stop + page - 1) // page)
            ids = _page_ids("paged_attention", pages, sequence, index, len(k_pool))
            key = np.arange(span.start, span.stop)
            where = key - index[0] * page if len(index) else key
            for h in range(heads):
                k = k_pool[ids, h // group].swapaxes(1, 2).reshape(-1, q.shape[2])[where]
                v = v_pool[ids, h // group].reshape(-1, v_pool.shape[3])[where]
                o[rows, h], _ = _attend(
                    q[rows, h],
                    k,
                    v,
                    at,
                    key,
                    True,
                    window,
                    scale=scale,
                    softcap=softcap,
                    slope=float(slope[h]),
                )
    return o


LOWERINGS: dict[str, Callable[..., Any]] = {
    "attention": attention,
    "attention_backward": attention_backward,
    "kv_append": kv_append,
    "paged_attention": paged_attention,
}
