"""Making tensors."""

import numpy as np
import pytest

import trivet as tv
from trivet.errors import DTypeError, InputError


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1.5, "f32"), ([1, 2], "i64"), ([[True]], "bool"), ([], "f32"), (np.float64(1), "f64"),
     (np.int8([1]), "i8"), (np.float16([1]), "f16")],
)  # fmt: skip
def test_asarray_chooses_a_dtype(device, value, dtype):
    made = tv.asarray(value, device=device)
    assert (made.dtype.name, made.device) == (dtype, device)
    np.testing.assert_array_equal(made.numpy(), np.asarray(value))


def test_asarray_of_a_tensor_and_to_a_dtype(device):
    x = tv.asarray([1.5, 2.5], "f16", device)
    assert tv.asarray(x) is x
    assert tv.asarray(x, "i32").tolist() == [1, 2]
    assert tv.asarray([1.0, 257.0], tv.bf16, device).tolist() == [1.0, 256.0]
    assert tv.asarray(0.1, tv.f64, device).item() == 0.1


@pytest.mark.parametrize("value", ["text", [[1], [2, 3]], object(), 1j, np.zeros(2, np.int16)])
def test_what_is_not_an_array_is_refused(value):
    with pytest.raises(DTypeError):
        tv.asarray(value, device="reference")


def test_an_unknown_device_is_refused():
    with pytest.raises(InputError, match="no device 'gpu'; known: auto, cpu"):
        tv.asarray(1, device="gpu")


def test_fills(device):
    assert tv.zeros(3, device=device).tolist() == [0.0] * 3
    assert tv.ones((2, 1), "i32", device).tolist() == [[1], [1]]
    assert tv.full((), 2.5, device=device).item() == 2.5
    assert tv.full((0, 2), True, device=device).dtype is tv.bool_
    assert tv.zeros(3, device=device).device == device


@pytest.mark.parametrize(("value", "dtype"), [(2**70, "i32"), (300, "u8"), (-1, "u8"), (float("nan"), "i64")])
def test_a_fill_that_does_not_fit_is_refused(value, dtype):
    with pytest.raises(InputError, match=rf"\[full\] .* does not fit {dtype}"):
        tv.full((2,), value, dtype=dtype)


def test_two_of_one_empty_array(device):
    empty = np.zeros((0,), np.float32)
    a, b = (tv.asarray(empty, device=device) for _ in range(2))
    assert (a + b).numpy().shape == (0,)


@pytest.mark.parametrize("arguments", [(3,), (1, 4), (5, 0, -2), (0.0,), (0, 1, 0.25), (2, 2)])
def test_arange_is_numpys(device, arguments):
    made = tv.arange(*arguments, device=device)
    expected = np.arange(*arguments)
    assert made.dtype is (tv.f32 if expected.dtype.kind == "f" else tv.i64)
    np.testing.assert_array_equal(made.numpy(), expected.astype(made.numpy().dtype))


def test_arange_needs_a_step():
    with pytest.raises(InputError, match="step of 0"):
        tv.arange(0, 3, 0)


def test_random_numbers_are_those_of_the_key(device):
    key = tv.random_key(7, 1, device)
    a, b = tv.ops.random_normal(key, (100,)), tv.ops.random_normal(tv.random_key(7, 2, device), (100,))
    assert a.device == device
    np.testing.assert_array_equal(a.numpy(), tv.ops.random_normal(key, (100,)).numpy())
    assert not np.array_equal(a.numpy(), b.numpy())
    with pytest.raises(InputError, match="seed 18446744073709551616 does not fit"):
        tv.random_key(2**64)
