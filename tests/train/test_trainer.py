"""Steps that are all or nothing, the same for every number of threads, and the same after a resume."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import small_model

from devices import DEVICES
from trivet.errors import FileError, InputError
from trivet.lora import Lora
from trivet.optim import AdamW, Schedule
from trivet.train.data import Batches, Dataset, Position, pack

pytest.importorskip("torch")
pytest.importorskip("transformers")

import hf_oracle as oracle

POISON = 13  # an id whose embedding is NaN


def frozen(trainer):
    """The bytes of every parameter and moment."""
    return {name: array.tobytes() for name, array in trainer.arrays().items()}


def batch(seed, *lengths, poisoned=False):
    made = oracle.examples(seed, *lengths)
    for e in made:
        e.ids[e.ids == POISON] = 0
    if poisoned:
        made[-1].ids[0] = POISON
    return pack(made)


def poisoned(pair):
    values = pair.parameters()
    values["token_embd.weight"][POISON] = np.nan
    return values


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_loss_that_is_not_finite_changes_nothing(device, clip, pairs):
    pair = pairs()
    trainer = pair.trainer(device, optimiser=AdamW(clip=clip), parameters=poisoned(pair))
    assert not trainer.step([batch(1, 20)], 1e-2).skipped
    before = frozen(trainer)
    report = trainer.step([batch(2, 9, 12, poisoned=True)], 1e-2)
    assert report.skipped
    assert not np.isfinite(report.loss)
    assert report.step == 2
    assert frozen(trainer) == before
    assert trainer.facts() == {"taken": 2, "moves": 1, "seed": 0}
    after = trainer.step([batch(3, 15)], 1e-2)  # and the next step is as if it had not been
    other = pair.trainer(device, optimiser=AdamW(clip=clip), parameters=poisoned(pair))
    other.step([batch(1, 20)], 1e-2)
    assert (after.loss, after.norm) == ((again := other.step([batch(3, 15)], 1e-2)).loss, again.norm)
    assert frozen(trainer) == frozen(other)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_micro_batch_that_is_not_finite_undoes_the_step(device, at, pairs):
    pair = pairs()
    trainer = pair.trainer(device, parameters=poisoned(pair), accumulate=True)
    trainer.step([batch(1, 20)], 1e-2)
    before = frozen(trainer)
    parts = [batch(5 + i, 9 + i, poisoned=i == at) for i in range(3)]
    assert trainer.step(parts, 1e-2).skipped
    assert frozen(trainer) == before
    report = trainer.step([batch(1, 20)], 1e-2)
    assert not report.skipped
    assert np.isfinite(report.norm)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_gradients_that_are_not_finite_change_nothing(device, clip, pairs):
    """The loss is what it was: the norm's weight is tiny, and the matrix after it as much larger."""
    pair = pairs()
    values = pair.parameters()
    values["output_norm.weight"] /= np.float32(3e38)
    values["output.weight"] *= np.float32(3e38)
    trainer = pair.trainer(device, optimiser=AdamW(clip=clip), parameters=values)
    before = frozen(trainer)
    report = trainer.step([batch(1, 90)], 1e-2)
    assert report.loss < 20
    assert not np.isfinite(report.norm)
    assert report.skipped
    assert frozen(trainer) == before


# --- the same bits ---------------------------------------------------------------------------------------

_HASH = """
import hashlib
made = trainer(Lora(8, 16.0, dropout=0.1) if sys.argv[2] == "lora" else None, accumulate=True)
told = []
for step in range(3):
    parts = [pack([example(9 * step + i, n) for n in (70 + 31 * i, 5, 60)]) for i in range(2)]
    told.append(made.step(parts, 1e-2))
hashed = hashlib.sha256(repr(told).encode())
for name, array in sorted(made.arrays().items()):
    hashed.update(name.encode() + array.tobytes())
assert made.moves == 3
print(hashed.hexdigest())
"""


