"""Files that hold their matrices in 16 bits: activations stay f32."""

import numpy as np
import pytest

import tiny_model
import trivet as tv
from devices import DEVICES

IDS = [(7 * i) % 250 for i in range(40)]


@pytest.mark.parametrize("device", DEVICES)
def test_half_weights(tmp_path, device):
    rounded = {k: v.astype(np.float16) for k, v in tiny_model.tensors().items() if v.ndim == 2}
    half = tiny_model.write(tmp_path / "half.gguf", weights=rounded)
    full = tiny_model.write(
        tmp_path / "full.gguf", weights={k: v.astype(np.float32) for k, v in rounded.items()}
    )
    want = tv.load(full, "reference", kv="f32").logits(IDS)
    got = tv.load(half, device, kv="f32").logits(IDS)
    assert got.dtype == np.float32
    assert np.abs(got - want).max() < 1e-3 * np.abs(want).max()
