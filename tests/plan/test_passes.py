"""Graph passes: rewriting, and signatures that tell graphs apart."""

import numpy as np

from trivet import graph, ops
from trivet.dtypes import f16, f32, i32, q4_1
from trivet.graph import Graph
from trivet.plan import rebuilt, rewrite, signature
from trivet.plan.passes import side_by_side


def leaf(name="x", shape=(4, 8), dtype=f32):
    return graph.input(name, shape, dtype)


def test_rewrite_keeps_what_does_not_change():
    y = ops.exp(ops.add(leaf(), 1.0))
    assert rewrite([y], rebuilt) == [y]


def test_rewrite_replaces_under_what_it_knows():
    x, other = leaf(), leaf("other")
    y = ops.exp(ops.mul(x, x))
    (made,) = rewrite([y], rebuilt, known={x: other})
    assert made.op == "exp"
    assert made.inputs[0].inputs == (other, other)
    seen = []
    rewrite(
        [y], lambda node, inputs: seen.append(node.op) or rebuilt(node, inputs), known={y.inputs[0]: other}
    )
    assert seen == ["exp"]


def test_rewrite_of_calls_with_several_outputs():
    cos, sin = ops.rope_table(leaf("p", (3,), i32), np.array([1.0]), scale=1.0)
    made = rewrite(
        [sin, cos], lambda node, inputs: (leaf("c"), leaf("s")) if node.op == "rope_table" else node
    )
    assert [n.attrs["name"] for n in made] == ["s", "c"]
    again = rewrite([sin, cos], lambda n, i: graph.Node(n.op, i, n.attrs, n.specs, n.value))
    assert [n.op for n in again] == ["item", "item"]
    assert again[0].inputs[0] is again[1].inputs[0]


def test_rewriting_a_deep_graph_does_not_recurse():
    y = leaf()
    for _ in range(5000):
        y = ops.neg(y)
    assert rewrite([y], rebuilt) == [y]


def test_graphs_built_alike_share_a_signature():
    def make():
        x = leaf()
        return Graph({"y": ops.sum(ops.mul(x, 2.0), 0), "x": x})

    assert signature(make()) == signature(make())
    assert hash(signature(make())) == hash(signature(make()))


def test_signatures_tell_graphs_apart():
    x = leaf()
    two = ops.add(x, x)
    graphs = [
        Graph({"y": ops.add(x, 1.0)}),
        Graph({"y": ops.add(x, 2.0)}),
        Graph({"z": ops.add(x, 1.0)}),
        Graph({"y": ops.add(leaf("z"), 1.0)}),
        Graph({"y": ops.add(leaf(dtype=f16), 1.0)}),
        Graph({"y": ops.add(leaf(shape=(8, 4)), 1.0)}),
        Graph({"y": ops.add(graph.weight("x", (4, 8), f32), 1.0)}),
        Graph({"y": ops.div(x, 0.0)}),
        Graph({"y": ops.div(x, -0.0)}),
        Graph({"y": ops.sum(x, 0, keepdims=True)}),
        Graph({"y": ops.sum(x, 0, keepdims=False)}),
        Graph({"y": ops.sum(x, 1)}),
        Graph({"y": ops.reshape(x, (32,))}),
        Graph({"y": ops.reshape(x, (2, 16))}),
        Graph({"y": ops.add(x, leaf("z"))}),
        Graph({"y": ops.add(leaf("z"), x)}),
        Graph({"y": ops.mul(two, two)}),
        Graph({"y": ops.mul(two, ops.add(x, x))}),
        Graph({"y": x, "z": two}),
        Graph({"y": two, "z": x}),
        Graph({"y": x}, {"z": two}),
        Graph({"y": ops.add(x, np.float32([1.0]))}),
    ]
    assert len({signature(g) for g in graphs}) == len(graphs)


def test_products_with_one_input_come_together():
    x = ops.neg(leaf())
    a, b, c = (ops.linear(x, graph.weight(n, (6, 8), f32)) for n in "abc")
    late = ops.linear(x, ops.exp(graph.weight("d", (6, 8), f32)))  # its weight is made on the way
    y = ops.add(ops.mul(ops.exp(a), ops.exp(b)), ops.add(c, late))
    before = Graph({"y": y}).nodes()
    after = side_by_side(before)
    assert set(after) == set(before)
    assert len(after) == len(before)
    at = {node: i for i, node in enumerate(after)}
    assert all(at[i] < at[node] for node in after for i in node.inputs)
    calls = [n for n in after if n.op not in graph.LEAVES]
    first = calls.index(a)
    assert calls[first : first + 3] == [a, b, c]
    assert calls.index(late) > first + 2


def test_weights_of_one_dtype_come_together():
    x = ops.neg(leaf(shape=(4, 32)))
    made = []
    for name in "qkv":  # as with an adapter: a packed weight, and a small one of floats
        low = ops.linear(x, graph.weight(f"{name}.a", (2, 32), f32))
        made.append((ops.linear(x, graph.weight(name, (32, 32), q4_1)), low))
    sums = [ops.addmm(y, low, graph.weight(f"b{i}", (2, 32), f32)) for i, (y, low) in enumerate(made)]
    after = side_by_side(Graph({"y": ops.add(ops.add(sums[0], sums[1]), sums[2])}).nodes())
    at = {node: i for i, node in enumerate(after)}
    assert all(at[i] < at[node] for node in after for i in node.inputs)
    calls = [n for n in after if n.op == "linear"]
    assert calls == [y for y, _ in made] + [low for _, low in made]