@pytest.mark.parametrize("method", ["full", "lora"])
def test_threads_and_repetition_change_no_bit(method, tmp_path):
    path = small_model.write(tmp_path / "m.gguf", vocab=1531, width=96, hidden=200, layers=2, heads=3)
    script = small_model.CHILD + _HASH

    def child(threads):
        made = subprocess.run(
            [sys.executable, "-c", script, str(path), method],
            env=os.environ | {"TRIVET_THREADS": str(threads)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        return made.stdout

    first = child(1)
    assert len(first) == 65
    assert [child(n) for n in (1, 2, 5)] == [first] * 3


def dataset(*lengths):
    made = oracle.examples(21, *(n + 1 for n in lengths))
    offsets = np.concatenate([[0], np.cumsum([n + 1 for n in lengths])])
    ids, trained = (np.concatenate([getattr(e, n) for e in made]) for n in ("ids", "trained"))
    return Dataset("train", ids, trained, offsets, np.arange(1, len(lengths) + 1), "f" * 64)


SCHEDULE = Schedule(1e-2, 7, warmup=2, decay="cosine")


@pytest.mark.parametrize(
    ("settings", "accumulate"), [(None, True), (Lora(4, 8.0, dropout=0.3), True), (Lora(4, 8.0), False)]
)
@pytest.mark.parametrize(("device", "stop"), [("cpu", 1), ("cpu", 4), ("cpu", 6), ("reference", 4)])
def test_a_run_that_resumes_has_the_bits_of_one_that_does_not(device, settings, accumulate, stop, pairs):
    """Through the end of an epoch, with packing; the learning rate, the order and the masks go on."""
    pair = pairs()
    data = dataset(5, 9, 3, 12, 7, 11, 4, 8, 6)

    def begun(seed):
        return pair.trainer(device, settings, accumulate=accumulate, seed=seed), Batches(
            data, 16 if accumulate else 40, rows=3, seed=4
        )

    def go(trainer, batches, at, to):
        told = []
        while trainer.taken < to:
            told.append(trainer.step(batches.step(at), SCHEDULE.at(trainer.taken + 1)))
            at = batches.after(at)
        return told, at

    whole, batches = begun(5)
    told, _ = go(whole, batches, Position(), SCHEDULE.steps)
    assert len(batches.step(Position())) > 1 or not accumulate

    first, batches = begun(5)
    before, at = go(first, batches, Position(), stop)
    arrays = {n: a.copy() for n, a in first.arrays().items()}
    facts, state = first.facts(), batches.state(at)
    second, batches = begun(6)
    second.step(batches.step(Position()), 1.0)  # whatever it held before
    second.restore(arrays, facts)
    after, _ = go(second, batches, batches.resume(state), SCHEDULE.steps)
    assert before + after == told
    assert frozen(second) == frozen(whole)
    assert second.facts() == whole.facts()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("settings", [None, Lora(4, 8.0)])
def test_moments_in_pages_give_the_bits_of_whole_ones(device, settings, pairs):
    """And a checkpoint of either is one of the other."""
    pair = pairs()
    data = [batch(i, 9, 14) for i in range(4)]

    def stepped(trainer, some):
        for one in some:
            trainer.step([one], 1e-2)
        return trainer

    def moved(trainer):
        return {n: a.tobytes() for n, a in sorted(trainer.parameters.items())}

    sizes = (0, 150, 1)
    whole, *paged = (stepped(pair.trainer(device, settings, AdamW(page=n)), data[:2]) for n in sizes)
    most = [max(a.size for n, a in t.arrays().items() if n[0] in "mv") for t in paged]
    rows = max(a.shape[-1] for a in whole.parameters.values() if a.ndim > 1)
    assert max(most) <= max(150, rows)
    assert len(paged[1].arrays()) > len(paged[0].arrays()) > len(whole.arrays())
    assert moved(paged[0]) == moved(paged[1]) == moved(whole)
    kept = {t: ({n: a.copy() for n, a in t.arrays().items()}, t.facts()) for t in (whole, *paged)}
    wanted = moved(stepped(whole, data[2:]))
    for arrays, facts in kept.values():
        for size in sizes:
            other = pair.trainer(device, settings, AdamW(page=size))
            other.restore(arrays, facts)
            assert moved(stepped(other, data[2:])) == wanted


@pytest.mark.parametrize("device", DEVICES)
def test_a_checkpoint_of_another_run_changes_nothing(device, pairs):
    trainer = pairs().trainer(device, Lora(4, 8.0))
    trainer.step([batch(1, 20)], 1e-2)
    before, facts = frozen(trainer), trainer.facts()
    good = {n: a.copy() for n, a in trainer.arrays().items()}
    name = next(iter(good))
    bad = [
        ({n: a for n, a in good.items() if n != name}, "not in both"),
        (good | {"m.other": good[name]}, "'m.other'"),
        (good | {name: good[name][:-1]}, "this run has"),
        (good | {name: good[name].astype(np.float64)}, "float64"),
        (
            {n: a for n, a in good.items() if n != f"m.{name}"} | {f"m.{name}@0": good[name][:1]},
            "this run has",
        ),
        *(
            ({n: a for n, a in good.items() if n != f"m.{name}"} | pages, "not in both")
            for pages in (
                {f"m.{name}@0": good[name][:1], f"m.{name}@2": good[name][2:]},
                {f"m.{name}@0": good[name][:1], f"m.{name}@1": good[name][1:, :1]},
                {f"m.{name}@0": np.zeros((), np.float32)},
            )
        ),
    ]
    for arrays, why in bad:
        with pytest.raises(FileError, match=why):
            trainer.restore(arrays, facts)
    for change in ({"taken": -1}, {"moves": 1.5}, {"seed": None}, {"taken": 2**47}):
        with pytest.raises(InputError, match=next(iter(change))):
            trainer.restore(good, facts | change)
    assert frozen(trainer) == before
    assert trainer.facts() == facts


def test_what_a_trainer_refuses(pairs):
    pair = pairs()
    with pytest.raises(InputError, match="given or wanted"):
        pair.trainer(
            "cpu", parameters=pair.parameters() | {"blk.9.attn_q.weight": np.zeros((2, 2), np.float32)}
        )
    values = pair.parameters()
    del values["output.weight"]
    with pytest.raises(InputError, match=r"output\.weight"):
        pair.trainer("cpu", parameters=values)
    trainer = pair.trainer("cpu")
    for parts in ([], [batch(1, 5), batch(2, 5)]):
        with pytest.raises(InputError, match="does not accumulate"):
            trainer.step(parts, 1e-3)
    assert trainer.taken == 0
