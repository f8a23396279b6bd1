"""Every block format against the gguf package: sizes, every byte pattern, encoders."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as GType

from trivet import dtypes
from trivet.blocks import BY_DTYPE, dequantize, quantize, tensor_bytes
from trivet.dtypes import DType
from trivet.errors import DTypeError, NonFiniteError, ShapeError, UnsupportedError

IN_GGUF = [*dtypes.IN_GGUF, dtypes.f32, dtypes.f16, dtypes.bf16]


def of_gguf(dtype: DType) -> GType:
    return GType[dtype.name.upper()]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def test_the_table_has_a_row_for_every_dtype() -> None:
    assert set(BY_DTYPE) == set(dtypes.DENSE + dtypes.PACKED)
    for dtype, row in BY_DTYPE.items():
        assert row.dtype is dtype
        assert row.layout.itemsize == dtype.nbytes


@pytest.mark.parametrize("dtype", IN_GGUF, ids=str)
def test_sizes_equal_the_gguf_package(dtype: DType) -> None:
    assert gguf.GGML_QUANT_SIZES[of_gguf(dtype)] == (dtype.block, dtype.nbytes)


@pytest.mark.parametrize("dtype", IN_GGUF, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_random_bytes_equal_the_gguf_package(dtype: DType, seed: int) -> None:
    # Random scales include NaN, infinities and subnormals; 1031 blocks leave an odd tail of a chunk.
    raw = np.random.default_rng(seed).integers(0, 256, (1031, 256 // dtype.block * dtype.nbytes), np.uint8)
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(raw, of_gguf(dtype))
    assert same_bits(dequantize(raw, dtype, (1031, 256)), want)


@pytest.mark.parametrize("dtype", list(dtypes.IN_GGUF), ids=str)
def test_every_half_as_a_scale_equals_the_gguf_package(dtype: DType) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    blocks = np.empty(len(halves), BY_DTYPE[dtype].layout)
    raw = blocks.view(np.uint8).reshape(len(halves), -1)
    raw[:] = np.random.default_rng(2).integers(0, 256, raw.shape, np.uint8)
    blocks["d"] = halves.view(np.float16)
    for second in {"m", "dmin"} & set(blocks.dtype.names or ()):
        blocks[second] = halves[::-1].view(np.float16)
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(raw, of_gguf(dtype))
    assert same_bits(dequantize(raw, dtype, (len(halves), dtype.block)), want)


@pytest.mark.parametrize("dtype", IN_GGUF, ids=str)
def test_chunks_shapes_and_unaligned_input(dtype: DType) -> None:
    rows = 2 * (1 << 16) // 256 + 3  # more than two chunks
    nbytes = tensor_bytes(dtype, (rows, 256))
    memory = np.random.default_rng(3).integers(0, 256, nbytes + 1, np.uint8)
    whole = dequantize(memory[1:], dtype, (rows, 1, 256))
    assert whole.shape == (rows, 1, 256)
    by_row = memory[1:].reshape(rows, -1)
    for r in (0, 255, 256, rows - 1):
        assert same_bits(dequantize(by_row[r], dtype, (256,)), whole[r, 0])
    assert same_bits(dequantize(by_row[::2], dtype, (len(by_row[::2]), 256)), whole[::2, 0].copy())


def test_dense_integers_and_bool() -> None:
    for code, dtype in [("i1", dtypes.i8), ("u1", dtypes.u8), ("<i4", dtypes.i32), ("<i8", dtypes.i64)]:
        values = np.array([-3, 0, 100] if dtype is not dtypes.u8 else [0, 7, 255], code)
        assert dequantize(values.view(np.uint8), dtype, (3,)).tolist() == values.tolist()
    assert dequantize(np.uint8([0, 1, 2]), dtypes.bool_, (3,)).tolist() == [0, 1, 1]
    assert dequantize(np.float64([1e300, 0.1]).view(np.uint8), dtypes.f64, (2,)).tolist() == [
        np.inf,
        np.float32(0.1),
    ]


def test_scalars_and_empty_tensors() -> None:
    assert dequantize(np.float32([2.5]).view(np.uint8), dtypes.f32, ()).tolist() == 2.5
    for dtype in BY_DTYPE:
        assert dequantize(np.empty(0, np.uint8), dtype, (0, 4096)).shape == (0, 4096)
        assert dequantize(np.empty(0, np.uint8), dtype, (4, 0)).shape == (4, 0)


def test_wrong_sizes_and_dtypes_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"q8_0 \(2, 32\) is 68 bytes, got 67"):
        dequantize(np.zeros(67, np.uint8), dtypes.q8_0, (2, 32))
    with pytest.raises(DTypeError, match="33 elements"):
        dequantize(np.zeros(68, np.uint8), dtypes.q8_0, (2, 33))
    with pytest.raises(DTypeError, match="int8"):
        dequantize(np.zeros(34, np.int8), dtypes.q8_0, (32,))  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [1, 1e-3, 1e3, 1e-7, 1e-30])
def test_q8_0_equals_the_gguf_package(scale: float) -> None:
    values = (np.random.default_rng(4).standard_normal((64, 256)) * scale).astype(np.float32)
    values[0] = 0
    values[1] = scale
    values[2, ::2] = -scale
    values[3] = np.linspace(-scale, scale, 256)
    # halves and the largest float32 below one half, where adding 0.5 before truncating rounds wrongly
    values[4, :32] = np.float32(
        [127.0, 0.5, 1.5, -0.5, np.nextafter(np.float32(0.5), np.float32(0))] + [2.5] * 27
    )
    with np.errstate(all="ignore"):
        want = gguf.quants.quantize(values, GType.Q8_0)
    assert np.array_equal(quantize(values, dtypes.q8_0), want)


def test_dense_encoders_round_once() -> None:
    values = np.float32([1.0009, -2.5, 70000.0])
    assert quantize(values, dtypes.f32).view(np.float32).tolist() == values.tolist()
    with np.errstate(over="ignore"):
        assert quantize(values, dtypes.f16).view(np.float16).tolist() == values.astype(np.float16).tolist()
    assert dequantize(quantize(values, dtypes.bf16), dtypes.bf16, (3,)).tolist() == [1.0, -2.5, 70144.0]


def test_quantize_says_what_it_cannot_do() -> None:
    with pytest.raises(UnsupportedError, match="i32"):
        quantize(np.zeros(256, np.float32), dtypes.i32)
    with pytest.raises(DTypeError, match="33 elements"):
        quantize(np.zeros(33, np.float32), dtypes.q8_0)
    with pytest.raises(DTypeError, match="float64"):
        quantize(np.zeros(32), dtypes.q8_0)  # type: ignore[arg-type]
    with pytest.raises(NonFiniteError, match="finite"):
        quantize(np.full(32, np.nan, np.float32), dtypes.q8_0)
    with pytest.raises(NonFiniteError, match="65504"):
        quantize(np.linspace(-3e38, 3e38, 32, dtype=np.float32), dtypes.q8_0)
