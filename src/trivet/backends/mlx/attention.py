"""Attention: chunks of queries, so that scores never stand for all of them at once; and over the paged cache.

Inside, heads stand before positions, [B, Hkv, G, T, .]; products take G and T as one axis.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from trivet.backends.mlx import pools

_QUERIES = 256  # a chunk's scores are chunk x keys x heads
_NEVER = -float("inf")


def _f32(x: Any) -> Any:
    return x.astype(mx.float32)


def _heads(x: Any, kv: int) -> Any:
    """[B, T, H, D] -> [B, Hkv, G*T, D], in float32."""
    b, t, h, d = x.shape
    return _f32(x).transpose(0, 2, 1, 3).reshape(b, kv, h // kv * t, d)


def _tokens(x: Any, t: int) -> Any:
    """[B, Hkv, G*T, D] -> [B, T, H, D]."""
    b, d = x.shape[0], x.shape[-1]
    heads = x.shape[1] * x.shape[2] // t if t else 0
    return x.reshape(b, heads, t, d).transpose(0, 2, 1, 3)


def _grouped(x: Any, kv: int) -> Any:
    """[B, T, H] -> [B, Hkv, G, T]."""
    b, t, h = x.shape
    return x.transpose(0, 2, 1).reshape(b, kv, h // kv, t)


def _scores(q: Any, k: Any, at: Any, slopes: Any, a: dict[str, Any]) -> tuple[Any, Any]:
    """Scores [B, Hkv, G, t, S] of q [B, Hkv, G*t, D] at positions [B or 1, t], and their slope under the soft
    cap."""
    (b, kv, rows, _), t = q.shape, at.shape[1]
    s = a["scale"] * (q @ k.swapaxes(-1, -2)).reshape(b, kv, rows // t, t, k.shape[2])
    bend = mx.array(1.0)
    if a["softcap"]:
        held = mx.tanh(s / a["softcap"])
        s, bend = a["softcap"] * held, 1 - held * held
    if slopes is not None:
        s = s + _bias(slopes, at, k.shape[2]).reshape(len(at), kv, rows // t, t, -1)
    return s, bend


def _bias(slopes: Any, at: Any, keys: int) -> Any:
    """slopes [H] times how far a key stands from a query: [B or 1, H, t, S]."""
    far = mx.arange(keys) - at[:, :, None]
    return slopes[:, None, None] * _f32(far)[:, None]


def _seen(at: Any, keys: int, lengths: Any, starts: Any, a: dict[str, Any]) -> Any:
    """Which keys a query sees: [B or 1, 1, 1, t, S]."""
    key = mx.arange(keys)
    behind = at[:, :, None] - key
    seen = behind >= 0 if a["causal"] else mx.ones(behind.shape, mx.bool_)
    if a["window"]:
        seen = seen & (behind < a["window"])
    if lengths is not None:
        seen = seen & (key < lengths[:, None, None])
    if starts is not None:
        seen = seen & (key >= starts[:, :, None])
    return seen[:, None, None]


def _options(rest: tuple[Any, ...], a: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(key_lengths, starts, slopes), each or None."""
    given = iter(rest)
    lengths, starts, slopes = (next(given) if a[flag] else None for flag in ("lengths", "starts", "alibi"))
    return lengths, starts, slopes


def _usable(x: Any, lengths: Any) -> Any:
    """[B, S, H, D] -> [B, H, S, D] in float32. What padding holds does not matter, even if it is NaN."""
    if lengths is not None:
        x = mx.where((mx.arange(x.shape[1]) < lengths[:, None])[..., None, None], x, 0)
    return _f32(x).swapaxes(1, 2)


def _weighed(s: Any, seen: Any) -> tuple[Any, Any, Any]:
    """(unnormalised weights, their sums, the log of the sums of exponentials), [..., S], [...], [...]."""
    if not s.shape[-1]:
        nothing = mx.zeros(s.shape[:-1])
        return s, nothing, nothing + _NEVER
    s = mx.where(seen, s, _NEVER)
    top = mx.max(s, -1)
    p = mx.exp(s - mx.where(mx.isfinite(top), top, 0)[..., None])
    total = p.sum(-1)
    return p, total, top + mx.log(total)


def _output(p: Any, total: Any, v: Any) -> Any:
    """Weights [B, Hkv, G, t, S], divided by their sums, times v: [B, Hkv, G*t, D]; 0 where none."""
    b, kv, group, t, keys = p.shape
    p = mx.where(total == 0, 0.0, 1 / mx.where(total == 0, 1.0, total))[..., None] * p
    return p.reshape(b, kv, group * t, keys) @ v


def _chunks(t: int) -> list[slice]:
    return [slice(i, min(t, i + _QUERIES)) for i in range(0, t, _QUERIES)]


def _joined(parts: list[Any], empty: tuple[int, ...]) -> Any:
    return mx.concatenate(parts, 1) if parts else mx.zeros(empty)


