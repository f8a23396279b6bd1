"""NF4 against bitsandbytes on the CPU: equal tables, equal codes and scales, equal numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trivet import dtypes
from trivet.blocks import dequantize, nf4, quantize, tensor_bytes
from trivet.dtypes import DType

torch = pytest.importorskip("torch")
functional = pytest.importorskip("bitsandbytes.functional")

PAIRS = list(zip(dtypes.NF4, dtypes.NF4D, strict=True))


def values(block: int, scale: float = 1.0, rows: int = 37) -> Any:
    made = (np.random.default_rng(block).standard_normal((rows, 3 * block)) * scale).astype(np.float32)
    made[3], made[5, :block] = 0, -0.0
    return made


def theirs(x: Any, block: int, double: bool) -> tuple[Any, Any]:
    return functional.quantize_4bit(
        torch.tensor(x), blocksize=block, quant_type="nf4", compress_statistics=double
    )


def double(state: Any, codes: Any, dtype: DType) -> Any:
    """Their double-quantised tensor in our bytes."""
    qs = codes.numpy().reshape(-1, dtype.block // 2)
    rows = np.concatenate([state.absmax.numpy()[:, None], qs], axis=1)
    tail = np.concatenate([[state.offset.numpy()], state.state2.absmax.numpy()]).astype("<f4")
    return np.concatenate([rows.reshape(-1), tail.view(np.uint8)])


def test_tables_are_the_published_ones() -> None:
    assert np.array_equal(nf4.LEVELS, functional.get_4bit_type("nf4", device="cpu").numpy())
    assert np.array_equal(nf4.DYNAMIC, functional.create_dynamic_map().numpy())


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e30, 1e-39, 1e-44])
@pytest.mark.parametrize("dtype", dtypes.NF4, ids=str)
def test_codes_scales_and_numbers_are_bitsandbytes(dtype: DType, scale: float) -> None:
    x = values(dtype.block, scale)
    codes, state = theirs(x, dtype.block, False)
    raw = quantize(x, dtype)
    assert raw.shape == (37, dtype.row_bytes(x.shape[1]))
    blocks = raw.reshape(-1).view([("d", "<f4"), ("qs", "u1", (dtype.block // 2,))])
    assert np.array_equal(blocks["d"], state.absmax.numpy())
    assert np.array_equal(blocks["qs"].reshape(-1), codes.numpy().reshape(-1))
    assert np.array_equal(dequantize(raw, dtype, x.shape), functional.dequantize_4bit(codes, state).numpy())


@pytest.mark.parametrize(("single", "dtype"), PAIRS, ids=str)
def test_double_quantised_tensors_of_bitsandbytes_mean_the_same_here(single: DType, dtype: DType) -> None:
    x = values(dtype.block, rows=301)  # several groups, none of which ends with a row
    codes, state = theirs(x, dtype.block, True)
    raw = double(state, codes, dtype)
    assert raw.size == tensor_bytes(dtype, x.shape)
    assert np.array_equal(dequantize(raw, dtype, x.shape), functional.dequantize_4bit(codes, state).numpy())


@pytest.mark.parametrize(("single", "dtype"), PAIRS, ids=str)
def test_double_quantisation_is_bitsandbytes_but_for_ties(single: DType, dtype: DType) -> None:
    # Their CPU code finds 8-bit codes by a table of rounded numbers: a share within 1e-4 of the middle of two
    # values may fall to the farther one. Their mean is summed in float32.
    x = values(dtype.block, rows=301)
    codes, state = theirs(x, dtype.block, True)
    raw, count = quantize(x, dtype), x.size // dtype.block
    blocks = raw[: count * dtype.nbytes].reshape(count, -1)
    tail = raw[count * dtype.nbytes :].view("<f4")
    assert np.array_equal(blocks[:, 1:].reshape(-1), codes.numpy().reshape(-1))
    assert tail[0] == pytest.approx(float(state.offset), rel=1e-6)
    assert tail[1:] == pytest.approx(state.state2.absmax.numpy(), rel=1e-4)
    other = np.flatnonzero(blocks[:, 0] != state.absmax.numpy())
    scales = quantize(x, single).reshape(-1).view([("d", "<f4"), ("qs", "u1", (dtype.block // 2,))])["d"]
    shares = (scales[other] - tail[0]) / tail[1 + other // dtype.group]
    middles = (nf4.DYNAMIC[:-1] + nf4.DYNAMIC[1:]) / 2
    assert all(np.abs(middles - share).min() < 1e-4 for share in shares)
    assert len(other) <= 0.02 * count
