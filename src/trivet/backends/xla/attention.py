"""Attention and the paged cache: chunks of queries, so that scores never stand for all of them at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from trivet.backends.xla import pools
from trivet.backends.xla.placement import spread

_QUERIES = 256  # a chunk's scores are chunk x keys x heads
_NEVER = -jnp.inf


def _split(x: Any, kv: int) -> Any:
    """[B, T, H, D] -> [B, T, Hkv, G, D]."""
    b, t, h, d = x.shape
    return x.reshape(b, t, kv, h // kv, d)


def _scores(q: Any, k: Any, at: Any, slopes: Any, a: dict[str, Any]) -> tuple[Any, Any]:
    """Scores [B, t, Hkv, G, S] in float32, and their slope under the soft cap."""
    s, bend = a["scale"] * _product("btkgd,bskd->btkgs", q, k), 1.0
    if a["softcap"]:
        held = jnp.tanh(s / a["softcap"])
        s, bend = a["softcap"] * held, 1 - held * held
    if slopes is not None:
        far = jnp.arange(k.shape[1]) - at[:, None]
        s = s + slopes.reshape(q.shape[2], q.shape[3], 1) * far[:, None, None, :]
    return s, bend


def _product(what: str, x: Any, y: Any) -> Any:
    return jnp.einsum(what, x, y, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def _seen(at: Any, keys: int, lengths: Any, starts: Any, a: dict[str, Any]) -> Any:
    """Which keys a query sees: [B or 1, t, 1, 1, S]."""
    key, behind = jnp.arange(keys), at[:, None] - jnp.arange(keys)
    seen = ((behind >= 0) | (not a["causal"])) & ((behind < a["window"]) | (not a["window"]))
    seen = seen[None]
    if lengths is not None:
        seen = seen & (key < lengths[:, None, None])
    if starts is not None:
        seen = seen & (key >= starts[:, :, None])
    return seen[:, :, None, None, :]


def _options(rest: tuple[Any, ...], a: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(key_lengths, starts, slopes), each or None."""
    given = iter(rest)
    lengths, starts, slopes = (next(given) if a[flag] else None for flag in ("lengths", "starts", "alibi"))
    return lengths, starts, slopes


def _usable(k: Any, v: Any, lengths: Any) -> tuple[Any, Any]:
    """What padding holds does not matter, even if it is NaN."""
    if lengths is None:
        return k, v
    inside = (jnp.arange(k.shape[1]) < lengths[:, None])[..., None, None]
    return jnp.where(inside, k, 0), jnp.where(inside, v, 0)


def _weighed(s: Any, seen: Any) -> tuple[Any, Any, Any]:
    """(unnormalised weights, their sums, the log of the sums of exponentials), [..., S], [...], [...]."""
    s = jnp.where(seen, s, _NEVER)
    top = jnp.max(s, -1, initial=_NEVER)
    p = jnp.exp(s - jnp.where(jnp.isfinite(top), top, 0)[..., None])
    total = p.sum(-1)
    return p, total, top + jnp.log(total)


def _normal(o: Any, total: Any) -> Any:
    total = total[..., None]
    return jnp.where(total == 0, 0.0, o / jnp.where(total == 0, 1.0, total))


