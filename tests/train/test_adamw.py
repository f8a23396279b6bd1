"""Whole steps of AdamW beside PyTorch's: clipping, decay, warm-up and cosine, and what bounds them."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from devices import DEVICES, EXTRA
from trivet.lora import Lora, initial
from trivet.optim import AdamW, Schedule
from trivet.train.data import pack

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import hf_oracle as oracle  # noqa: E402

STEPS = 20
SCHEDULE = Schedule(4e-3, STEPS, warmup=4, decay="cosine", floor=0.1)
OPTIMISER = AdamW(beta1=0.9, beta2=0.98, eps=1e-6, decay=0.1, clip=0.7)


def torch_run(model, batches):
    """Loss and norm of each step by torch.optim.AdamW; matrices decay, vectors do not."""
    wanted = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in wanted if p.ndim > 1], "weight_decay": OPTIMISER.decay},
        {"params": [p for p in wanted if p.ndim == 1], "weight_decay": 0.0},
    ]
    made = torch.optim.AdamW(
        [g for g in groups if g["params"]],
        lr=1.0,
        betas=(OPTIMISER.beta1, OPTIMISER.beta2),
        eps=OPTIMISER.eps,
    )
    out = []
    for number, sequences in enumerate(batches, 1):
        made.zero_grad()
        loss = oracle.torch_loss(model, sequences) / pack(sequences).trained
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(wanted, OPTIMISER.clip)
        for group in made.param_groups:
            group["lr"] = SCHEDULE.at(number)
        made.step()
        out.append((loss.item(), norm.item()))
    return np.array(out)


@pytest.mark.parametrize("kind", ["full", "lora"])
@pytest.mark.parametrize("family", ["llama", "llama-tied-bias", "gpt2"])
def test_twenty_steps_follow_pytorch(family, kind, pairs):
    pair = pairs(family)
    settings = None if kind == "full" else Lora(4, 4.0)
    model, values = (copy.deepcopy(pair.theirs), None) if settings is None else oracle.adapted(pair, settings)
    data = [oracle.examples(100 + i % 3, 17, 9, 24) for i in range(STEPS)]
    wanted = torch_run(model, data)
    assert (wanted[:, 1] > OPTIMISER.clip).sum() >= 5, "clipping is at work"
    assert wanted[-2:, 0].max() < 0.9 * wanted[:2, 0].min(), "it learns"
    for device in DEVICES:
        trainer = pair.trainer(device, settings, OPTIMISER, values)
        reports = [trainer.step([pack(s)], SCHEDULE.at(i)) for i, s in enumerate(data, 1)]
        np.testing.assert_allclose([r.loss for r in reports], wanted[:, 0], rtol=1e-4, err_msg=device)
        np.testing.assert_allclose([r.norm for r in reports], wanted[:, 1], rtol=1e-3, err_msg=device)


@pytest.mark.parametrize("device", DEVICES)
def test_decay_is_for_matrices_and_stands_beside_the_step(device, pairs):
    """At a beta1 and gradients that make no step to speak of, a matrix shrinks by lr * decay."""
    pair, before = pairs(), pairs().parameters()
    trainer = pair.trainer(device, optimiser=AdamW(eps=1.0, decay=0.5, clip=1e-6))
    trainer.step([pack(oracle.examples(1, 20))], 1e-2)
    for name, after in trainer.parameters.items():
        keep = 1 - 1e-2 * 0.5 if after.ndim > 1 else 1.0
        np.testing.assert_allclose(after, before[name] * np.float32(keep), rtol=1e-6, atol=1e-7)


def steep(pair, by):
    """The same model, with a norm's weight so small, and a matrix so large, that the first has gradients of
    the size `by`."""
    values = pair.parameters()
    values["output_norm.weight"] /= np.float32(by)
    values["output.weight"] *= np.float32(by)
    return values


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by", [1e-3, 1.0, 1e10, 1e30, 1e37])
def test_the_clipped_norm_is_the_clip(by, device, pairs):
    """Also where the square of a gradient, or the norm of all, is no float32."""
    if device in EXTRA and by > 1e30:
        pytest.skip("the clip over such a norm is subnormal, which XLA and MLX take for zero: a step refused")
    pair, clip = pairs(), 0.5
    trainer = pair.trainer(device, optimiser=AdamW(clip=clip), parameters=steep(pair, by))
    report = trainer.step([pack(oracle.examples(2, 30))], 1e-3)
    assert not report.skipped
    assert report.norm > 0.1 * by
    m = [a.astype(np.float64).ravel() / 0.1 for n, a in trainer.arrays().items() if n.startswith("m.")]
    assert np.linalg.norm(np.concatenate(m)) == pytest.approx(clip, rel=1e-4)
    assert all(np.isfinite(a).all() for a in trainer.arrays().values())


@pytest.mark.parametrize("device", DEVICES)
def test_without_a_clip_a_gradient_whose_square_is_infinite_is_refused(device, pairs):
    pair = pairs()
    for by, skipped in ((1e10, False), (1e25, True)):
        trainer = pair.trainer(device, optimiser=AdamW(clip=0.0), parameters=steep(pair, by))
        before = {n: a.copy() for n, a in trainer.arrays().items()}
        report = trainer.step([pack(oracle.examples(2, 30))], 1e-3)
        assert report.skipped == skipped
        same = [np.array_equal(a, before[n]) for n, a in trainer.arrays().items()]
        assert all(same) if skipped else not all(same)
        assert all(np.isfinite(a).all() for a in trainer.arrays().values())


def test_adapters_begin_as_the_model_they_adapt(pairs):
    """B is zero: the first loss is the model's own; then A and B both move."""
    pair, batch = pairs(), pack(oracle.examples(3, 25))
    settings = Lora(4, 8.0)
    first = initial(pair.method(settings).shapes(), 5)
    trainer = pair.trainer("cpu", settings, parameters=first)
    own, _ = pair.trainer("cpu").evaluate([batch])
    assert trainer.evaluate([batch])[0] == pytest.approx(own, rel=1e-6)
    for _ in range(2):  # A has no gradient while B is zero
        trainer.step([batch], 1e-2)
    assert not any(np.array_equal(a, first[n]) for n, a in trainer.parameters.items())
