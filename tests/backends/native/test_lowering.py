"""Lowering: kept, widened, or expanded, with a core that is told what it has."""

import numpy as np
import pytest

from trivet import backends, graph, ops
from trivet.backends.native.lowering import lower
from trivet.dtypes import bf16, f16, f32, f64, i8, i32, q4_0
from trivet.errors import UnsupportedError
from trivet.graph import Graph

X = np.float32([[0.5, -1.0, 2.0, 3.0], [1.0, 0.0, -2.0, 0.25]])


def core(*rows, floats=(f32,)):
    """A core that has some rows, for some float dtypes; `cast` always."""

    def supports(name, inputs, outputs):
        fits = all(d in floats or not d.is_float for d in (*inputs, *outputs))
        return name == "cast" or (name in rows and fits)

    return supports


def rows(graph_):
    return sorted(n.op for n in graph_.nodes() if n.op not in graph.LEAVES)


def run(graph_, **inputs):
    return backends.get("numpy").compile(graph_).run(inputs)["y"]


def test_what_is_supported_stays():
    graph_ = Graph({"y": ops.softmax(graph.input("x", (2, 4), f32), -1)})
    assert lower(graph_, core("softmax")).outputs["y"] is graph_.outputs["y"]


def test_fallbacks_are_expanded_again_and_again():
    graph_ = Graph({"y": ops.softmax(graph.input("x", (2, 4), f32), -1)})
    simple = ("max", "sub", "exp", "sum", "div", "add", "where", "eq", "mul", "broadcast_to")
    lowered = lower(graph_, core(*simple))
    assert "softmax" not in rows(lowered)
    np.testing.assert_allclose(run(lowered, x=X), run(graph_, x=X), rtol=1e-6)


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_halves_are_widened_around_the_call(dtype):
    x = graph.input("x", (2, 4), dtype)
    lowered = lower(Graph({"y": ops.exp(x)}), core("exp"))
    assert rows(lowered) == ["cast", "cast", "exp"]
    assert lowered.outputs["y"].spec == x.spec


def test_widening_comes_before_the_fallback():
    lowered = lower(
        Graph({"y": ops.softmax(graph.input("x", (2, 4), f16), -1)}), core("softmax", "exp", "sum")
    )
    assert rows(lowered) == ["cast", "cast", "softmax"]


def test_packed_inputs_stay_packed_when_the_rest_is_widened():
    x, w = graph.input("x", (2, 32), bf16), graph.weight("w", (3, 32), q4_0)
    lowered = lower(Graph({"y": ops.linear(x, w)}), core("linear"))
    (call,) = (n for n in lowered.nodes() if n.op == "linear")
    assert [n.dtype for n in call.inputs] == [f32, q4_0]
    assert lowered.outputs["y"].dtype is bf16


def test_every_output_of_a_widened_call_is_cast_back():
    call = ops.attention(*[graph.input(n, (1, 3, 2, 4), f16) for n in "qkv"]).inputs[0]
    outputs = {name: graph.item(call, i) for i, name in enumerate(("o", "lse"))}
    lowered = lower(Graph(outputs), core("attention"))
    assert {n: o.spec for n, o in lowered.outputs.items()} == {n: o.spec for n, o in outputs.items()}


def test_other_dtypes_are_untouched_by_widening():
    ids = graph.input("ids", (2,), i32)
    lowered = lower(Graph({"y": ops.add(ids, ids)}), core("add"))
    assert rows(lowered) == ["add"]


@pytest.mark.parametrize("dtype", [f64, i8])
def test_what_cannot_be_lowered_names_row_and_dtypes(dtype):
    x = graph.input("x", (2,), dtype)
    y = ops.exp(x) if dtype is f64 else ops.take(x, graph.input("i", (1,), i32))
    with pytest.raises(UnsupportedError, match=rf"\[{y.op}\] the cpu device has no kernel for \({dtype}"):
        lower(Graph({"y": y}), core("add"))


def test_the_message_says_inside_which_rows():
    with pytest.raises(UnsupportedError, match=r"\(inside softmax"):
        lower(Graph({"y": ops.softmax(graph.input("x", (2, 4), f32), -1)}), core("max"))


def test_shared_work_stays_shared():
    x = graph.input("x", (2, 4), f16)
    y = ops.softmax(x, -1)
    lowered = lower(Graph({"y": ops.add(y, y)}), core("softmax", "add"))
    assert rows(lowered).count("softmax") == 1
