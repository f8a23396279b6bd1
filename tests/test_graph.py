"""Nodes, symbolic sizes, and the order of a graph."""

import numpy as np
import pytest

from trivet import graph, ops
from trivet.dtypes import bf16, f16, f32, i32
from trivet.errors import DeviceMismatch, DTypeError, ShapeError
from trivet.graph import Dim


def test_sizes_are_linear_in_one_name():
    t = Dim("T")
    size = (3 * t + 6) // 3 - 1
    assert size == t + 1
    assert size.at({"T": 41}) == 42
    assert t - t == 0
    assert t * 0 == 0
    assert repr(2 * t - 1) == "2*T-1"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Dim("T") + Dim("B"),
        lambda: Dim("T") - Dim("B"),
        lambda: Dim("T") - 2 * Dim("T"),
        lambda: Dim("T") * Dim("T"),
        lambda: (2 * Dim("T") + 1) // 2,
    ],
)
def test_other_sizes_are_refused(wrong):
    with pytest.raises(ShapeError, match=r"\[dim\]"):
        wrong()


def test_constants_keep_shape_value_and_dtype():
    scalar = graph.constant(np.float32(2.5))
    assert scalar.shape == ()
    assert scalar.dtype is f32
    assert graph.constant([1, 2], f16).value.dtype == np.float16
    assert graph.constant([1.0, -2.0], bf16).value.tolist() == [0x3F80, 0xC000]
    with pytest.raises(DTypeError, match="int16"):
        graph.constant(np.zeros(2, np.int16))


def test_leaves_name_themselves():
    x = graph.input("x", (Dim("T"), 3), f32)
    assert repr(x) == "<input x f32[T, 3]>"
    assert x.ndim == 2


def test_walk_gives_inputs_before_users_once_and_is_not_recursive():
    x = graph.input("x", (2,), f32)
    node = x
    for _ in range(5000):
        node = ops.add(node, node)
    order = graph.walk([node, x])
    assert len(order) == 5001
    at = {id(n): i for i, n in enumerate(order)}
    assert all(at[id(i)] < at[id(n)] for n in order for i in n.inputs)


def test_one_operation_is_on_one_device():
    here, there = (graph.buffer(None, (2,), i32, device) for device in ("cpu", "reference"))
    assert ops.add(here, here).device == "cpu"
    with pytest.raises(DeviceMismatch, match=r"cpu.*reference"):
        ops.add(here, there)
