"""bfloat16 conversions against exact arithmetic and against the gguf package, every bit pattern."""

import gguf
import numpy as np
import pytest

from trivet.blocks.bfloat16 import from_bf16, to_bf16
from trivet.errors import DTypeError

ALL = np.arange(1 << 16, dtype=np.uint16)


def test_every_pattern_widens_to_the_upper_half_of_a_float32() -> None:
    assert np.array_equal(from_bf16(ALL).view(np.uint32), ALL.astype(np.uint32) << 16)


def test_every_pattern_but_signalling_nan_survives_the_round_trip() -> None:
    back = to_bf16(from_bf16(ALL))
    nan = np.isnan(from_bf16(ALL))
    assert np.array_equal(back, np.where(nan, ALL | 0x40, ALL))


def test_rounds_to_nearest_even_at_and_around_every_midpoint() -> None:
    finite = ALL[(ALL & 0x7F80) != 0x7F80].astype(np.uint32)
    middle = (finite << 16) + 0x8000
    above = ((finite << 16) + 0x10000) >> 16  # the next pattern away from zero; infinity after the largest
    assert np.array_equal(to_bf16((middle - 1).view(np.float32)), finite)
    assert np.array_equal(to_bf16((middle + 1).view(np.float32)), above)
    assert np.array_equal(to_bf16(middle.view(np.float32)), np.where(finite % 2, above, finite))


def test_overflow_is_infinity_and_nan_stays_nan() -> None:
    big = np.float32([3.4e38, -3.4e38, np.inf, -np.inf])
    assert from_bf16(to_bf16(big)).tolist() == [np.inf, -np.inf, np.inf, -np.inf]
    # the payloads a carry would turn into zero or infinity
    nans = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(from_bf16(to_bf16(nans))).all()


def test_equals_the_gguf_package_on_random_bits() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    values = bits.view(np.float32)
    want = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16).view(np.uint16)
    assert np.array_equal(to_bf16(values), want)


def test_keeps_shape_and_takes_strided_arrays() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::3]
    assert from_bf16(to_bf16(values)).tolist() == values.tolist()
    assert to_bf16(np.float32(1).reshape(())).shape == ()
    assert to_bf16(np.empty((0, 3), np.float32)).shape == (0, 3)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(DTypeError, match="float64"):
        to_bf16(np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="int16"):
        from_bf16(np.zeros(3, np.int16))  # type: ignore[arg-type]
