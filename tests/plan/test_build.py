"""Graph to plan: equal work once, attributes as data, and copies where a write would destroy a value."""

import numpy as np
import pytest

from trivet import graph, ops
from trivet.dtypes import bf16, f32, i32, q4_0
from trivet.errors import InputError, ShapeError
from trivet.graph import Dim, Graph
from trivet.plan import build, describe, encode, verify

T, N = Dim("T"), Dim("N")
DIMS = {"T": (1, 16), "N": (1, 4)}


def pool(name="pool"):
    return graph.state(name, (N, 2, 16, 8), f32)


def append(cache, new):
    index = [graph.input(n, (T,), i32) for n in ("positions", "sequences")]
    pages = graph.input("pages", (Dim("N"), 4), i32)
    return ops.kv_append(cache, new, *index, pages, transposed=False)


def new():
    return graph.input("new", (T, 2, 8), f32)


def rows(plan):
    return [op.name for op in plan.ops]


def test_equal_calls_leaves_and_constants_become_one():
    def once():
        x = graph.input("x", (T, 8), f32)
        return ops.exp(ops.mul(x, 2.0))

    plan = build(Graph({"y": ops.add(once(), once())}), DIMS)
    assert rows(plan) == ["mul", "exp", "add"]
    assert [v.kind for v in plan.values] == ["input", "constant", "temporary", "temporary", "temporary"]


def test_calls_that_differ_in_an_attribute_stay_apart():
    x = graph.input("x", (4, 8), f32)
    plan = build(Graph({"y": ops.add(ops.sum(x, 0, keepdims=True), ops.sum(x, 1, keepdims=True))}))
    assert rows(plan) == ["sum", "sum", "add"]


def test_zero_and_minus_zero_are_two_constants():
    x = graph.input("x", (2,), f32)
    plan = build(Graph({"y": ops.add(ops.div(x, 0.0), ops.div(x, -0.0))}))
    assert sum(v.kind == "constant" for v in plan.values) == 2


def test_one_name_with_two_shapes_is_refused():
    a, b = graph.input("x", (4,), f32), graph.input("x", (1,), f32)
    with pytest.raises(InputError, match=r"two leaves are the input 'x': f32\[4\] and f32\[1\]"):
        build(Graph({"y": ops.add(a, b)}))


def test_several_outputs_of_a_call_are_read_by_id():
    cos, sin = ops.rope_table(graph.input("p", (T,), i32), np.array([1.0, 0.5]), scale=1)
    plan = build(Graph({"sin": sin}), DIMS)
    (op,) = plan.ops
    assert plan.outputs["sin"] == op.outputs[1]
    assert op.attrs == {"scale": 1.0}
    assert isinstance(op.attrs["scale"], float)
    assert cos.specs == sin.specs


def test_shape_attributes_are_left_to_the_output():
    x = graph.input("x", (T, 8), f32)
    plan = build(Graph({"y": ops.slice(ops.reshape(x, (2 * T, 4)), (0, 1), (2 * T, 4))}), DIMS)
    assert [op.attrs for op in plan.ops] == [{}, {"starts": (0, 1), "steps": (1, 1)}]
    assert plan.values[plan.outputs["y"]].shape == (2 * T, 3)
    assert plan.ops[0].aliases == (0,)


def test_state_is_written_in_place():
    grown = append(pool(), new())
    plan = build(Graph({"y": ops.exp(grown)}, {"pool": grown}), DIMS)
    assert rows(plan) == ["kv_append", "exp"]
    assert plan.ops[0].aliases == (0,)
    verify(plan)


@pytest.mark.parametrize("case", ["read later", "given out", "not updated", "not a state"])
def test_a_value_still_needed_is_copied_before_it_is_written(case):
    cache = graph.input("pool", (N, 2, 16, 8), f32) if case == "not a state" else pool()
    grown = append(cache, new())
    outputs = {"y": grown}
    if case == "read later":
        outputs["z"] = ops.add(grown, cache)
    if case == "given out":
        outputs["z"] = ops.reshape(cache, (N, 256))
    updates = {"pool": grown} if case in ("read later", "given out") else {}
    plan = build(Graph(outputs, updates), DIMS)
    verify(plan)
    (write,) = (op for op in plan.ops if op.name == "kv_append")
    source = plan.values[write.inputs[0]]
    assert source.kind == "temporary"
    assert any(op.name == "cast" and op.outputs == write.inputs[:1] for op in plan.ops)


