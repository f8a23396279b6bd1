"""Pools of q8_0: the blocks of files, scales and codes apart."""

import numpy as np
import pytest

from trivet.blocks import dequantize, pools, quantize
from trivet.dtypes import q8_0

SIZE, PAGE, HEADS, PAGES = 64, 32, 3, 4


def empty(keys):
    rows, row = (SIZE, PAGE) if keys else (PAGE, SIZE)
    return np.full((PAGES, HEADS, rows, row // 32 * 34), 0xFF, np.uint8)


@pytest.mark.parametrize("keys", [True, False])
def test_it_holds_what_files_would(keys):
    rng = np.random.default_rng(0)
    new = (rng.standard_normal((9, HEADS, SIZE)) * 10.0 ** rng.integers(-7, 4, (9, HEADS, 1))).astype(
        np.float32
    )
    ids, slots = np.array([1, 1, 0, 3, 3, 3, 2, 2, 0]), np.array([0, 31, 7, 1, 2, 3, 16, 15, 8])
    pool = empty(keys)
    pools.write(pool, PAGE, ids, slots, new, keys=keys)
    want = dequantize(quantize(new, q8_0).reshape(-1), q8_0, new.shape)
    np.testing.assert_array_equal(pools.read(pool, PAGE, keys=keys)[ids, :, slots], want)
    untouched = np.ones((PAGES, PAGE), bool)
    untouched[ids, slots] = False
    assert np.isnan(pools.read(pool, PAGE, keys=keys).swapaxes(1, 2)[untouched]).all()


@pytest.mark.parametrize("keys", [True, False])
def test_where_the_bytes_stand(keys):
    pool = np.zeros_like(empty(keys))
    new = np.zeros((1, HEADS, SIZE), np.float32)
    new[0, 2, 33] = -127  # the second block of the last head
    pools.write(pool, PAGE, np.array([1]), np.array([5]), new, keys=keys)
    head = pool[1, 2].reshape(-1)
    scale, code = (1 * PAGE + 5, 33 * PAGE + 5) if keys else (5 * 2 + 1, 5 * SIZE + 33)
    assert head[2 * scale : 2 * scale + 2].view("<f2") == 1
    assert head[2 * 2 * PAGE + code].view(np.int8) == -127
    assert np.count_nonzero(pool) == 2  # 0x3c00 and the code


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e7])
def test_a_block_without_a_finite_scale_is_nan(bad):
    new = np.ones((1, HEADS, SIZE), np.float32)
    new[0, 1, 40] = bad
    pool = empty(True)
    pools.write(pool, PAGE, np.array([0]), np.array([0]), new, keys=True)
    got = pools.read(pool, PAGE, keys=True)[0, :, 0]
    assert np.isnan(got[1, 32:]).all()
    assert np.isnan(got).sum() == 32
