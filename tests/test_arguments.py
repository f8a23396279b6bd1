"""What may stand for an integer, a list of them, a text."""

import numpy as np
import pytest

from trivet import arguments
from trivet.errors import InputError


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers_of_every_kind(value):
    assert type(arguments.integer(value, "n", 3, 3)) is int


@pytest.mark.parametrize("value", [2.0, "3", None, True, np.bool_(True), np.float32(3), [3], 2**80, -1])
def test_what_is_no_integer_in_bounds(value):
    with pytest.raises(InputError, match=r"n is .*; wanted an integer from 0 to 9"):
        arguments.integer(value, "n", 0, 9)


@pytest.mark.parametrize("values", [[1, 2], (1, 2), np.array([1, 2], np.uint8), range(1, 3), iter([1, 2])])
def test_lists_of_integers(values):
    assert arguments.integers(values, "ids") == [1, 2]


@pytest.mark.parametrize(
    "values", ["12", b"12", {1, 2}, {1: 2}, [1.0], ["1"], [[1]], np.ones((1, 2), int), np.ones(2), 5, None]
)
def test_what_is_no_list_of_integers(values):
    with pytest.raises(InputError, match="ids"):
        arguments.integers(values, "ids")


def test_texts():
    assert arguments.texts("ab", "stop") == ["ab"]
    assert arguments.texts(("a", "b"), "stop") == ["a", "b"]
    for wrong in (5, b"ab", [b"a"], None):
        with pytest.raises(InputError, match="stop"):
            arguments.texts(wrong, "stop")
