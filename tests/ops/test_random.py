"""Philox against the known answers of its authors' Random123; moments of the numbers."""

import numpy as np
import pytest

from trivet import ops
from trivet.backends.numpy import BACKEND
from trivet.backends.numpy.random import rounds
from trivet.graph import Graph


def run(node):
    return BACKEND.compile(Graph({"y": node})).run({})["y"]


def test_known_answers():
    first = run(ops.random_bits(np.array([0, 0]), (4,))).view(np.uint32)
    assert first.tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert rounds([ones] * 4, ones, ones) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    assert rounds(pi, 0xA4093822, 0x299F31D0) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_an_element_does_not_depend_on_the_shape():
    key = np.array([7, 9])
    long = run(ops.random_bits(key, (101,)))
    assert run(ops.random_bits(key, (3, 5))).ravel().tolist() == long[:15].tolist()
    for other in ([7, 10], [8, 9]):
        assert run(ops.random_bits(np.array(other), (101,))).tolist() != long.tolist()


def test_uniform_and_normal_numbers():
    u = run(ops.random_uniform(np.array([1, 2]), (1 << 16,)))
    assert u.dtype == np.float32
    assert 0 <= u.min() < 1e-4 < 0.9999 < u.max() < 1
    assert u.mean() == pytest.approx(0.5, abs=0.01)
    z = run(ops.random_normal(np.array([1, 2]), (1 << 16,))).astype(np.float64)
    assert np.isfinite(z).all()
    assert [z.mean(), z.var(), (z**3).mean(), (z**4).mean()] == pytest.approx([0, 1, 0, 3], abs=0.08)
    assert np.corrcoef(z[::2], z[1::2])[0, 1] == pytest.approx(0, abs=0.02)
