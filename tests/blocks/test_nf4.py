"""NF4: its codes, ties, sizes and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from trivet import dtypes
from trivet.blocks import dequantize, nf4, quantize
from trivet.dtypes import DType
from trivet.errors import DTypeError, NonFiniteError

PAIRS = list(zip(dtypes.NF4, dtypes.NF4D, strict=True))


@pytest.mark.parametrize(("single", "dtype"), PAIRS, ids=str)
def test_double_quantised_scales_are_close(single: DType, dtype: DType) -> None:
    x = np.random.default_rng(dtype.block).standard_normal((301, 3 * dtype.block)).astype(np.float32)
    once = dequantize(quantize(x, single), single, x.shape)
    twice = dequantize(quantize(x, dtype), dtype, x.shape)  # several groups, none of which ends with a row
    assert 0 < np.abs(twice - once).max() < 0.03 * np.abs(x).max()


def test_a_block_by_hand() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :16] = 2 * nf4.LEVELS
    raw = quantize(x, dtypes.NF4[0])
    assert raw[0, :4].view("<f4")[0] == 2
    assert raw[0, 4:12].tolist() == [0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF]
    assert raw[0, 12:].tolist() == [0x77] * 8
    assert np.array_equal(dequantize(raw, dtypes.NF4[0], x.shape), x)


def test_a_tie_goes_to_the_lower_code() -> None:
    middles = (nf4.LEVELS[:-1] + nf4.LEVELS[1:]) / np.float32(2)
    x = np.zeros((1, 32), np.float32)
    x[0, 0], x[0, 1:16] = 1, middles
    q = quantize(x, dtypes.NF4[0])[0, 4:]
    assert np.stack([q >> 4, q & 15], axis=1).reshape(-1)[1:16].tolist() == list(range(15))


@pytest.mark.parametrize(("single", "dtype"), PAIRS, ids=str)
def test_sizes(single: DType, dtype: DType) -> None:
    for count in (0, 1, 255, 256, 257, 512, 513):
        nbytes = dtype.tensor_bytes(count * dtype.block)
        assert dtype.blocks_in(nbytes) == count
        assert quantize(np.zeros((count, dtype.block), np.float32), dtype).size == nbytes
    assert single.nbytes - dtype.nbytes == 3
    assert 8 * single.nbytes / single.block == 4 + 32 / single.block


def test_bits_are_what_qlora_promises() -> None:
    elements = 4096 * 4096
    assert 8 * dtypes.nf4_64.tensor_bytes(elements) / elements == 4.5
    assert 8 * dtypes.nf4d_64.tensor_bytes(elements) / elements == pytest.approx(4.127, abs=1e-3)


@pytest.mark.parametrize("dtype", [dtypes.nf4_64, dtypes.nf4d_64], ids=str)
def test_zeros_stay_zeros_and_the_rest_is_refused(dtype: DType) -> None:
    zeros = dequantize(quantize(np.zeros((3, 128), np.float32), dtype), dtype, (3, 128))
    assert not zeros.any()
    for wrong in (np.nan, np.inf, -np.inf):
        x = np.ones((2, 64), np.float32)
        x[1, 5] = wrong
        with pytest.raises(NonFiniteError, match="finite"):
            quantize(x, dtype)
    with pytest.raises(DTypeError, match="divide"):
        quantize(np.ones((2, 96), np.float32), dtype)
