"""The paged cache against plain attention, and pages that are not there."""

import numpy as np
import pytest

from trivet import backends, dtypes, graph, ops
from trivet.backends.base import expand
from trivet.backends.numpy import BACKEND
from trivet.blocks import pools
from trivet.errors import InputError, ShapeError, UnsupportedError
from trivet.graph import Dim, Graph

PAGE, KV, HEADS, D = 16, 2, 4, 8


def serving(**options):
    """A graph that appends a run's keys and values and attends; everything symbolic that can be."""
    t, n = Dim("T"), Dim("N")
    q = graph.input("q", (t, HEADS, D), dtypes.f32)
    k, v = (graph.input(name, (t, KV, D), dtypes.f32) for name in "kv")
    at, of = (graph.input(name, (t,), dtypes.i32) for name in ("positions", "sequences"))
    pages = graph.input("pages", (Dim("B"), Dim("P")), dtypes.i32)
    keys = ops.kv_append(graph.state("keys", (n, KV, D, PAGE), dtypes.f32), k, at, of, pages, transposed=True)
    values = ops.kv_append(
        graph.state("values", (n, KV, PAGE, D), dtypes.f32), v, at, of, pages, transposed=False
    )
    o = ops.paged_attention(q, keys, values, at, of, pages, **options)
    return Graph({"o": o}, {"keys": keys, "values": values})


def tokens(rng, count):
    f = np.float32
    return {
        "q": rng.standard_normal((count, HEADS, D)).astype(f),
        "k": rng.standard_normal((count, KV, D)).astype(f),
        "v": rng.standard_normal((count, KV, D)).astype(f),
    }


@pytest.mark.parametrize("options", [{}, {"window": 7}, {"softcap": 1.5}, {"slopes": 2.0 ** -np.arange(4.0)}])
def test_two_interleaved_sequences_equal_plain_attention(options):
    options = {k: v.astype(np.float32) if k == "slopes" else v for k, v in options.items()}
    rng = np.random.default_rng(0)
    lengths = [37, 20]
    whole = [tokens(rng, n) for n in lengths]
    program = BACKEND.compile(serving(**options), sizes={"N": 6})
    pages = np.array([[4, 0, 2], [1, 5, -1]], np.int32)
    got = [np.zeros((n, HEADS, D), np.float32) for n in lengths]
    for steps in [[(0, 0, 30), (1, 0, 1)], [(1, 1, 18)], [(1, 18, 20), (0, 30, 37)]]:
        parts = [{k: x[a:b] for k, x in whole[s].items()} for s, a, b in steps]
        at = [np.arange(a, b, dtype=np.int32) for _, a, b in steps]
        of = [np.full(b - a, s, np.int32) for s, a, b in steps]
        inputs = {k: np.concatenate([p[k] for p in parts]) for k in "qkv"}
        inputs |= {"positions": np.concatenate(at), "sequences": np.concatenate(of), "pages": pages}
        o = program.run(inputs)["o"]
        for (s, a, b), part in zip(steps, np.split(o, np.cumsum([len(x) for x in at])[:-1]), strict=True):
            got[s][a:b] = part
    for x, ours in zip(whole, got, strict=True):
        q, k, v = (x[n][None] for n in "qkv")
        plain = ops.attention(q, k, v, causal=True, **options)
        want = BACKEND.compile(Graph({"o": plain})).run({})["o"][0]
        np.testing.assert_allclose(ours, want, atol=2e-6)


def test_what_a_token_does_not_see_does_not_matter():
    """A fresh pool may hold anything."""
    rng = np.random.default_rng(1)
    inputs = tokens(rng, 3) | {
        "positions": np.arange(3, dtype=np.int32), "sequences": np.zeros(3, np.int32),
        "pages": np.array([[1, -1]], np.int32),
    }  # fmt: skip
    fresh = {"keys": (2, KV, D, PAGE), "values": (2, KV, PAGE, D)}
    runs = []
    for fill in (0.0, np.nan, np.inf):
        state = {name: np.full(shape, fill, np.float32) for name, shape in fresh.items()}
        runs.append(BACKEND.compile(serving(), state=state).run(inputs)["o"])
    assert np.isfinite(runs[0]).all()
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])


@pytest.mark.parametrize(
    "change",
    [
        {"positions": [40]},
        {"positions": [-1]},
        {"sequences": [2]},
        {"sequences": [-1]},
        {"positions": [20]},
        {"pages": [[2]]},
    ],
)
def test_a_place_that_is_not_there_raises_and_changes_nothing(change):
    inputs = tokens(np.random.default_rng(2), 1)
    inputs |= {"positions": np.array([3]), "sequences": np.array([0]), "pages": np.array([[1, -1], [0, 0]])}
    inputs |= {k: np.array(v) for k, v in change.items()}
    inputs = {k: v.astype(np.int32) if v.dtype == np.int64 else v for k, v in inputs.items()}
    program = BACKEND.compile(serving(), sizes={"N": 2})
    with pytest.raises(InputError, match=r"\[kv_append\]"):
        program.run(inputs)
    assert not program.state["keys"].any()


