"""The reverse walk itself; the gradient of each row is checked in test_table.py."""

import numpy as np
import pytest

from trivet import dtypes, graph, ops
from trivet.autograd import grad
from trivet.backends.numpy import BACKEND
from trivet.errors import DTypeError, ShapeError, UnsupportedError
from trivet.graph import Graph, walk


def leaf(name, *shape, dtype=dtypes.f64):
    return graph.input(name, shape, dtype)


def run(nodes, **inputs):
    g = Graph({str(i): n for i, n in enumerate(nodes)})
    used = {n.attrs["name"] for n in g.nodes() if n.op == "input"}
    out = BACKEND.compile(g).run({k: np.asarray(v, np.float64) for k, v in inputs.items() if k in used})
    return [out[str(i)] for i in range(len(nodes))]


def test_what_arrives_by_several_paths_adds_up():
    x = leaf("x")
    y = ops.mul(x, x)
    (dx,) = grad(ops.add(ops.mul(y, x), ops.mul(3.0, y)), [x])  # x³ + 3x²
    assert run([dx], x=2.0)[0] == 3 * 4 + 6 * 2


def test_the_gradient_of_a_node_inside():
    x = leaf("x")
    y = ops.exp(x)
    dy, dx = grad(ops.mul(y, y), [y, x])
    got = run([dy, dx], x=0.5)
    assert got == pytest.approx([2 * np.exp(0.5), 2 * np.exp(1.0)])


def test_several_outputs_with_seeds():
    x = leaf("x", 3)
    a, b = ops.mul(2.0, x), ops.sum(ops.mul(x, x))
    (dx,) = grad([a, b], [x], [leaf("ga", 3), leaf("gb")])
    got = run([dx], x=[1, 2, 3], ga=[1, 0, 10], gb=0.5)[0]
    assert got.tolist() == [2 + 1, 2, 20 + 3]


def test_a_row_with_several_outputs():
    """Only the outputs that are used send something back."""
    q, k, v = (leaf(n, 1, 3, 2, 4) for n in "qkv")
    loss = ops.sum(ops.attention(q, k, v, causal=True))
    dq, dv = grad(loss, [q, v])
    assert dq.spec == q.spec
    assert dv.spec == v.spec
    assert [n.op for n in walk([dq, dv])].count("attention_backward") == 1


def test_no_path_is_none():
    x, other = leaf("x"), leaf("other")
    index = leaf("index", 2, dtype=dtypes.i32)
    loss = ops.add(x, ops.sum(ops.cast(ops.argmax(leaf("a", 3)), dtypes.f64)))
    assert grad(loss, [other, index]) == [None, None]
    assert grad(ops.sum(ops.take(leaf("a", 3), index)), [index]) == [None]
    assert grad(x, [loss]) == [None]


def test_a_path_through_a_row_without_gradient_says_why():
    pool = graph.state("pool", (4, 2, 8, 16), dtypes.f32)
    i = np.zeros(1, np.int32)
    y = ops.kv_append(
        pool, np.zeros((1, 2, 8), np.float32), i, i, np.zeros((1, 1), np.int32), transposed=True
    )
    with pytest.raises(UnsupportedError, match=r"\[kv_append\] has no gradient: the cache serves generation"):
        grad(ops.sum(y), [pool])


def test_packed_weights_are_constant():
    w, x = graph.weight("w", (4, 32), dtypes.q8_0), leaf("x", 2, 32, dtype=dtypes.f32)
    loss = ops.sum(ops.linear(x, w))
    (dx,) = grad(loss, [x])
    assert dx.spec == x.spec
    assert grad(loss, [w]) == [None]


def test_unwanted_gradients_are_not_built():
    x, w = leaf("x", 2, 3), leaf("w", 4, 3)
    (dw,) = grad(ops.sum(ops.linear(x, w)), [w])
    assert "linear_input_grad" not in {n.op for n in walk([dw])}


def test_an_embedding_that_is_also_the_output_has_one_gradient():
    ids, table, seed = leaf("ids", 4, dtype=dtypes.i32), leaf("table", 5, 3), leaf("seed", 4, 5)
    (dtable,) = grad([ops.linear(ops.embedding(ids, table), table)], [table], [seed])
    assert dtable.op == "scatter_add"
    assert "add" not in {n.op for n in walk([dtable])}
    rng = np.random.default_rng(0)
    given = {
        "ids": np.array([3, 0, 3, 3], np.int32),
        "table": rng.normal(size=(5, 3)),
        "seed": rng.normal(size=(4, 5)),
    }
    rows = given["table"][given["ids"]]
    want = given["seed"].T @ rows
    np.add.at(want, given["ids"], given["seed"] @ given["table"])
    got = BACKEND.compile(Graph({"d": dtable}), exact=True).run(given)["d"]
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_what_cannot_be_differentiated():
    x = leaf("x", 3)
    with pytest.raises(ShapeError, match=r"\[grad\] the output .* is not a single number; give seeds"):
        grad(x, [x])
    with pytest.raises(DTypeError, match=r"\[grad\] the output .* is not floating"):
        grad(ops.argmax(x), [x])
    with pytest.raises(ShapeError, match=r"\[grad\] 0 seeds for 1 outputs"):
        grad([x], [x], [])
    with pytest.raises(ShapeError, match=r"\[grad\] a seed is f64\[2\], wanted f64\[3\]"):
        grad([x], [x], [leaf("g", 2)])


def test_depth_has_no_limit():
    x = y = leaf("x")
    for _ in range(5000):
        y = ops.sin(y)
    (dx,) = grad(y, [x])
    assert len(walk([dx])) < 20_000


def test_symbolic_sizes():
    t = graph.Dim("T")
    x, w = leaf("x", t, 4), leaf("w", 5, 4)
    loss = ops.mean(ops.cross_entropy(ops.linear(x, w), leaf("ids", t, dtype=dtypes.i32)))
    dx, dw = grad(loss, [x, w])
    assert dx.spec == x.spec
    program = BACKEND.compile(Graph({"dx": dx, "dw": dw}))
    got = program.run({"x": np.eye(4), "w": np.zeros((5, 4)), "ids": np.arange(4, dtype=np.int32)})
    np.testing.assert_allclose(got["dw"].T, (0.2 - np.eye(4, 5)) / 4, atol=1e-7)
