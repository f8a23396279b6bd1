"""The TPU's kernel of products with packed weights, interpreted on the processor. TPU's own compiler
compiles it in tests/accel."""

import numpy as np
import pytest

from trivet import backends, dtypes
from trivet.blocks import dequantize, quantize

if reason := backends.find("xla").unavailable():
    pytest.skip(reason, allow_module_level=True)

import jax

from trivet.backends.xla import packed_linear

BLOCK32 = [dtypes.q8_0, dtypes.q4_0, dtypes.q4_1, dtypes.q5_0, dtypes.q5_1, dtypes.iq4_nl, dtypes.NF4[0]]
BLOCK256 = [dtypes.q2_k, dtypes.q3_k, dtypes.q4_k, dtypes.q5_k, dtypes.q6_k]


def product(x, packed, dtype):
    # XLA's fusion takes minutes for thousands of operations that share their operands.
    made = jax.jit(
        lambda x, w: packed_linear.product(x, w, dtype, interpret=True),
        compiler_options={"xla_backend_optimization_level": 0, "xla_disable_hlo_passes": "fusion"},
    )
    with jax.enable_x64(True):  # as programs run
        return np.asarray(made(x, packed))


def case(dtype, tokens, rows, size):
    rng = np.random.default_rng(size)
    packed = quantize(rng.standard_normal((rows, size), np.float32), dtype).reshape(rows, -1)
    return rng.standard_normal((tokens, size), np.float32), packed


def exact(x, packed, dtype):
    w = dequantize(packed.reshape(-1), dtype, (len(packed), x.shape[1]))
    return x.astype(np.float64) @ w.astype(np.float64).T


def close(got, want):
    assert got.shape == want.shape
    assert np.abs(got - want).max() < 2e-6 * np.abs(want).max()


@pytest.mark.parametrize("dtype", BLOCK32, ids=str)
def test_products_are_those_of_the_weights(dtype):
    x, packed = case(dtype, 1, 700, 96)
    close(product(x, packed, dtype), exact(x, packed, dtype))


@pytest.mark.parametrize(("tokens", "rows", "size"), [(3, 5, 576), (4, 512, 256), (2, 1, 32)])
def test_tokens_and_shapes(tokens, rows, size):
    x, packed = case(dtypes.q4_1, tokens, rows, size)
    close(product(x, packed, dtypes.q4_1), exact(x, packed, dtypes.q4_1))


@pytest.mark.slow  # thousands of operations to compile
@pytest.mark.parametrize("dtype", BLOCK256, ids=str)
def test_products_with_blocks_of_256(dtype):
    x, packed = case(dtype, 1, 40, 768)
    close(product(x, packed, dtype), exact(x, packed, dtype))


@pytest.mark.parametrize(
    "bits", [0x0001, 0x03FF, 0x0400, 0x7BFF, 0x8001, 0xFC00, 0x7C00, 0x7E00, 0x8000], ids=hex
)
def test_every_kind_of_half_is_a_scale(bits):
    """Halves that are tiny, the largest, infinite and none: TPU has no halves of its own."""
    packed = np.zeros((1, 34), np.uint8)
    packed[0, :2], packed[0, 2] = np.array([bits], np.uint16).view(np.uint8), 1
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 2
    with np.errstate(invalid="ignore"):
        want = 2 * np.array([bits], np.uint16).view(np.float16).astype(np.float64)
        got = product(x, packed, dtypes.q8_0)
    if np.isfinite(want):
        assert got[0, 0] == want
    else:
        assert not np.isfinite(got[0, 0])


def test_what_the_kernel_takes():
    rows = np.zeros((8, 360), np.uint8)
    assert packed_linear.takes(1, rows)
    assert packed_linear.takes(4, rows)
    assert not packed_linear.takes(5, rows)
    assert not packed_linear.takes(0, rows)
    assert not packed_linear.takes(1, rows[:0])
    assert not packed_linear.takes(1, np.zeros((8, 1 << 16), np.uint8))  # more than fast memory has
