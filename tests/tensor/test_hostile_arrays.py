"""Arrays that cannot be: one typed error each, before memory is asked for or after it was refused."""

import numpy as np
import pytest

import trivet as tv
from trivet.errors import CapacityError, InputError, TrivetError, UnsupportedError


@pytest.fixture(params=["cpu", "reference"])
def device(request):
    return request.param


@pytest.mark.parametrize("shape", [-1, 1.5, "x", None, True, (2, -1), (2.0,), ("2",), [None]])
def test_shapes_that_are_none(shape, device):
    with pytest.raises(InputError):
        tv.zeros(shape, device=device)


@pytest.mark.parametrize("shape", [2**45, (2**22, 2**23), 2**62, 2**63, 2**100])
def test_shapes_beyond_memory(shape, device):
    with pytest.raises((CapacityError, InputError)):
        tv.zeros(shape, device=device).numpy()
    assert tv.ones(2, device=device).numpy().tolist() == [1, 1]


@pytest.mark.parametrize("bounds", [(2**60,), (float("inf"),), ("x",), (0, 5, 0), (float("nan"),)])
def test_ranges(bounds, device):
    with pytest.raises(TrivetError):
        tv.arange(*bounds, device=device)


@pytest.mark.parametrize("axis", [2, -3, 1.0, "0", True])
def test_axes(axis, device):
    with pytest.raises(InputError):
        tv.ones((2, 3), device=device).sum(axis=axis)


def test_the_other_byte_order(device):
    big = np.array([1.5, -2.0], ">f4")
    assert tv.asarray(big, device=device).numpy().tolist() == [1.5, -2.0]


class Owner:
    """A producer that is not a NumPy array."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kinds):
        return self.array.__dlpack__(**kinds)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack_of_strided_memory(device):
    for array in (np.arange(6.0)[::2], np.arange(4.0)[::-1], np.arange(6.0).reshape(2, 3).T):
        assert (tv.from_dlpack(Owner(array), device).numpy() == array).all()


def test_dlpack_that_its_owner_refuses():
    with pytest.raises(UnsupportedError):
        tv.from_dlpack(Owner(np.ones(2, ">f4")))
    with pytest.raises(InputError):
        tv.from_dlpack(5)
