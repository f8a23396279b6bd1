"""Argument forms, symbolic sizes and messages of the rows that move."""

import numpy as np
import pytest

from trivet import dtypes, graph, ops
from trivet.backends.numpy import BACKEND
from trivet.errors import InputError, ShapeError
from trivet.graph import Dim, Graph

T = Dim("T")


def leaf(*shape, dtype=dtypes.f32):
    return graph.input("x", shape, dtype)


def run(node, **inputs):
    return BACKEND.compile(Graph({"y": node})).run(inputs)["y"]


def test_reshape_finds_the_missing_size():
    assert ops.reshape(leaf(2, 6), (3, -1)).shape == (3, 4)
    assert ops.reshape(leaf(2, 6), -1).shape == (12,)
    assert ops.reshape(leaf(T, 6), (-1, 3)).shape == (2 * T, 3)
    assert ops.reshape(leaf(T, 12), (T, 3, -1)).shape == (T, 3, 4)
    assert ops.reshape(leaf(T, 3, 4), (T, -1)).shape == (T, 12)
    assert ops.reshape(leaf(Dim("B"), T, 8), (Dim("B"), T, 2, 4)).shape == (Dim("B"), T, 2, 4)
    assert ops.reshape(leaf(0, 3), (3, -1)).shape == (3, 0)


@pytest.mark.parametrize(
    ("old", "new"),
    [((2, 6), (5, -1)), ((2, 6), (-1, -1)), ((0, 3), (0, -1)), ((T, 6), (4, -1)), ((T, 6), (Dim("S"), -1))],
)
def test_reshape_refuses_a_size_that_is_not_determined(old, new):
    with pytest.raises(ShapeError, match=r"\[reshape\] shape .* does not determine the -1 of"):
        ops.reshape(leaf(*old), new)


def test_sizes_may_be_numpy_integers_but_not_negative():
    assert ops.reshape(leaf(2, 6), tuple(np.array([3, 4]))).shape == (3, 4)
    assert ops.sum(leaf(2, 6), axis=np.int64(-1)).shape == (2,)
    for call in (ops.reshape, ops.broadcast_to):
        with pytest.raises(ShapeError, match=rf"\[{call.__name__}\] shape \(-2, -6\) has a negative size"):
            call(leaf(2, 6), (-2, -6))


def test_reshape_counts():
    for old, new in [((2, 6), (13,)), ((T, 6), (6,)), ((T, 6), (T, 5)), ((T, 2), (Dim("S"), 2))]:
        with pytest.raises(ShapeError, match=r"\[reshape\] shape .* has not as many elements as"):
            ops.reshape(leaf(*old), new)


def test_slice_takes_python_forms():
    assert ops.slice(leaf(5, 7), (1, -3), (-1, 99)).shape == (3, 3)
    assert ops.slice(leaf(5, 7), (4, 0), (2, 7), (1, 3)).shape == (0, 3)
    assert ops.slice(leaf(T, 7), (0, 0), (T, 2)).shape == (T, 2)
    assert ops.slice(leaf(T, 7), (2, 0), (T, 2)).shape == (T - 2, 2)
    assert ops.slice(leaf(T + 3, 7), (1, 0), (3, 2)).shape == (2, 2)
    with pytest.raises(ShapeError, match=r"\[slice\] 0:3:1 does not fit an axis of T"):
        ops.slice(leaf(T, 7), (0, 0), (3, 7))
    with pytest.raises(ShapeError, match=r"\[slice\] starts \(0,\)"):
        ops.slice(leaf(5, 7), (0,), (5,))


def test_a_slice_beyond_what_a_symbol_gives_raises_at_the_run():
    node = ops.slice(leaf(T), (2,), (T,))
    assert run(node, x=np.arange(5, dtype=np.float32)).tolist() == [2, 3, 4]
    with pytest.raises(InputError, match=r"\[slice\]"):
        run(node, x=np.zeros(1, np.float32))


def test_concat_adds_symbolic_sizes():
    assert ops.concat([leaf(T, 3), leaf(2, 3), leaf(T, 3)]).shape == (2 * T + 2, 3)
    with pytest.raises(ShapeError, match=r"\[concat\] input 1 has shape \(2, 4\), wanted \(2, 3\)"):
        ops.concat([leaf(2, 3), leaf(2, 4)])
    with pytest.raises(ShapeError, match=r"\[concat\] of nothing"):
        ops.concat([])


def test_axes_are_checked():
    with pytest.raises(ShapeError, match=r"\[permute\] axes \(0, 0\) are not an order"):
        ops.permute(leaf(2, 3), (0, 0))
    with pytest.raises(ShapeError, match=r"\[permute\] axis 2 out of range for shape \(2, 3\)"):
        ops.permute(leaf(2, 3), (0, 2))
    with pytest.raises(ShapeError, match=r"\[broadcast_to\] shape \(2, 3\) does not stretch to \(2, 1\)"):
        ops.broadcast_to(leaf(2, 3), (2, 1))
    with pytest.raises(ShapeError, match=r"\[pad\] axis 5 out of range"):
        ops.pad(leaf(2, 3), {5: (0, 1)})
    with pytest.raises(ShapeError, match=r"\[scatter_add\] updates has shape \(3, 3\), wanted \(2, 3\)"):
        ops.scatter_add(leaf(5, 3), np.array([0, 1]), leaf(3, 3))


@pytest.mark.parametrize("bad", [-1, 5, 2**31 - 1])
def test_an_index_outside_its_range_raises_at_the_run(bad):
    x, index = np.zeros((5, 3), np.float32), np.array([0, bad], np.int32)
    calls = [
        ops.take(x, index),
        ops.embedding(index, x),
        ops.scatter_add(x, index, np.zeros((2, 3), np.float32)),
    ]
    for node in calls:
        with pytest.raises(InputError, match=rf"\[{node.op}\] indices .* are not all in 0\.\.4"):
            run(node)


@pytest.mark.parametrize(("updates", "want"), [([1e16, 1.0, -1e16], 0.0), ([1e16, -1e16, 1.0], 1.0)])
def test_scatter_add_adds_duplicates_in_index_order(updates, want):
    """1e16 + 1 is 1e16, so the order shows."""
    assert run(ops.scatter_add(np.zeros(1), np.zeros(3, np.int32), np.array(updates))) == want