def test_two_writes_in_a_row_need_no_copy_and_two_from_one_do():
    first = append(pool(), new())
    chain = build(Graph({}, {"pool": append(first, new())}), DIMS)
    assert rows(chain) == ["kv_append", "kv_append"]
    fork = build(Graph({"y": append(first, ops.exp(new()))}, {"pool": append(first, new())}), DIMS)
    verify(fork)
    assert rows(fork).count("cast") == 1


def test_after_shares_storage_and_orders():
    x = graph.input("x", (T, 8), f32)
    late = ops.exp(ops.mul(x, 2.0))
    plan = build(Graph({"y": ops.exp(ops.after(x, late)), "z": ops.exp(x)}), DIMS)
    verify(plan)
    assert rows(plan) == ["mul", "exp", "after", "exp", "exp"]  # and no copy
    assert plan.ops[2].aliases == (0,)
    assert plan.ops[2].writes() == []


def test_floats_are_scattered_in_place_and_integers_are_not():
    index = graph.input("index", (3,), i32)
    for kind, alias in ((f32, 0), (i32, -1)):
        x, new = (graph.input(n, (3, 4), kind) for n in "xn")
        plan = build(Graph({"y": ops.scatter_add(ops.add(x, x), index, new)}), DIMS)
        verify(plan)
        assert plan.ops[-1].aliases == (alias,)


def test_states_may_swap():
    a, b = pool("a"), pool("b")
    plan = build(Graph({}, {"a": b, "b": a}), DIMS)
    verify(plan)
    assert rows(plan) == ["cast", "cast"]


def test_equal_graphs_give_equal_bytes():
    def make():
        x = graph.input("x", (T, 8), bf16)
        w = graph.weight("w", (64, 32), q4_0)
        return Graph({"y": ops.linear(ops.concat([x, x, x, x], -1), w)})

    assert encode(build(make(), DIMS, "n")) == encode(build(make(), dict(reversed(DIMS.items())), "n"))


@pytest.mark.parametrize(
    ("graph_", "dims", "error", "message"),
    [
        (lambda: Graph({"y": graph.input("x", (T,), f32)}), {}, InputError, "no bounds for .'T'"),
        (lambda: Graph({"y": graph.input("x", (T,), f32)}), {"T": (3, 2)}, InputError, "3..2"),
        (lambda: Graph({"y": graph.input("x", (T - 2,), f32)}), {"T": (1, 2)}, ShapeError, "below 0"),
        (lambda: Graph({"y": graph.input("x", (T, 2**40), f32)}), {"T": (1, 999)}, ShapeError, "too many"),
        (lambda: Graph({"y": graph.input("x", (1,) * 9, f32)}), {}, ShapeError, "at most 8"),
        (lambda: Graph({"y": graph.weight("x", (T,), f32)}), {"T": (1, 2)}, ShapeError, "fixed shapes"),
        (lambda: Graph({}, {"s": graph.input("x", (2,), f32)}), {}, InputError, "no state of that name"),
        (lambda: Graph({"y": pool("s")}, {"s": new()}), DIMS, ShapeError, "its update f32"),
        (lambda: Graph({"y": graph.buffer(1, (), f32, "cpu")}), {}, InputError, "lives on a device"),
    ],
)
def test_what_does_not_fit_a_plan_is_refused(graph_, dims, error, message):
    with pytest.raises(error, match=message):
        build(graph_(), dims)


def test_a_plan_in_words():
    grown = append(pool(), new())
    x = graph.input("x", (T, 8), f32)
    graph_ = Graph({"y": ops.sum(ops.mul(x, 2.0), -1), "z": ops.exp(grown)}, {"pool": grown})
    text = describe(build(graph_, DIMS, "demo"))
    assert text.splitlines()[0] == "plan demo: 4 ops, 11 values"
    assert "dim T: 1 to 16" in text
    assert "= mul(x, 2.0): f32[T, 8]" in text
    assert "axes=(1,)" in text
    assert "in place of pool" in text
    assert "update pool = %" in text
