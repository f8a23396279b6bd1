"""Axes of the reductions."""

import numpy as np
import pytest

from trivet import dtypes, graph, ops
from trivet.errors import DTypeError, ShapeError
from trivet.graph import Dim

X = graph.input("x", (Dim("T"), 3, 4), dtypes.f32)


def test_axes_come_in_every_form():
    t = Dim("T")
    assert ops.sum(X).shape == ()
    assert ops.sum(X, axis=-1).shape == (t, 3)
    assert ops.mean(X, axis=(-1, 1), keepdims=True).shape == (t, 1, 1)
    assert ops.max(X, axis=()).shape == (t, 3, 4)
    assert ops.argmax(X, axis=-2).shape == (t, 4)
    assert ops.argmax(X).dtype is dtypes.i64


def test_wrong_axes():
    with pytest.raises(ShapeError, match=r"\[sum\] axis 3 out of range for shape \(T, 3, 4\)"):
        ops.sum(X, axis=3)
    with pytest.raises(ShapeError, match=r"\[mean\] axes \(1, -2\) name one axis twice"):
        ops.mean(X, axis=(1, -2))


@pytest.mark.parametrize("function", [ops.max, ops.min, ops.argmax])
def test_there_is_no_extreme_of_nothing(function):
    with pytest.raises(ShapeError, match=rf"\[{function.__name__}\] of no elements"):
        function(np.zeros((2, 0), np.float32), axis=1)


def test_mean_of_integers_is_refused():
    with pytest.raises(DTypeError, match=r"\[mean\] takes f32, f16, bf16, f64, not i64\[3\]"):
        ops.mean(np.arange(3))
