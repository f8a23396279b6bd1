"""Faults that training programs are known for, each with the value that is right."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import tiny_model
import trivet as tv
from devices import DEVICES
from trivet import models, runtime
from trivet.lora import Lora
from trivet.optim import AdamW, Schedule
from trivet.train.data import UNTRAINED, Renderer, Row, pack
from trivet.train.step import Method
from trivet.train.trainer import Trainer

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import hf_oracle as oracle


def moments(trainer):
    return {n: a.copy() for n, a in trainer.arrays().items() if n.startswith("m.")}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("settings", "clip"), [(None, 0.0), (None, 0.5), (Lora(4, 8.0), 0.0)])
def test_micro_batches_with_unequal_targets_equal_one_batch(device, settings, clip, pairs):
    """The mean is over the targets of the step: 1, 40 and 12 targets do not weigh the same."""
    pair = pairs()
    parts = [oracle.examples(1, 30, share=0), oracle.examples(2, 41, share=1), oracle.examples(3, 9, 15)]
    parts[0][0].trained[-1] = True
    assert pack(parts[0]).trained == 1
    for order in ((0, 1, 2), (2, 1, 0)):
        whole = pair.trainer(device, settings, AdamW(clip=clip))
        split = pair.trainer(device, settings, AdamW(clip=clip), accumulate=True)
        for _ in range(2):  # the second finds the sums of the first
            one = whole.step([pack([e for part in parts for e in part])], 1e-6)
            several = split.step([pack(parts[i]) for i in order], 1e-6)
            assert (several.targets, several.tokens) == (one.targets, one.tokens)
            assert several.loss == pytest.approx(one.loss, rel=1e-6)
            assert several.norm == pytest.approx(one.norm, rel=1e-5)
            for (name, a), b in zip(moments(split).items(), moments(whole).values(), strict=True):
                assert oracle.distance(a, b) < 1e-5, name


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_with_nothing_to_train_on(device, pairs):
    """Zero loss and zero gradients, not NaN; the step changes nothing, and says so."""
    pair, masked = pairs(), oracle.examples(1, 20, 5, share=0)
    got = oracle.run(pair.method(), runtime.backend(device), pair.parameters(), masked)
    assert all(not g.any() for g in got.values())
    trainer = pair.trainer(device, optimiser=AdamW(decay=0.1), accumulate=True)
    trainer.step([pack(oracle.examples(2, 20))], 1e-2)
    before = {n: a.tobytes() for n, a in trainer.arrays().items()}
    report = trainer.step([pack(masked)], 1e-2)
    assert report.skipped
    assert (report.loss, report.norm, report.targets, report.tokens) == (0.0, 0.0, 0, 23)
    assert {n: a.tobytes() for n, a in trainer.arrays().items()} == before
    assert trainer.evaluate([pack(masked)]) == (0.0, 0)


@pytest.mark.parametrize("device", DEVICES)
def test_a_micro_batch_with_nothing_to_train_on_adds_nothing(device, pairs):
    pair, masked, some = pairs(), pack(oracle.examples(1, 20, share=0)), pack(oracle.examples(2, 25))
    told = []
    for parts in ([some], [masked, some], [some, masked]):
        trainer = pair.trainer(device, accumulate=True)
        report = trainer.step(parts, 1e-2)
        told.append((report.loss, report.norm, {n: a.tobytes() for n, a in trainer.arrays().items()}))
    assert told[0] == told[1] == told[2]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_the_first_step_of_adam_is_the_learning_rate(device, beta1, pairs):
    """Whatever the size of a gradient: the bias corrections are there, and are not applied twice."""
    pair, lr = pairs(), 1e-2
    before = pair.parameters()
    trainer = pair.trainer(device, optimiser=AdamW(beta1=beta1, eps=1e-12, clip=0.1))
    trainer.step([pack(oracle.examples(1, 30))], lr)
    for name, after in trainer.parameters.items():
        m = trainer.arrays()[f"m.{name}"]
        felt = np.abs(m) > 1e-8
        moved = (before[name] - after)[felt]
        np.testing.assert_allclose(moved, lr * np.sign(m[felt]), rtol=2e-4, err_msg=name)


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("rank", [1, 4, 16])
def test_what_adapters_add_is_scaled_by_alpha_over_rank_or_its_root(rslora, rank, pairs):
    pair, sequences = pairs(), oracle.examples(1, 30)
    settings = Lora(rank, 6.0, rslora=rslora)
    _, values = oracle.adapted(pair, settings)
    scale = 6.0 / math.sqrt(rank) if rslora else 6.0 / rank
    merged = pair.parameters()
    for name in [n for n in values if n.endswith(".lora_a")]:
        weight = name.removesuffix(".lora_a")
        merged[weight] = merged[weight] + np.float32(scale) * (values[f"{weight}.lora_b"] @ values[name])
    cpu = runtime.backend("cpu")
    adapted = oracle.run(pair.method(settings), cpu, values, sequences)["loss"]
    assert adapted == pytest.approx(oracle.run(pair.method(), cpu, merged, sequences)["loss"], rel=1e-5)


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
def test_a_schedule_is_exact_at_resume(decay):
    """It is a function of the step: nothing is counted, so nothing is off by one, or begins anew."""
    schedule = Schedule(3e-4, 1000, warmup=100, decay=decay, floor=0.1)
    rates = [schedule.at(i) for i in range(1, 1001)]
    again = Schedule(3e-4, 1000, warmup=100, decay=decay, floor=0.1)
    assert [again.at(i) for i in range(400, 1001)] == rates[399:]
    assert rates[0] == pytest.approx(3e-6), "the first step is not at a rate of 0"
    assert rates[99] == 3e-4
    assert rates[-1] == pytest.approx(3e-4 if decay == "constant" else 3e-5, rel=0.02)
    assert all(a >= b for a, b in itertools.pairwise(rates[99:]))


# --- data that reaches the step --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A model whose padding token is its end token, as many have it."""
    end = np.uint32(tiny_model.TOKENS.index(tiny_model.END))
    path = tmp_path_factory.mktemp("tiny") / "m.gguf"
    return tv.load(tiny_model.write(path, {"tokenizer.ggml.padding_token_id": end}), device="cpu")


