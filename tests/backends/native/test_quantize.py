"""The native quantiser against `blocks.quantize`, which is its definition: the same bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from trivet import dtypes
from trivet.backends.native.quantize import quantize
from trivet.blocks import dequantize
from trivet.blocks import quantize as defined
from trivet.dtypes import DType
from trivet.errors import DTypeError, InputError, NonFiniteError, ShapeError

every = pytest.mark.parametrize("dtype", dtypes.IN_GGUF, ids=str)


def hard_values(columns: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(columns)
    normal = rng.standard_normal((33, columns))
    yield normal
    yield normal * np.logspace(-11, 3, 33)[:, None]
    yield np.round(rng.laplace(size=(24, columns)) * 3).clip(-8, 7) * 0.03  # packed before
    yield np.abs(normal) + 3
    yield rng.integers(-4, 5, (16, columns))  # ties
    yield rng.standard_t(2, size=(40, columns))
    lone = np.zeros((3, columns))
    lone[1, 5] = -3
    yield lone


def weights_of(columns: int) -> list[np.ndarray | None]:
    rng = np.random.default_rng(1)
    spread = np.exp(2 * rng.standard_normal(columns)).astype(np.float32)
    return [None, spread, (rng.random(columns) < 0.5).astype(np.float32)]


@every
def test_the_bytes_are_those_of_the_definition(dtype: DType) -> None:
    for columns in (256, 768):
        for values in hard_values(columns):
            x = values.astype(np.float32)
            for weights in weights_of(columns):
                raw, squares, errors = quantize(x, dtypes.f32, x.shape, dtype, weights, 2)
                assert np.array_equal(raw, defined(x, dtype, importance=weights).reshape(-1))
                back = dequantize(raw, dtype, x.shape).astype(np.float64)
                assert errors == pytest.approx(np.square(back - x).sum(), rel=1e-9)
                assert squares == pytest.approx(np.square(x, dtype=np.float64).sum(), rel=1e-9)


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
def test_floats(dtype: DType) -> None:
    x = np.random.default_rng(0).standard_normal((7, 1237)).astype(np.float32)
    raw, _, errors = quantize(x, dtypes.f32, x.shape, dtype)
    assert np.array_equal(raw, defined(x, dtype).reshape(-1))
    back = dequantize(raw, dtype, x.shape).astype(np.float64)
    assert errors == pytest.approx(np.square(back - x).sum(), rel=1e-9)


@pytest.mark.parametrize(
    "source", [dtypes.f16, dtypes.bf16, dtypes.q4_k, dtypes.q8_0, dtypes.iq4_nl], ids=str
)
def test_from_what_is_no_float32(source: DType) -> None:
    x = np.random.default_rng(0).standard_normal((5, 768)).astype(np.float32)
    given = defined(x, source).reshape(-1)
    values = dequantize(given, source, x.shape)
    for dtype in (dtypes.q6_k, dtypes.q5_0, dtypes.f32, dtypes.bf16):
        raw, _, _ = quantize(given, source, x.shape, dtype)
        assert np.array_equal(raw, defined(values, dtype).reshape(-1))


def test_threads_and_neighbours_change_nothing() -> None:
    x = np.random.default_rng(0).standard_normal((200, 768)).astype(np.float32)
    for dtype in (dtypes.q4_0, dtypes.q2_k, dtypes.q5_k):
        one = quantize(x, dtypes.f32, x.shape, dtype, threads=1)
        many = quantize(x, dtypes.f32, x.shape, dtype, threads=4)
        assert np.array_equal(one[0], many[0])
        assert one[1:] == many[1:]
        alone, _, _ = quantize(x[100], dtypes.f32, x[100].shape, dtype)
        assert np.array_equal(alone, one[0].reshape(200, -1)[100])


def test_a_weight_of_a_column_lowers_its_error() -> None:
    x = np.random.default_rng(0).standard_normal((64, 768)).astype(np.float32)
    weights = np.ones(768, np.float32)
    weights[::7] = 1000
    for dtype in dtypes.IN_GGUF:
        if dtype is dtypes.q8_0:
            continue
        plain, heavy = (
            np.square(dequantize(quantize(x, dtypes.f32, x.shape, dtype, w)[0], dtype, x.shape) - x).sum(
                axis=0
            )
            for w in (None, weights)
        )
        assert heavy[::7].sum() < 0.75 * plain[::7].sum()


def test_what_cannot_be_written() -> None:
    x = np.zeros((40, 256), np.float32)
    for wrong in (np.nan, np.inf, -np.inf):
        x[33, 7] = wrong
        for dtype in (dtypes.q4_k, dtypes.q8_0, dtypes.bf16, dtypes.f32):
            with pytest.raises(NonFiniteError, match="a value is infinite or NaN"):
                quantize(x, dtypes.f32, x.shape, dtype)
    x[33, 7] = 1e30
    for dtype in dtypes.IN_GGUF:
        with pytest.raises(NonFiniteError, match=f"{dtype}: a block's scale does not fit f16"):
            quantize(x, dtypes.f32, x.shape, dtype)
    with pytest.raises(NonFiniteError, match="a value is beyond f16"):
        quantize(x, dtypes.f32, x.shape, dtypes.f16)
    raw, squares, errors = quantize(x, dtypes.f32, x.shape, dtypes.bf16)
    assert squares == pytest.approx(1e60, rel=1e-2)
    assert errors < 1e56
    assert raw.any()


def test_calls_that_are_wrong() -> None:
    x = np.zeros((4, 256), np.float32)
    with pytest.raises(ShapeError, match="4096 bytes are no f32 of shape"):
        quantize(x, dtypes.f32, (4, 255), dtypes.q8_0)
    with pytest.raises(ShapeError, match="importance has shape"):
        quantize(x, dtypes.f32, x.shape, dtypes.q4_0, np.ones(4, np.float32))
    with pytest.raises(DTypeError, match="q4_k\\] a row of 96"):
        quantize(x[:, :96].copy(), dtypes.f32, (4, 96), dtypes.q4_k)
    with pytest.raises(DTypeError, match="f32 to nf4_64"):
        quantize(x, dtypes.f32, x.shape, dtypes.nf4_64)
    for wrong, error in ((np.nan, NonFiniteError), (-1, InputError)):
        weights = np.ones(256, np.float32)
        weights[9] = wrong
        with pytest.raises(error, match="weight 9 is"):
            quantize(x, dtypes.f32, x.shape, dtypes.q4_0, weights)
    with pytest.raises(InputError, match="n_threads"):
        quantize(x, dtypes.f32, x.shape, dtypes.q4_0, threads=-1)
    empty, squares, errors = quantize(x[:0], dtypes.f32, (0, 256), dtypes.q4_k)
    assert (len(empty), squares, errors) == (0, 0, 0)


def golden() -> dict[str, tuple[int, int]]:
    """The hashes of native/tests/kernels/quantize_test.cc: FNV-1a of the bytes, plain and weighted."""
    state, grid = 1, np.empty(37 * 768)
    for i in range(len(grid)):
        state = (state * 1664525 + 1013904223) % 2**32
        grid[i] = (state >> 16) - 32768
    values = np.ldexp(grid.reshape(37, 768), np.arange(37)[:, None] % 24 - 30).astype(np.float32)
    weights = (np.arange(768) ** 2 % 61 / 16).astype(np.float32)
    found = {}
    for dtype in dtypes.IN_GGUF:
        hashes = []
        for importance in (None, weights):
            h = 0xCBF29CE484222325
            for byte in defined(values, dtype, importance=importance).tobytes():
                h = (h ^ byte) * 0x100000001B3 % 2**64
            hashes.append(h)
        found[dtype.name] = (hashes[0], hashes[1])
    return found


def test_the_native_test_holds_the_definition() -> None:
    text = (Path(__file__).parents[3] / "native/tests/kernels/quantize_test.cc").read_text()
    kept = re.findall(r"\{tv::DType::(\w+), 0x(\w+), 0x(\w+)\}", text)
    assert {name: (int(a, 16), int(b, 16)) for name, a, b in kept} == golden()