def attention(q: Any, k: Any, v: Any, *rest: Any, **a: Any) -> tuple[Any, Any]:
    lengths, starts, slopes = _options(rest, a)
    (b, t, h, _), (s, kv) = q.shape, k.shape[1:3]
    k, v = _usable(k, lengths), _usable(v, lengths)
    os, lses = [], []
    for cut in _chunks(t):
        at = mx.arange(cut.start, cut.stop)[None] + (s - t)
        score, _ = _scores(_heads(q[:, cut], kv), k, at, slopes, a)
        mine = None if starts is None else starts[:, cut]
        p, total, lse = _weighed(score, _seen(at, s, lengths, mine, a))
        os.append(_tokens(_output(p, total, v), at.size))
        lses.append(lse.reshape(b, h, at.size).swapaxes(1, 2))
    return _joined(os, (b, t, h, v.shape[-1])), _joined(lses, (b, t, h))


def attention_backward(
    g: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, *rest: Any, **a: Any
) -> tuple[Any, Any, Any]:
    """Chunk by chunk of the queries; dk and dv are summed in float32."""
    lengths, starts, slopes = _options(rest, a)
    (b, t, h, d), (s, kv) = q.shape, k.shape[1:3]
    k, v = _usable(k, lengths), _usable(v, lengths)
    delta = (_f32(g) * _f32(o)).sum(-1)
    dk, dv, dqs = mx.zeros(k.shape), mx.zeros(v.shape), []
    for cut in _chunks(t):
        at = mx.arange(cut.start, cut.stop)[None] + (s - t)
        rows, out = _heads(q[:, cut], kv), _heads(g[:, cut], kv)
        score, bend = _scores(rows, k, at, slopes, a)
        log, drift = (_grouped(x[:, cut], kv)[..., None] for x in (lse, delta))
        seen = _seen(at, s, lengths, None if starts is None else starts[:, cut], a) & mx.isfinite(log)
        p = mx.where(seen, mx.exp(score - mx.where(mx.isfinite(log), log, 0)), 0)
        dp = (out @ v.swapaxes(-1, -2)).reshape(p.shape)
        ds = mx.where(seen, p * (dp - drift) * bend * a["scale"], 0).reshape(*rows.shape[:3], s)
        dk = dk + ds.swapaxes(-1, -2) @ rows
        dv = dv + p.reshape(ds.shape).swapaxes(-1, -2) @ out
        dqs.append(_tokens(ds @ k, at.size))
    return _joined(dqs, (b, t, h, d)), dk.swapaxes(1, 2), dv.swapaxes(1, 2)


# --- over the paged cache ------------------------------------------------------------------------


def paged_attention(
    q: Any, k_pool: Any, v_pool: Any, positions: Any, sequences: Any, pages: Any, *slopes: Any, **a: Any
) -> Any:
    """Many tokens of few sequences: a sequence at a time. A token or so of each: its own pages, gathered."""
    a, tokens, count = a | {"causal": True}, len(q), len(pages)

    def over(q: Any, at: Any, rows: Any) -> Any:
        return _over_pages(q, k_pool, v_pool, at, rows, slopes[0] if slopes else None, a)

    if not tokens:
        return mx.zeros((0, q.shape[1], v_pool.shape[3]))
    if count > 1 and tokens <= 2 * count:
        return over(q[:, None], positions[:, None], pages[sequences])[:, 0]
    o: Any = None
    for i in range(count):
        own = sequences == i
        mine = over(q[None], mx.where(own, positions, -1)[None], pages[i : i + 1])[0]
        o = mine if o is None else mx.where(own[:, None, None], mine, o)
    return o


def _over_pages(q: Any, k_pool: Any, v_pool: Any, at: Any, rows: Any, slopes: Any, a: dict[str, Any]) -> Any:
    """The tokens q [B, t, H, D] at positions [B, t] over the pages rows [B, P]."""
    ids = mx.clip(rows, 0, len(k_pool) - 1)
    k, v = pools.read(k_pool, ids, True), pools.read(v_pool, ids, False)
    slots = mx.arange(k.shape[2])[:, None]
    used = slots <= mx.max(at, -1)[:, None, None, None]  # a free slot may hold anything, NaN included
    k, v = mx.where(used, k, 0), mx.where(used, v, 0)
    return mx.concatenate([_over(q[:, c], k, v, at[:, c], slopes, a) for c in _chunks(q.shape[1])], 1)


def _over(q: Any, k: Any, v: Any, at: Any, slopes: Any, a: dict[str, Any]) -> Any:
    """Without a soft cap it is MLX's own kernel, which wants the biases in the mask."""
    seen = _seen(at, k.shape[2], None, None, a)
    if a["softcap"]:
        p, total, _ = _weighed(_scores(_heads(q, k.shape[1]), k, at, slopes, a)[0], seen)
        return _tokens(_output(p, total, v), at.shape[1])
    mask = seen[:, 0]
    if slopes is not None:
        mask = mx.where(mask, _bias(slopes, at, k.shape[2]), _NEVER)
    # Metal: the GPU's own kernel of attention
    o = mx.fast.scaled_dot_product_attention(q.swapaxes(1, 2), k, v, scale=a["scale"], mask=mask)
    return o.swapaxes(1, 2)