def packed_pools():
    """A graph over pools of q8_0, which it gives out as well."""
    t, n = Dim("T"), Dim("N")
    q = graph.input("q", (t, HEADS, 64), dtypes.f32)
    k, v = graph.input("k", (t, KV, 64), dtypes.f32), graph.input("v", (t, KV, 32), dtypes.f32)
    at, of = (graph.input(name, (t,), dtypes.i32) for name in ("positions", "sequences"))
    pages = graph.input("pages", (Dim("B"), Dim("P")), dtypes.i32)
    keys = ops.kv_append(graph.state("keys", (n, KV, 64, 32), dtypes.q8_0), k, at, of, pages, transposed=True)
    values = ops.kv_append(
        graph.state("values", (n, KV, 32, 32), dtypes.q8_0), v, at, of, pages, transposed=False
    )
    return Graph({"o": ops.paged_attention(q, keys, values, at, of, pages)}, {"keys": keys, "values": values})


@pytest.mark.parametrize("name", [n for n, why in backends.available().items() if why is None])
def test_blocks_attend_to_what_they_hold(name):
    """Pools of q8_0: every backend keeps the same bytes, and attends as over plain keys of those values."""
    rng = np.random.default_rng(5)
    count, f = 70, np.float32
    given = {
        "q": rng.standard_normal((count, HEADS, 64)).astype(f),
        "k": (rng.standard_normal((count, KV, 64)) * 10.0 ** rng.integers(-9, 1, (count, KV, 1))).astype(f),
        "v": rng.standard_normal((count, KV, 32)).astype(f),
    }
    given["v"][3, 1, :8] = 0
    given["k"][0, 0, 32:] = 0
    places = {"pages": np.array([[2, 0, 3], [1, -1, -1]], np.int32)}
    split = [(0, np.arange(50)), (1, np.arange(10)), (0, np.arange(50, 60))]  # decodes and prefills
    backend = backends.get(name)
    program, truth = (b.compile(packed_pools(), sizes={"N": 4}) for b in (backend, BACKEND))
    done, outs = 0, []
    for sequence, at in split:
        part = {k: x[done : done + len(at)] for k, x in given.items()}
        part |= {
            "positions": at.astype(np.int32),
            "sequences": np.full(len(at), sequence, np.int32),
            **places,
        }
        outs.append(backend.to_numpy(program.run(part)["o"]))
        np.testing.assert_allclose(outs[-1], truth.run(part)["o"], atol=1e-5)
        done += len(at)
    for state in ("keys", "values"):
        np.testing.assert_array_equal(backend.to_numpy(program.state[state]), truth.state[state])
    # One sequence, as plain attention has it.
    mine = np.r_[0:50, 60:70]
    k = pools.read(truth.state["keys"], 32, keys=True)[[2, 0]].transpose(0, 2, 1, 3).reshape(-1, KV, 64)[:60]
    v = (
        pools.read(truth.state["values"], 32, keys=False)[[2, 0]]
        .transpose(0, 2, 1, 3)
        .reshape(-1, KV, 32)[:60]
    )
    q = given["q"][mine][None]
    plain = ops.attention(q, k[None].astype(f), v[None].astype(f), causal=True)
    want = BACKEND.compile(Graph({"o": plain})).run({})["o"][0]
    np.testing.assert_allclose(np.concatenate([outs[0], outs[2]]), want, atol=1e-5)


def test_blocks_must_divide_a_head():
    i, pages = np.zeros(3, np.int32), np.zeros((1, 2), np.int32)
    message = r" a head size of 48 in pools of q8_0, wanted a multiple of 32"
    pool = graph.state("keys", (Dim("N"), KV, 48, 32), dtypes.q8_0)
    new = graph.input("k", (3, KV, 48), dtypes.f32)
    with pytest.raises(ShapeError, match=r"\[kv_append\]" + message):
        ops.kv_append(pool, new, i, i, pages, transposed=True)
    with pytest.raises(ShapeError, match=r"\[paged_attention\]" + message):
        ops.paged_attention(
            new, pool, graph.state("values", (Dim("N"), KV, 32, 64), dtypes.q8_0), i, i, pages
        )


def test_blocks_have_no_simpler_ops():
    with pytest.raises(UnsupportedError, match=r"\[paged_attention\] pools of q8_0"):
        expand(packed_pools(), lambda n: n.op != "paged_attention")


def test_shapes_are_checked():
    pool = graph.state("keys", (Dim("N"), KV, D, 24), dtypes.f32)
    new, i = graph.input("k", (3, KV, D), dtypes.f32), np.zeros(3, np.int32)
    with pytest.raises(ShapeError, match=r"\[kv_append\] pages of 24 slots, wanted a multiple of 16"):
        ops.kv_append(pool, new, i, i, np.zeros((1, 2), np.int32), transposed=True)
