"""The paged cache against plain attention, and pages that are not there."""

import numpy as np
import pytest

from trivet import dtypes, graph, ops
from trivet.backends.numpy import BACKEND
from trivet.errors import InputError, ShapeError
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


def test_shapes_are_checked():
    pool = graph.state("keys", (Dim("N"), KV, D, 24), dtypes.f32)
    new, i = graph.input("k", (3, KV, D), dtypes.f32), np.zeros(3, np.int32)
    with pytest.raises(ShapeError, match=r"\[kv_append\] pages of 24 slots, wanted a multiple of 16"):
        ops.kv_append(pool, new, i, i, np.zeros((1, 2), np.int32), transposed=True)
