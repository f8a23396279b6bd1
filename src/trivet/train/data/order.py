"""The order of batches: a seeded permutation for each epoch, and steps that can be reached without those
before them.

The permutation sorts n numbers of Philox 4x64 (key: seed and epoch), a generator that is defined to the bit:
every platform has the same order, and so has a run that resumes at (epoch, step).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import arguments
from trivet.errors import FileError, InputError
from trivet.train.data.dataset import Dataset
from trivet.train.data.pack import Batch, first_fit, pack


def permutation(n: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order of n examples in an epoch.

    >>> permutation(8, seed=1, epoch=0).tolist(), permutation(8, seed=1, epoch=1).tolist()
    ([3, 5, 2, 7, 0, 6, 1, 4], [0, 6, 5, 3, 4, 7, 2, 1])
    """
    numbers = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(n)
    return np.argsort(numbers, kind="stable")


@dataclass(frozen=True, slots=True)
class Position:
    """The next step: its epoch, and its number in the epoch."""

    epoch: int = 0
    step: int = 0


class Batches:
    """The steps of a training run: each a list of micro-batches of at most `tokens` positions.

    rows: examples of a step, packed into as few micro-batches as they need.
    micro: micro-batches of a step, filled with whole examples, where `rows` is not given.
    The last step of an epoch has what is left. shuffle=False keeps the file's order, as for measuring."""

    def __init__(
        self,
        data: Dataset,
        tokens: int,
        *,
        rows: int | None = None,
        micro: int = 1,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        self.data = data
        self.tokens = arguments.integer(tokens, "[data] tokens", 1)
        self.rows = None if rows is None else arguments.integer(rows, "[data] rows", 1)
        self.micro = arguments.integer(micro, "[data] micro", 1)
        self.seed = arguments.integer(seed, "[data] seed", 0, 2**64 - 1)
        self.shuffle = shuffle
        if rows is not None and micro != 1:
            raise InputError("[data] a step has a number of rows, or of micro-batches; both were given")
        if not len(data):
            raise InputError(f"[data] {data.name} has no examples")
        longest = int(data.lengths.max())
        if longest > tokens:
            line = int(data.lines[data.lengths.argmax()])
            raise InputError(
                f"[data] micro-batches of {tokens} tokens; the example of line {line} has {longest}"
            )
        self._plan = lru_cache(2)(self._make_plan)

    def steps(self, epoch: int) -> int:
        """Steps of an epoch. With `rows` all epochs have the same number."""
        return -(-len(self.data) // self.rows) if self.rows else len(self._plan(epoch))

    def total(self, epochs: int) -> int:
        """Steps of the first `epochs` epochs."""
        return (
            self.steps(0) * epochs if self.rows or not self.shuffle else sum(map(self.steps, range(epochs)))
        )

    def step(self, at: Position) -> list[Batch]:
        """The micro-batches of a step."""
        return [pack([self.data[i] for i in members]) for members in self.members(at)]

    def members(self, at: Position) -> list[list[int]]:
        """The examples of a step's micro-batches."""
        plan = self._plan(at.epoch)
        if not 0 <= at.step < len(plan):
            raise InputError(f"[data] step {at.step} of epoch {at.epoch}, which has {len(plan)}")
        return plan[at.step]

    def after(self, at: Position) -> Position:
        """The position after a step."""
        last = at.step + 1 >= self.steps(at.epoch)
        return Position(at.epoch + 1, 0) if last else Position(at.epoch, at.step + 1)

    def walk(self, epochs: int, start: Position = Position()) -> Iterator[tuple[Position, list[Batch]]]:
        """Steps from `start` to the end of the last epoch, each with its position."""
        at = start
        while at.epoch < epochs:
            yield at, self.step(at)
            at = self.after(at)

    # --- checkpoints ---

    def state(self, at: Position) -> dict[str, Any]:
        """What a checkpoint stores to go on at `at`: plain data."""
        return {"epoch": at.epoch, "step": at.step, **self._identity()}

    def resume(self, state: Mapping[str, Any]) -> Position:
        """The position of a checkpoint. Raises FileError if the data or its order are other ones now."""
        for name, now in self._identity().items():
            if state.get(name) != now:
                what = {
                    "file": "the data file was changed",
                    "examples": "the examples are others (another template, tokenizer, length or split)",
                }.get(name, f"{name} is {now!r} and was {state.get(name)!r}")
                raise FileError(f"[resume] {what}: the run cannot go on where it stopped")
        epoch = arguments.integer(state.get("epoch"), "[resume] epoch", 0)
        step = arguments.integer(state.get("step"), "[resume] step", 0, self.steps(epoch) - 1)
        return Position(epoch, step)

    def _identity(self) -> dict[str, Any]:
        return {
            "file": self.data.sha256,
            "examples": self.data.fingerprint,
            "seed": self.seed,
            "tokens": self.tokens,
            "rows": self.rows,
            "micro": self.micro,
            "shuffle": self.shuffle,
        }

    def _make_plan(self, epoch: int) -> list[list[list[int]]]:
        """Step -> micro-batch -> examples."""
        n, lengths = len(self.data), self.data.lengths
        order = (permutation(n, self.seed, epoch) if self.shuffle else np.arange(n)).tolist()
        if self.rows is not None:
            parts = [order[at : at + self.rows] for at in range(0, n, self.rows)]
            return [first_fit(part, lengths, self.tokens) for part in parts]
        bins = first_fit(order, lengths, self.tokens)
        return [bins[at : at + self.micro] for at in range(0, len(bins), self.micro)]
