"""SmolLM2-135M whole, on every device that tests run on: its logits, and five steps of each method."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import smollm2
import trivet as tv
from devices import DEVICES

pytestmark = [pytest.mark.model, pytest.mark.slow]
OTHERS = [device for device in DEVICES if device != "reference"]


@cache
def logits(path, device):
    return tv.load(path, device, kv="f32").logits(smollm2.IDS)


@pytest.mark.parametrize("device", OTHERS)
def test_logits_are_those_of_the_reference(device, smollm2_path):
    got, want = (np.asarray(logits(smollm2_path, d), np.float64) for d in (device, "reference"))
    assert want.shape == (len(smollm2.IDS), 49152)
    most = smollm2.LOGITS.get(device, smollm2.LOGITS_ELSEWHERE)
    assert np.abs(got - want).max() < most * np.abs(want).max()
    assert (got.argmax(-1) == want.argmax(-1)).all()


@pytest.fixture(scope="module")
def losses(tmp_path_factory, smollm2_path):
    folder = tmp_path_factory.mktemp("texts")
    return cache(lambda method, device: smollm2.five_steps(smollm2_path, method, device, folder)[0])


@pytest.mark.parametrize("device", OTHERS)
@pytest.mark.parametrize("method", smollm2.METHODS)
def test_five_steps_lose_what_they_lose_on_the_reference(method, device, losses):
    got, want = losses(method, device), losses(method, "reference")
    assert sorted(want, reverse=True) == want
    np.testing.assert_allclose(got, want, rtol=0, atol=smollm2.LOSS)
