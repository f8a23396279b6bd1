"""The loop of a run: steps, validation, checkpoints; it stops where it is told and goes on from there.

A run that stops after K steps, by Ctrl-C or by `kill -9`, and resumes gives the same bits as one that does
not: the state is the parameters, the moments, two counters and the position in the data; the learning rate
and the order of examples are functions of those.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import trivet.train.checkpoint as checkpoint
from trivet import arguments
from trivet.errors import NonFiniteError
from trivet.optim import Schedule
from trivet.train.data import Batch, Batches, Position
from trivet.train.events import Evaluated, Event, Note, Saved, Stepped, Watch
from trivet.train.trainer import Trainer

#: as many skipped steps in a row end a run: nothing will come of it
MOST_SKIPPED = 10


@dataclass(frozen=True, slots=True)
class Pace:
    """When a run measures and saves: every so many steps (0: only at the end), and how many checkpoints stay
    besides the best."""

    evaluate: int = 0
    save: int = 0
    keep: int = 2


@dataclass(slots=True)
class Loop:
    """One run. `facts` is what a checkpoint says of the whole run: configuration, hashes, parents."""

    trainer: Trainer
    batches: Batches
    schedule: Schedule
    folder: Path
    pace: Pace
    facts: Mapping[str, Any]
    validation: Sequence[Batch] = ()
    watchers: list[Watch] = field(default_factory=list)
    at: Position = field(default_factory=Position)
    best: tuple[int, float] | None = None  # step and loss
    skipped: int = 0
    in_a_row: int = 0
    measured: int = -1  # the step after which it last was
    last_saved: int = -1

    def tell(self, event: Event) -> None:
        for watch in self.watchers:
            watch(event)

    def run(self) -> bool:
        """To the last step; False if it was stopped before. Saves at the end either way."""
        with _interrupts() as stopped:
            while self.trainer.taken < self.schedule.steps and not stopped():
                self._step()
                done = self.trainer.taken
                if self.pace.evaluate and done % self.pace.evaluate == 0 and done < self.schedule.steps:
                    self._evaluate()
                if self.pace.save and done % self.pace.save == 0 and done < self.schedule.steps:
                    self._save()
            finished = self.trainer.taken >= self.schedule.steps
            if finished:
                self._evaluate()
            self._save()
        if finished and self.skipped >= self.trainer.taken:
            raise NonFiniteError(
                f"[train] all {self.trainer.taken} steps had a loss or gradients that are not finite, or"
                " nothing to train on: nothing was trained"
            )
        return finished

    def _step(self) -> None:
        began = time.perf_counter()
        lr = self.schedule.at(self.trainer.taken + 1)
        report = self.trainer.step(self.batches.step(self.at), lr)
        self.at = self.batches.after(self.at)
        self.skipped += report.skipped
        epoch = self.at.epoch + self.at.step / self.batches.steps(self.at.epoch)
        self.tell(Stepped(report, epoch, lr, time.perf_counter() - began))
        self.in_a_row = self.in_a_row + 1 if report.skipped else 0
        if not report.skipped:
            return
        why = "a loss or gradients that are not finite" if report.targets else "nothing to train on"
        self.tell(Note(f"step {report.step} had {why}, and changed nothing"))
        if self.in_a_row == MOST_SKIPPED:
            self._save()
            raise NonFiniteError(
                f"[train] steps {report.step - MOST_SKIPPED + 1} to {report.step} had {why}, and changed"
                " nothing; try a lower learning rate"
            )

    def _evaluate(self) -> None:
        if not self.validation or self.measured == self.trainer.taken:
            return
        self.measured = self.trainer.taken
        total, targets = self.trainer.evaluate(self.validation)
        loss = total / targets if targets else math.nan
        better = math.isfinite(loss) and (self.best is None or loss < self.best[1])
        if better:
            self.best = (self.trainer.taken, loss)
        self.tell(Evaluated(self.trainer.taken, loss, better))
        if better and self.pace.evaluate:
            self._save()

    # --- checkpoints ---

    def _save(self) -> None:
        if self.last_saved == self.trainer.taken:
            return
        facts = {
            **self.facts,
            "trainer": self.trainer.facts(),
            "data": self.batches.state(self.at),
            "best": self.best,
            "measured": self.measured,
            "skipped": self.skipped,
        }
        path = checkpoint.save(self.folder, self.trainer.taken, self.trainer.arrays(), facts)
        self.last_saved = self.trainer.taken
        checkpoint.prune(self.folder, self.pace.keep, self.best[0] if self.best else None)
        self.tell(Saved(self.trainer.taken, path))

    def resume(self, saved: checkpoint.Saved) -> None:
        """Goes on from a checkpoint. Raises FileError if the data, or what is trained, is another's."""
        at = self.batches.resume(saved.facts["data"])
        best = saved.facts.get("best")
        self.trainer.restore(saved.arrays, saved.facts["trainer"])
        self.at = at
        self.best = (int(best[0]), float(best[1])) if best else None
        self.skipped = arguments.integer(saved.facts.get("skipped"), "[resume] skipped", 0)
        self.measured = arguments.integer(saved.facts.get("measured", -1), "[resume] measured", -1)
        self.last_saved = self.trainer.taken


@contextmanager
def _interrupts() -> Iterator[Any]:
    """A function that says whether Ctrl-C was pressed: a run stops between steps. Pressed again, it stops at
    once, without saving."""
    pressed: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, frame: FrameType | None) -> None:
        if pressed:
            signal.default_int_handler(number, frame)
        pressed.append(True)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
