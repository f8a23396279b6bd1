"""Promotion, weak scalars and messages; what the rows compute is in test_table.py."""

import numpy as np
import pytest

from trivet import dtypes, graph, ops
from trivet.errors import DTypeError, InputError, ShapeError
from trivet.graph import Dim


def leaf(shape, dtype):
    return graph.input("x", shape, dtype)


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        (dtypes.f16, dtypes.f32, dtypes.f32),
        (dtypes.f16, dtypes.bf16, dtypes.f32),
        (dtypes.i32, dtypes.bf16, dtypes.bf16),
        (dtypes.bool_, dtypes.i64, dtypes.i64),
        (dtypes.i32, dtypes.i64, dtypes.i64),
    ],
)
def test_two_arrays_promote(a, b, want):
    assert ops.add(leaf((2,), a), leaf((2,), b)).dtype is want
    assert ops.mul(leaf((2,), b), leaf((2,), a)).dtype is want


@pytest.mark.parametrize(
    ("dtype", "scalar", "want"),
    [
        (dtypes.f16, 1.5, dtypes.f16),
        (dtypes.bf16, 3, dtypes.bf16),
        (dtypes.i32, 3, dtypes.i32),
        (dtypes.i32, 1.5, dtypes.f32),
        (dtypes.bool_, 2, dtypes.i64),
        (dtypes.i64, True, dtypes.i64),
    ],
)
def test_a_python_scalar_is_weak(dtype, scalar, want):
    assert ops.add(leaf((2,), dtype), scalar).dtype is want
    assert ops.add(scalar, leaf((2,), dtype)).dtype is want
    assert ops.where(leaf((2,), dtypes.bool_), scalar, leaf((2,), dtype)).dtype is want


def test_division_and_functions_of_integers_are_floating():
    x = leaf((3,), dtypes.i64)
    assert ops.div(x, x).dtype is dtypes.f32
    assert ops.exp(x).dtype is dtypes.f32
    assert ops.neg(x).dtype is dtypes.i64


def test_comparisons_are_bool():
    assert ops.lt(leaf((3,), dtypes.f16), 0).dtype is dtypes.bool_


def test_symbolic_sizes_broadcast_with_themselves_and_with_one():
    t = Dim("T")
    x = leaf((t, 4), dtypes.f32)
    assert ops.add(x, leaf((t, 1), dtypes.f32)).shape == (t, 4)
    assert ops.add(x, leaf((4,), dtypes.f32)).shape == (t, 4)
    for other in ((Dim("S"), 4), (3, 4), (t + 1, 4)):
        with pytest.raises(ShapeError, match=r"\[add\] shapes \(T, 4\) and .* do not broadcast"):
            ops.add(x, leaf(other, dtypes.f32))


def test_messages_say_what_came_and_what_was_wanted():
    with pytest.raises(ShapeError, match=r"\[mul\] shapes \(2, 3\) and \(4,\) do not broadcast"):
        ops.mul(np.zeros((2, 3)), np.zeros(4))
    with pytest.raises(DTypeError, match=r"\[logical_and\] takes bool, not f32\[2\]"):
        ops.logical_and(leaf((2,), dtypes.f32), leaf((2,), dtypes.bool_))
    with pytest.raises(DTypeError, match=r"\[where\] takes bool, not i32\[2\]"):
        ops.where(leaf((2,), dtypes.i32), 1.0, 2.0)
    with pytest.raises(DTypeError, match=r"packed weights have no arithmetic"):
        ops.add(graph.weight("w", (2, 32), dtypes.q4_0), 1.0)
    with pytest.raises(DTypeError, match=r"\[cast\] to 'q4_0'; dense dtypes are f32, f16"):
        ops.cast(leaf((32,), dtypes.f32), dtypes.q4_0)
    with pytest.raises(ShapeError, match=r"\[iota\] axis 2 out of range for shape \(2, 3\)"):
        ops.iota((2, 3), axis=2)
    with pytest.raises(DTypeError, match=r"NumPy's int16 has no counterpart"):
        ops.neg(np.zeros(3, np.int16))


def test_every_public_function_is_documented_and_exported_in_order():
    assert list(ops.__all__) == sorted(ops.__all__)
    for name in ops.__all__:
        assert getattr(ops, name).__doc__, name


def test_a_logical_row_counts_its_arguments():
    with pytest.raises(InputError, match=r"\[logical_and\] 0 arguments, wanted 2"):
        ops.logical_and()
