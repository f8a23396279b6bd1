"""Encoders that search their scales: what others read, what it costs, hard values, the same bits always."""

from __future__ import annotations

import ctypes
import warnings
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as GType

from trivet import dtypes
from trivet.blocks import dequantize, quantize
from trivet.dtypes import DType
from trivet.errors import NonFiniteError, UnsupportedError

#: error over the standard deviation of normal values
COST = {
    dtypes.q4_0: 0.083, dtypes.q4_1: 0.072, dtypes.q5_0: 0.042, dtypes.q5_1: 0.035, dtypes.iq4_nl: 0.077,
    dtypes.q2_k: 0.275, dtypes.q3_k: 0.148, dtypes.q4_k: 0.074, dtypes.q5_k: 0.037, dtypes.q6_k: 0.018,
}  # fmt: skip
every = pytest.mark.parametrize("dtype", list(COST), ids=str)


def back(values: np.ndarray, dtype: DType) -> np.ndarray:
    return dequantize(quantize(values, dtype), dtype, values.shape)


def norm(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def normal(rows: int = 64, scale: float = 1) -> np.ndarray:
    return (np.random.default_rng(rows).standard_normal((rows, 256)) * scale).astype(np.float32)


def merged_weights() -> np.ndarray:
    """Values as a merge gives them: on a coarse grid, and a low-rank change of them."""
    rng = np.random.default_rng(7)
    grid = np.round(rng.laplace(size=(128, 256)) * 3).clip(-8, 7) * 0.03
    return (grid + 0.02 * rng.standard_normal((128, 2)) @ rng.standard_normal((2, 256))).astype(np.float32)


@every
def test_the_gguf_package_reads_the_same_values(dtype: DType) -> None:
    raw = quantize(normal() * np.logspace(-6, 3, 64, dtype=np.float32)[:, None], dtype)
    want = gguf.quants.dequantize(raw, GType[dtype.name.upper()])
    assert np.array_equal(dequantize(raw, dtype, (64, 256)).view(np.uint32), want.view(np.uint32))


@every
@pytest.mark.parametrize("scale", [1e-4, 0.05, 1e3])
def test_what_it_costs(dtype: DType, scale: float) -> None:
    values = normal(400, scale)
    assert norm(back(values, dtype) - values) < COST[dtype] * scale


@pytest.mark.parametrize("dtype", [dtypes.q4_0, dtypes.q4_1, dtypes.q5_0, dtypes.q5_1], ids=str)
def test_no_worse_than_the_gguf_package(dtype: DType) -> None:
    kind = GType[dtype.name.upper()]
    for values in (normal(400), merged_weights()):
        theirs = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
        assert norm(back(values, dtype) - values) < 0.97 * norm(theirs - values)


@every
def test_no_worse_than_llama_cpp(dtype: DType) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    library = next((Path(llama_cpp.__file__).parent / "lib").glob("*ggml-base*"))
    pack = ctypes.CDLL(str(library)).ggml_quantize_chunk
    pack.restype = ctypes.c_size_t
    pack.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    for values in (normal(400), merged_weights()):
        raw = np.empty((len(values), dtype.row_bytes(256)), np.uint8)
        kind = GType[dtype.name.upper()].value
        size = pack(kind, values.ctypes.data, raw.ctypes.data, 0, len(values), 256, None)
        assert size == raw.size
        theirs = dequantize(raw, dtype, values.shape)
        assert norm(back(values, dtype) - values) <= norm(theirs - values)


@every
def test_its_own_values_come_back(dtype: DType) -> None:
    # q4_1, say, of a file that was q4_1: what did not change is not changed
    values = back(normal(scale=0.05), dtype)
    assert norm(back(values, dtype) - values) < 0.3 * COST[dtype] * 0.05
    if dtype in (dtypes.q4_0, dtypes.q4_1, dtypes.q5_0, dtypes.q5_1):
        assert norm(back(values, dtype) - values) < 2e-3 * norm(values)


@every
def test_bits_do_not_depend_on_the_neighbours(dtype: DType) -> None:
    values = normal(300) * np.logspace(-5, 3, 300, dtype=np.float32)[:, None]
    whole = quantize(values, dtype)  # more than one chunk
    assert np.array_equal(quantize(values[::-1], dtype), whole[::-1])
    for row in range(0, 300, 37):
        assert np.array_equal(quantize(values[row], dtype), whole[row])
    block = values[3, : dtype.block]
    assert np.array_equal(quantize(block, dtype), whole[3, : dtype.nbytes])


@pytest.mark.parametrize("dtype", [dtypes.q8_0, *COST], ids=str)
def test_dithered_values_are_right_on_average(dtype: DType) -> None:
    values = back(normal(), dtype)
    change = normal(1)[0] * np.float32(0.002)  # far less than a step: to the nearest it would be lost
    raw = quantize(values + change, dtype, dither=3)
    assert np.array_equal(raw, quantize(values + change, dtype, dither=3))
    assert not np.array_equal(raw, quantize(values + change, dtype, dither=4))
    made = [dequantize(quantize(values + change, dtype, dither=s), dtype, values.shape) for s in range(12)]
    found = np.mean(made, axis=(0, 1)) - values.mean(axis=0)
    assert 0.7 < found @ change / (change @ change) < 1.3
    step = 0.018 if dtype is dtypes.q8_0 else 4 * COST[dtype]
    assert norm(made[0] - values) < step


def test_dither_is_for_packed_formats_of_gguf() -> None:
    for dtype in (dtypes.f16, dtypes.nf4_64, dtypes.nf4d_64):
        with pytest.raises(UnsupportedError, match=f"{dtype}: only GGUF's packed formats are dithered"):
            quantize(normal(1), dtype, dither=0)


def test_the_largest_code_is_not_passed() -> None:
    values = np.full((64, 32), 127, np.float32)
    for signed in (values, -values):
        found = dequantize(quantize(signed, dtypes.q8_0, dither=0), dtypes.q8_0, values.shape)
        assert np.abs(found - signed).max() <= 1


@every
def test_constants(dtype: DType) -> None:
    for value in (0, 1, -1, 0.3, 6e4, -6e4):
        values = np.full((2, 256), value, np.float32)
        assert np.abs(back(values, dtype) - values).max() <= 1e-3 * abs(value)
    values = np.zeros((1, 256), np.float32)
    values[0, 100] = -3
    nearest_to_zero = 3 / 127 if dtype is dtypes.iq4_nl else 0
    assert np.abs(back(values, dtype) - values).max() < nearest_to_zero + 2e-3


@every
def test_values_of_one_sign(dtype: DType) -> None:
    values = 3 + np.abs(normal())
    for signed in (values, -values):
        assert norm(back(signed, dtype) - signed) < 1.5 * COST[dtype] * norm(signed)


@every
def test_small_values(dtype: DType) -> None:
    # the smallest half is 6e-8: below it a block is zero, around it coarse, and never worse than zero
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scale in (1e-45, 1e-38, 1e-20, 1e-11):
            assert not back(normal(scale=scale), dtype).any()
        for scale in (1e-8, 1e-7, 1e-6):
            values = normal(scale=scale)
            assert norm(back(values, dtype) - values) < 1.01 * norm(values)
        values = normal(scale=1e-5)
        assert norm(back(values, dtype) - values) < 1.4 * COST[dtype] * 1e-5


@every
def test_large_values(dtype: DType) -> None:
    values = normal(scale=1e4)
    assert norm(back(values, dtype) - values) < 1.1 * COST[dtype] * 1e4
    for large in (1e9, 1e20, 3e38):
        for values in (np.linspace(-large, large, 512, dtype=np.float32), np.full(256, -large, np.float32)):
            with pytest.raises(NonFiniteError, match=f"{dtype}: a block's scale does not fit f16"):
                quantize(values, dtype)
    values = np.zeros((2, 256), np.float32)
    values[1, 7] = 1e12
    with pytest.raises(NonFiniteError, match="65504"):
        quantize(values, dtype)


@every
def test_what_is_not_finite_is_refused(dtype: DType) -> None:
    for wrong in (np.nan, np.inf):
        values = normal(2)
        values[1, 5] = wrong
        with pytest.raises(NonFiniteError, match=f"{dtype}: the values must be finite"):
            quantize(values, dtype)
