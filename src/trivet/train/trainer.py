"""`Trainer`: a method compiled for a device, with its parameters and moments; takes steps, and measures.

It knows nothing of files, epochs or schedules: it is given batches and a learning rate.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import arguments
from trivet.backends.base import Backend, Program
from trivet.errors import FileError, InputError
from trivet.optim import AdamW
from trivet.train.data import Batch
from trivet.train.moments import regrouped
from trivet.train.step import Method, fitted

Array = npt.NDArray[Any]
_OTHERS = ("m.", "v.", "g.")  # how the names of states begin that are not parameters


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step did. `loss` is the mean over its `targets`; `norm` that of the averaged gradients before
    clipping. A step that was `skipped` changed nothing: its loss or gradients were not finite, or there was
    nothing to train on."""

    step: int
    loss: float
    norm: float
    tokens: int
    targets: int
    skipped: bool


class Trainer:
    """Trains by one method on one device. `parameters` are their first values, float32, by name."""

    def __init__(
        self,
        method: Method,
        backend: Backend,
        parameters: Mapping[str, Array],
        optimiser: AdamW,
        *,
        accumulate: bool = False,
        seed: int = 0,
        threads: int = 0,
    ) -> None:
        self.method, self.backend, self.optimiser = method, backend, optimiser
        self.accumulate, self.threads = accumulate, threads
        self.seed = arguments.integer(seed, "[train] seed", 0, 2**63 - 1)
        self.taken = 0  # steps so far, skipped ones too
        self.moves = 0  # those that changed something: what bias corrections count
        self._load = method.checkpoint.load
        self._program = self._compiled(parameters)
        if method.checkpoint.gguf is not None:
            method.checkpoint.gguf.release()  # of what was copied or arranged
        missing = sorted(set(self.parameters) ^ set(parameters))
        if missing:
            raise InputError(f"[train] parameters {missing[:3]} are given or wanted, but not both")

    def _compiled(self, state: Mapping[str, Array]) -> Program:
        graph, load = self.method.training(self.optimiser, accumulate=self.accumulate), self._load
        return self.backend.compile(graph, weights=load, state=state, sizes={}, threads=self.threads)

    @property
    def parameters(self) -> dict[str, Array]:
        """What is trained; on the cpu device as views that the next step writes to."""
        to_numpy = self.backend.to_numpy
        return {n: to_numpy(a) for n, a in self._program.state.items() if n[:2] not in _OTHERS}

    def step(self, batches: Sequence[Batch], lr: float) -> StepReport:
        """One step over all its micro-batches, weighted by their targets, as if they were one batch."""
        if len(batches) != 1 and not self.accumulate:
            raise InputError(f"[train] {len(batches)} micro-batches; this trainer does not accumulate")
        self.taken += 1
        targets = sum(batch.trained for batch in batches)
        tokens = sum(len(batch.ids) for batch in batches)
        if targets == 0:
            return StepReport(self.taken, 0.0, 0.0, tokens, 0, True)
        rates = self.optimiser.rates(lr, self.moves + 1)
        losses: list[float] = []
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1 and bool(np.isfinite(losses).all())
            out = self._program.run(self._inputs(batch, number, targets, rates, last))
            losses.append(float(self.backend.to_numpy(out["loss"])))
        peak, ratio, scale = (float(self.backend.to_numpy(out[n])) for n in ("peak", "ratio", "scale"))
        skipped = not scale > 0
        self.moves += not skipped
        return StepReport(self.taken, sum(losses) / targets, peak * ratio / targets, tokens, targets, skipped)

    def _inputs(
        self, batch: Batch, number: int, targets: int, rates: npt.NDArray[np.float32], last: bool
    ) -> dict[str, Any]:
        given: dict[str, Any] = self._arrays(batch) | {"tokens": np.float32(targets), "rates": rates}
        if self.accumulate:
            given |= {"keep": np.float32(number > 0), "apply": np.float32(last)}
        if self.method.lora is not None and self.method.lora.dropout:
            given["key"] = np.array([self.seed, (self.taken << 16) + number], np.int64)
        return given

    def _arrays(self, batch: Batch) -> dict[str, Any]:
        return dict(fitted(batch, self.backend).arrays())

    def evaluate(self, batches: Iterable[Batch]) -> tuple[float, int]:
        """(sum of losses, how many targets) with the parameters as they are now."""
        total, targets = 0.0, 0
        parameters = {n: a for n, a in self._program.state.items() if n[:2] not in _OTHERS}
        for batch in batches:
            if batch.trained:
                out = self._measure.run(self._arrays(batch) | parameters)
                total += float(self.backend.to_numpy(out["loss"]))
                targets += batch.trained
        return total, targets

    def memory(self, tokens: int) -> int:
        """Bytes of this process at most, while it takes steps of so many tokens at a time: what it holds now,
        moments, sums, temporaries, and weights read from a mapped file. 0 where the backend cannot tell."""
        reserve = getattr(self._program, "reserve", None)
        if reserve is None:
            return 0
        shapes = {f.name: (tokens,) for f in fields(Batch)} | {"rates": (3,), "key": (2,)}
        arena = reserve(dict.fromkeys(("tokens", "keep", "apply"), ()) | shapes)
        mapped = getattr(self._program, "mapped_bytes", 0)
        states = sum(a.nbytes for n, a in self._program.state.items() if n[:2] in ("m.", "v.", "g."))
        return resident() + int(states + arena + mapped)

    @cached_property
    def _measure(self) -> Program:
        graph = self.method.evaluation()
        return self.backend.compile(graph, weights=self._load, sizes={}, threads=self.threads)

    # --- checkpoints ---

    def arrays(self) -> dict[str, Array]:
        """Parameters and moments by name, as `parameters`."""
        return {n: self.backend.to_numpy(a) for n, a in self._program.state.items() if n[:2] != "g."}

    def facts(self) -> dict[str, int]:
        """What else a checkpoint has to keep."""
        return {"taken": self.taken, "moves": self.moves, "seed": self.seed}

    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint. Raises FileError, with nothing changed, if it is another run's."""
        mine = self.arrays()
        arrays = regrouped(arrays, {n: a.shape for n, a in mine.items()})
        for name in sorted(set(mine) ^ set(arrays)):
            raise FileError(f"[resume] {name!r} is in the checkpoint or in the run, but not in both")
        for name, array in arrays.items():
            if array.shape != mine[name].shape or array.dtype != mine[name].dtype:
                raise FileError(
                    f"[resume] {name!r} is {array.dtype} {array.shape}, this run has {mine[name].dtype}"
                    f" {mine[name].shape}"
                )
        taken, moves, seed = (
            arguments.integer(facts.get(n), f"[resume] {n}", 0, most)
            for n, most in (("taken", 2**47 - 1), ("moves", 2**47 - 1), ("seed", 2**63 - 1))
        )
        del mine, self._program  # what a program holds is its own: another one begins with the arrays
        self._program = self._compiled(arrays)
        self.taken, self.moves, self.seed = taken, moves, seed


def resident() -> int:
    """Bytes of this process in memory now."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
