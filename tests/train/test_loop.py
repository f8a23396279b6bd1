"""The loop: when it measures, saves and stops, with a trainer that computes nothing."""

import math
import os
import signal

import numpy as np
import pytest

from trivet.errors import NonFiniteError
from trivet.optim import Schedule
from trivet.train import checkpoint
from trivet.train.data import Batches, Dataset
from trivet.train.events import Evaluated, Saved, Stepped
from trivet.train.loop import Loop, Pace
from trivet.train.trainer import StepReport


class Counter:
    """A trainer whose parameter counts its steps; `held` are its validation losses by step."""

    def __init__(self, held=None, skips=()):
        self.taken, self.held, self.skips = 0, held or {}, skips
        self.parameters = {"w": np.zeros(1, np.float32)}
        self.seen = []

    def step(self, batches, lr):
        self.taken += 1
        self.parameters["w"] += 1
        self.seen.append((lr, [int(i) for b in batches for i in b.ids]))
        skipped = self.taken in self.skips
        return StepReport(self.taken, math.nan if skipped else 1.0, 1.0, 4, 4, skipped)

    def evaluate(self, batches):
        return self.held[self.taken], 1

    def arrays(self):
        return self.parameters

    def facts(self):
        return {"taken": self.taken}

    def restore(self, arrays, facts):
        self.taken, self.parameters = facts["taken"], {n: a.copy() for n, a in arrays.items()}


def batches():
    """Ten examples of two tokens that say which they are."""
    ids = np.repeat(np.arange(10, dtype=np.int32), 2)
    return Batches(
        Dataset("train", ids, np.ones(20, bool), np.arange(0, 21, 2), np.arange(1, 11), "00"), 8, rows=3
    )


def loop(folder, trainer, *, steps=8, watch=(), **pace):
    made = Loop(trainer, batches(), Schedule(1.0, steps), folder, Pace(**pace), {})
    made.validation = [None] if trainer.held else []
    made.watchers += watch
    return made


def names(folder):
    return [checkpoint.load(p).step for p in checkpoint.checkpoints(folder)]


def test_when_it_measures_and_saves(tmp_path):
    events = []
    trainer = Counter({2: 3.0, 4: 1.0, 6: 2.0, 8: 5.0})
    made = loop(tmp_path, trainer, evaluate=2, save=3, keep=2, watch=[events.append])
    assert made.run()
    assert [(e.step, e.loss, e.best) for e in events if isinstance(e, Evaluated)] == [
        (2, 3.0, True),
        (4, 1.0, True),
        (6, 2.0, False),
        (8, 5.0, False),
    ]
    assert [e.step for e in events if isinstance(e, Saved)] == [2, 3, 4, 6, 8]
    assert made.best == (4, 1.0)
    assert names(tmp_path) == [4, 6, 8]
    assert checkpoint.load(checkpoint.best(tmp_path)).step == 4


def test_the_last_step_is_saved_once_with_its_measurement(tmp_path):
    made = loop(tmp_path, Counter({3: 3.0, 6: 1.0}), steps=6, evaluate=3, save=3)
    made.run()
    saved = checkpoint.load(checkpoint.latest(tmp_path))
    assert saved.facts["best"] == [6, 1.0]
    assert checkpoint.load(checkpoint.best(tmp_path)).step == 6


def test_a_loss_that_is_no_number_is_never_the_best(tmp_path):
    made = loop(tmp_path, Counter({2: 3.0, 4: math.nan}), steps=4, evaluate=2)
    made.run()
    assert made.best == (2, 3.0)


def test_rates_and_examples_go_on_where_they_stopped(tmp_path):
    whole = Counter()
    loop(tmp_path / "one", whole, steps=9).run()

    def stop(event):
        if isinstance(event, Stepped) and event.report.step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    first, rest = Counter(), Counter()
    handler = signal.getsignal(signal.SIGINT)
    assert not loop(tmp_path / "two", first, steps=9, watch=[stop]).run()
    assert signal.getsignal(signal.SIGINT) is handler
    again = loop(tmp_path / "two", rest, steps=9)
    again.resume(checkpoint.load(checkpoint.latest(tmp_path / "two")))
    assert again.run()
    assert len(first.seen) == 5
    assert first.seen + rest.seen == whole.seen
    assert rest.parameters["w"] == 9


def test_skipped_steps_are_counted_and_ten_in_a_row_end_it(tmp_path):
    some = loop(tmp_path / "some", Counter(skips={*range(1, 10), *range(11, 20)}), steps=20)
    assert some.run()
    assert some.skipped == 18
    with pytest.raises(NonFiniteError, match="steps 3 to 12 had a loss or gradients that are not finite"):
        loop(tmp_path / "many", Counter(skips=range(3, 20)), steps=20).run()
    assert names(tmp_path / "many") == [12]


def test_ctrl_c_twice_stops_within_a_step(tmp_path):
    def stop(event):
        if isinstance(event, Stepped):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        loop(tmp_path, Counter(), watch=[stop]).run()
    assert names(tmp_path) == []