def _chunks(function: Callable[..., Any], t: int, *given: Any) -> Any:
    """function(first query, *slices along axis 1) for chunks of the queries, joined along axis 1."""
    if t <= _QUERIES:
        return function(0, *given)
    count = -(-t // _QUERIES)

    def cut(x: Any) -> Any:
        padded = jnp.pad(x, [(0, count * _QUERIES - t if i == 1 else 0) for i in range(x.ndim)])
        return jnp.moveaxis(padded.reshape(x.shape[0], count, _QUERIES, *x.shape[2:]), 1, 0)

    firsts = jnp.arange(count) * _QUERIES
    parts = lax.map(lambda xs: function(xs[0], *(spread(x, 1) for x in xs[1:])), (firsts, *map(cut, given)))
    return jax.tree.map(
        lambda y: jnp.moveaxis(y, 0, 1).reshape(y.shape[1], count * _QUERIES, *y.shape[3:])[:, :t], parts
    )


def attention(q: Any, k: Any, v: Any, *rest: Any, **a: Any) -> tuple[Any, Any]:
    lengths, starts, slopes = _options(rest, a)
    k, v = _usable(k, v, lengths)
    (_, t, h, _), (s, kv) = q.shape, k.shape[1:3]

    def some(first: Any, q: Any, *starts: Any) -> tuple[Any, Any]:
        at = first + jnp.arange(q.shape[1]) + (s - t)
        score, _ = _scores(q, k, at, slopes, a)
        p, total, lse = _weighed(score, _seen(at, s, lengths, starts[0] if starts else None, a))
        o = _normal(_product("btkgs,bskd->btkgd", p.astype(v.dtype), v), total)
        return o.reshape(*q.shape[:2], h, v.shape[-1]), lse.reshape(*q.shape[:2], h)

    given = (_split(q, kv), *(() if starts is None else (starts,)))
    return _chunks(some, t, *given)  # type: ignore[no-any-return]


def attention_backward(
    g: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, *rest: Any, **a: Any
) -> tuple[Any, Any, Any]:
    """A scan over chunks of queries; dk and dv are carried in float32."""
    lengths, starts, slopes = _options(rest, a)
    k, v = _usable(k, v, lengths)
    (b, t, h, _), (s, kv) = q.shape, k.shape[1:3]
    size = min(t, _QUERIES) or 1
    count = -(-t // size)
    if starts is None:
        starts = jnp.zeros((b, t), jnp.int32)
    delta = (g.astype(jnp.float32) * o.astype(jnp.float32)).sum(-1)
    rows = (
        _split(g, kv),
        _split(q, kv),
        lse.reshape(b, t, kv, h // kv),
        delta.reshape(b, t, kv, h // kv),
        starts,
    )

    def cut(x: Any) -> Any:
        fill = _NEVER if x is rows[2] else 0
        padded = jnp.pad(
            x, [(0, count * size - t if i == 1 else 0) for i in range(x.ndim)], constant_values=fill
        )
        return jnp.moveaxis(padded.reshape(b, count, size, *x.shape[2:]), 1, 0)

    def step(carry: Any, xs: Any) -> tuple[Any, Any]:
        first, g, q, lse, delta, starts = xs[0], *(spread(x, 1) for x in xs[1:])
        at = first + jnp.arange(size) + (s - t)
        score, bend = _scores(q, k, at, slopes, a)
        seen = _seen(at, s, lengths, starts, a) & jnp.isfinite(lse)[..., None]
        p = jnp.where(seen, jnp.exp(score - jnp.where(jnp.isfinite(lse), lse, 0)[..., None]), 0.0)
        ds = p * (_product("btkgd,bskd->btkgs", g, v) - delta[..., None]) * bend * a["scale"]
        ds, p = jnp.where(seen, ds, 0).astype(q.dtype), p.astype(q.dtype)
        dk = carry[0] + _product("btkgs,btkgd->bskd", ds, q)
        dv = carry[1] + _product("btkgs,btkgd->bskd", p, g)
        return (dk, dv), _product("btkgs,bskd->btkgd", ds, k)

    zero = jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
    (dk, dv), dq = lax.scan(step, zero, (jnp.arange(count) * size, *map(cut, rows)))
    dq = jnp.moveaxis(dq, 0, 1).reshape(b, count * size, h, q.shape[-1])[:, :t]
    return dq, dk, dv


# --- the paged cache -----------------------------------------------------------------------------


def kv_append(pool: Any, new: Any, positions: Any, sequences: Any, pages: Any, transposed: bool) -> Any:
    """A position without a page is dropped: no array can say it from inside a program."""
    page = pools.page_size(pool, transposed)
    ids = pages[sequences, positions // page]
    ids = jnp.where((ids < 0) | (positions < 0), pool.shape[0], ids)  # out of range: dropped
    slot = positions % page
    if pools.is_packed(pool):
        return pools.write(pool, page, ids, slot, new, transposed)
    new = new.astype(pool.dtype)
    if transposed:
        return pool.at[ids, :, :, slot].set(new, mode="drop")
    return pool.at[ids, :, slot].set(new, mode="drop")


def paged_attention(
    q: Any, k_pool: Any, v_pool: Any, positions: Any, sequences: Any, pages: Any, *slopes: Any, **a: Any
) -> Any:
    """Many tokens of few sequences: a sequence at a time. A token or so of each: its own pages, gathered."""
    a = a | {"causal": True}
    slope = slopes[0] if slopes else None
    count, tokens = pages.shape[0], q.shape[0]
    if count == 1:
        return _of_one(q, k_pool, v_pool, positions, pages[0], slope, a)
    if tokens > 2 * count:

        def step(o: Any, row: Any) -> tuple[Any, None]:
            mine = _of_one(q, k_pool, v_pool, positions, row[1], slope, a)
            return jnp.where((sequences == row[0])[:, None, None], mine, o), None

        made = jax.eval_shape(lambda row: _of_one(q, k_pool, v_pool, positions, row, slope, a), pages[0])
        zero = jnp.zeros(made.shape, made.dtype)
        return lax.scan(step, zero, (jnp.arange(count), pages))[0]
    each = jax.vmap(lambda x, at, row: _of_one(x[None], k_pool, v_pool, at[None], row, slope, a)[0])
    return each(q, positions, pages[sequences])


def _of_one(
    q: Any, k_pool: Any, v_pool: Any, positions: Any, row: Any, slopes: Any, a: dict[str, Any]
) -> Any:
    """The tokens q [T, H, D] over the pages of one sequence."""
    kv, page = k_pool.shape[1], pools.page_size(k_pool, True)
    slots, ids = len(row) * page, jnp.maximum(row, 0)
    if pools.is_packed(k_pool):
        k, v = pools.read(k_pool[ids], page, True), pools.read(v_pool[ids], page, False)
    else:
        k, v = k_pool[ids].swapaxes(2, 3), v_pool[ids]
    k, v = (x.swapaxes(1, 2).reshape(1, slots, kv, -1) for x in (k, v))
    used = jnp.max(positions, initial=-1) + 1  # a free slot may hold anything, NaN included
    k, v = _usable(k, v, used[None])

    def some(_: Any, q: Any, at: Any) -> Any:
        behind = at[0][:, None] - jnp.arange(slots)
        seen = (behind >= 0) & ((behind < a["window"]) | (not a["window"]))
        score, _ = _scores(_split(q, kv), k.astype(jnp.float32), at[0], slopes, a)
        p, total, _ = _weighed(score, seen[None, :, None, None, :])
        o = _normal(_product("btkgs,bskd->btkgd", p, v.astype(jnp.float32)), total)
        return o.reshape(*q.shape[:3], v.shape[-1])

    return _chunks(some, q.shape[0], q[None], positions[None])[0]


def rope_table(positions: Any, inv_freq: Any, scale: float) -> tuple[Any, Any]:
    """The angle in float64, brought into one turn before float32 takes it."""
    angle = positions[..., None].astype(jnp.float64) * inv_freq
    turn = (angle - 2 * math.pi * jnp.floor(angle / (2 * math.pi))).astype(jnp.float32)
    return jnp.cos(turn) * scale, jnp.sin(turn) * scale
