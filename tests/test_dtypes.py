"""Element types: sizes, ids, promotion."""

import itertools

import numpy as np
import pytest

from trivet import dtypes
from trivet.dtypes import bf16, bool_, f16, f32, i8, i32, i64, q4_1, q6_k, u8
from trivet.errors import DTypeError
from trivet.graph import to_numpy

KNOWN_TO_NUMPY = [d for d in dtypes.DENSE if d is not bf16]


def test_ids_and_names_are_one_to_one():
    everything = dtypes.DENSE + dtypes.PACKED
    assert len(dtypes.BY_ID) == len(dtypes.BY_NAME) == len(everything)
    assert all(dtypes.BY_ID[d.id] is d and dtypes.BY_NAME[d.name] is d for d in everything)
    assert {d.id for d in dtypes.DENSE} == set(range(1, 10))  # written into plans: never another number


def test_sizes_are_numpys():
    for d in KNOWN_TO_NUMPY:
        assert d.row_bytes(7) == 7 * to_numpy(d).itemsize


def test_packed_rows():
    assert q4_1.row_bytes(64) == 40
    assert q6_k.row_bytes(512) == 420
    with pytest.raises(DTypeError, match=r"q4_1.*33.*32"):
        q4_1.row_bytes(33)


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations_with_replacement(dtypes.DENSE, 2)))
def test_promotion_commutes_and_holds_both(a, b):
    both = dtypes.promote(a, b)
    assert both is dtypes.promote(b, a)
    assert both is dtypes.promote(both, a)
    if a.kind == b.kind and bf16 not in (a, b):
        lossless = np.can_cast(to_numpy(a), to_numpy(both)) and np.can_cast(to_numpy(b), to_numpy(both))
        assert lossless


def test_promotion_across_kinds():
    assert dtypes.promote(i64, f16) is f16
    assert dtypes.promote(bool_, u8) is u8
    assert dtypes.promote(i8, u8) is i32
    assert dtypes.promote(f16, bf16) is f32
    with pytest.raises(DTypeError, match="packed"):
        dtypes.promote(f32, q4_1)