def chat(question, answer):
    said = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return Row(1, "messages", {"messages": said})


def test_the_end_is_learnt_where_it_is_the_padding_too(tiny):
    """A mask by `id != pad` would leave the end out, and teach replies without one."""
    end = tiny_model.TOKENS.index(tiny_model.END)
    rows = [chat("hello", "yes"), chat("tell me", "no, never")]
    sequences = [e for row in rows for e in Renderer(tiny, 100).render(row).examples]
    batch = pack(sequences)
    assert (batch.targets == end).sum() == len(rows), "one end for each reply; those of questions are not"
    only = pack(sequences)
    only.targets[only.targets != end] = UNTRAINED
    method = Method(models.by_architecture("llama"), tiny.checkpoint)
    first = {n: tiny.checkpoint.load(n) for n in method.shapes()}
    trainer = Trainer(method, runtime.backend("cpu"), first, AdamW())
    before, count = trainer.evaluate([only])
    assert before / count > 1
    for _ in range(25):
        trainer.step([batch], 1e-2)
    assert trainer.evaluate([only])[0] / count < 0.1


def test_a_turn_that_is_cut_keeps_its_mask_up_to_the_cut(tiny):
    (whole,) = Renderer(tiny, 100).render(chat("hello", "a long reply")).examples
    reply = int(whole.trained.argmax())
    for length in range(reply, whole.length + 1):
        made = Renderer(tiny, length).render(chat("hello", "a long reply"))
        (part,) = made.examples
        assert part.length == length
        assert made.cut == whole.length - length
        np.testing.assert_array_equal(part.ids, whole.ids[: length + 1])
        np.testing.assert_array_equal(part.trained, whole.trained[: length + 1])
        assert pack([part]).trained == length + 1 - reply if length < whole.length else True
