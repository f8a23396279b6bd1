"""What every recipe shares: `Session`, a run made ready and checked before its first step, and `Run`, what
came of it."""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import models, runtime
from trivet.errors import FileError, InputError
from trivet.lora import Lora
from trivet.models.checkpoint import Checkpoint
from trivet.train import checkpoint as checkpoints
from trivet.train import curve
from trivet.train.checkpoint_folder import is_rest
from trivet.train.config import Training, as_dict
from trivet.train.data import Batch, Batches, Dataset, Loaded, Position, Renderer, refuse_overlap
from trivet.train.data import load as load_data
from trivet.train.events import Evaluated, Event, Note, Planned, Stepped, Watch
from trivet.train.log import ASIDE, NAME, run_log
from trivet.train.loop import Loop
from trivet.train.step import Method
from trivet.train.trainer import Trainer


@dataclass(slots=True)
class Run:
    """What came of a run.

    result      the adapter's folder, or the tuned model's file; None where the run was stopped before its end
    curve       the picture of the losses
    losses      (step, loss) of the steps of this call
    validation  (step, loss) of its measurements"""

    folder: Path
    steps: int = 0
    finished: bool = False
    result: Path | None = None
    curve: Path | None = None
    losses: list[tuple[int, float]] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def watch(self, event: Event) -> None:
        if isinstance(event, Stepped):
            self.steps = event.report.step
            self.losses.append((event.report.step, event.report.loss))
        elif isinstance(event, Evaluated):
            self.validation.append((event.step, event.loss))
        elif isinstance(event, Note):
            self.notes.append(event.text)


class Session(ABC):
    """Everything a run needs. A recipe says what is trained, from what, and what is handed over."""

    config: Training
    recipe: str

    def __init__(
        self, config: Training, device: str, threads: int, saved: checkpoints.Saved | None = None
    ) -> None:
        self.config, self.saved, self.threads = config, saved, threads
        self.device = runtime.resolve(device)
        self.backend = runtime.backend(self.device, config.mesh)
        self.folder = Path(config.out)
        _writable(self.folder, fresh=saved is None)
        self.notes: list[str] = []
        self.prepare()
        self.train, self.held = self._data()
        c = self.config
        self.batches = Batches(
            self.train, c.tokens, rows=c.rows or None, micro=1 if c.rows else c.micro, seed=c.seed
        )
        self.steps = c.steps or self.batches.total(c.epochs)
        if c.warmup > self.steps:
            self.notes.append(f"the learning rate rises over all {self.steps} steps: warmup is {c.warmup}")
        if saved is not None:
            self._recognise(saved)

    # --- what a recipe says ---

    @abstractmethod
    def prepare(self) -> None:
        """Opens the model, or whatever else the data is rendered for."""

    @abstractmethod
    def renderer(self) -> Renderer:
        """What makes examples of rows."""

    @property
    @abstractmethod
    def checkpoint(self) -> Checkpoint:
        """The weights the run stands on."""

    @abstractmethod
    def first(self, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, npt.NDArray[np.float32]]:
        """First values of what is trained."""

    @abstractmethod
    def hand_over(self, loop: Loop) -> Path:
        """Writes the result."""

    @property
    def name(self) -> str:
        """What to call the way it is trained."""
        return self.recipe

    @property
    def adapters(self) -> Lora | None:
        """What is adapted, if not everything is trained."""
        return None

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of the whole run; its files by paths that hold in any folder."""
        config = as_dict(self.config)
        files = {n: config.get(n) for n in ("data", "validation", "model")}
        found = {n: os.path.abspath(path) for n, path in files.items() if path and Path(path).exists()}
        return {"recipe": self.recipe, "config": config | found, "device": self.device}

    def _recognise(self, saved: checkpoints.Saved) -> None:
        """Raises FileError if the data are not those of the checkpoint, or the step none of this run."""
        if (device := saved.facts.get("device", self.device)) != self.device:
            self.notes.append(
                f"the run began on {device:.40} and goes on on {self.device}: its bits may differ"
            )
        at, rows = self.batches.resume(saved.facts["data"]), self.batches.rows
        if saved.step > self.steps:
            raise FileError(f"[resume] the checkpoint is of step {saved.step}; the run has {self.steps}")
        if rows and at.epoch * self.batches.steps(0) + at.step != saved.step:
            raise FileError(
                f"[resume] data.step is {at.step} of epoch {at.epoch}; wanted where step {saved.step} ends"
            )
        if saved.facts.get("validation") != self._held_print():
            raise FileError(
                "[resume] the validation examples were changed: the run cannot go on where it stopped"
            )

    def _held_print(self) -> str | None:
        return self.held.fingerprint if self.held is not None else None

    # --- data ---

    def _data(self) -> tuple[Dataset, Dataset | None]:
        c = self.config
        splits = {"train": 1 - c.holdout, "validation": c.holdout} if c.holdout else {"train": 1.0}
        loaded = self._load(c.data, splits)
        if not c.validation:
            return loaded.splits["train"], loaded.splits.get("validation")
        held = self._load(c.validation, {"validation": 1.0})
        refuse_overlap(loaded.index, held.index)
        return loaded.splits["train"], held.splits["validation"]

    def _load(self, path: str, splits: dict[str, float]) -> Loaded:
        c = self.config
        loaded = load_data(
            path,
            self.renderer(),
            format=c.format,
            columns=c.columns,
            splits=splits,
            seed=c.seed,
            skip_refused=c.skip_refused,
        )
        for name, part in loaded.splits.items():
            if not len(part):
                raise FileError(f"[data] {path} has {loaded.report.rows} rows, and no example for {name}")
        self.notes += [f"{path}: {note}" for note in loaded.report.notes()]
        return loaded

    @cached_property
    def held_batches(self) -> list[Batch]:
        if self.held is None:
            return []
        # no larger than those of training, so that measuring takes no more memory
        tokens = max(max(self._positions), int(self.held.lengths.max()))
        batches = Batches(self.held, tokens, shuffle=False)
        return [batch for _, step in batches.walk(1) for batch in step]

    # --- what is trained ---

    @cached_property
    def method(self) -> Method:
        module = models.by_architecture(self.checkpoint.architecture)
        c = self.config
        return Method(module, self.checkpoint, self.adapters, c.dtype, c.checkpointing == "block")

    @cached_property
    def trainer(self) -> Trainer:
        c = self.config
        first = self.first(self.method.shapes())
        accumulate = c.micro > 1 or (c.rows > 0 and _most(self.train, c.rows) > c.tokens)
        return Trainer(
            self.method,
            self.backend,
            first,
            c.optimiser,
            accumulate=accumulate,
            seed=c.seed,
            threads=self.threads,
        )

    # --- the run ---

    def planned(self, *, measure: bool = False) -> Planned:
        """What there is to do; with `measure`, how much memory and time it will take, too."""
        memory = self.trainer.memory(max(self._positions)) if measure else 0
        seconds = self._pace() * self.steps if measure else 0.0
        return Planned(
            method=self.name,
            parameters=sum(a.size for a in self.trainer.parameters.values()),
            of=sum(math.prod(e.shape) for e in self.checkpoint.tensors.values()),
            steps=self.steps,
            tokens=self.train.positions,
            targets=self.train.targets,
            examples=len(self.train),
            validation=len(self.held) if self.held else 0,
            resumed=self.saved.step if self.saved else 0,
            memory=memory,
            seconds=seconds,
        )

    @cached_property
    def _positions(self) -> list[int]:
        """Positions of the micro-batches of the first epoch."""
        lengths = self.train.lengths
        return [
            int(lengths[members].sum())
            for step in range(self.batches.steps(0))
            for members in self.batches.members(Position(0, step))
        ]

    def _pace(self) -> float:
        """Seconds of a step: the second of two at a learning rate of 0; the first lays out memory."""
        batches, began = self.batches.step(Position()), 0.0
        for _ in range(2):
            began = time.perf_counter()
            self.trainer.step(batches, 0.0)
        return time.perf_counter() - began

    def run(self, watch: Watch | Sequence[Watch] = ()) -> Run:
        began = time.perf_counter()
        facts = {**self.facts(), "validation": self._held_print()}
        run = Run(self.folder)
        c = self.config
        loop = Loop(
            self.trainer,
            self.batches,
            c.over(self.steps),
            self.folder,
            c.pace,
            facts,
            self.held_batches,
            [run.watch, *([watch] if callable(watch) else watch)],
        )
        if self.saved is not None:
            loop.resume(self.saved)
        with run_log(self.folder, loop.trainer.taken) as log:
            loop.watchers.append(log)
            loop.tell(self.planned())
            for note in self.notes:
                loop.tell(Note(note))
            run.finished = loop.run()
            if run.finished:
                run.result = self.hand_over(loop)
            run.curve = curve.draw(self.folder)
        run.steps, run.seconds = loop.trainer.taken, time.perf_counter() - began
        return run


def _writable(folder: Path, *, fresh: bool) -> None:
    """Raises InputError or FileError for a folder that a run cannot write to; makes nothing."""
    try:
        there = folder
        while not there.exists():
            there = there.parent
        if not there.is_dir():
            raise FileError(f"[train] {there} is a file; wanted a folder to write to")
        if not os.access(there, os.W_OK | os.X_OK):
            raise FileError(f"[train] {there} may not be written to")
        for name, folders in (("adapter", True), ("model.gguf", False), (curve.NAME, False), (NAME, False)):
            if (folder / name).exists() and (folder / name).is_dir() != folders:
                raise FileError(
                    f"[train] {folder / name} is a {'file' if folders else 'folder'}: the run writes a"
                    f" {'folder' if folders else 'file'} there"
                )
        # what a run leaves that was killed before its first checkpoint is in nobody's way
        there_now = {p.name for p in folder.iterdir()} if folder.exists() else set()
        if fresh and not all(n in (NAME, ASIDE) or is_rest(n) for n in there_now):
            raise InputError(f"[train] {folder} is not empty; resume the run there, or write elsewhere")
    except OSError as error:
        raise FileError(f"[train] {folder}: {error.strerror}") from None


def _most(data: Dataset, rows: int) -> int:
    """Positions of the longest examples together."""
    return int(np.sort(data.lengths)[-rows:].sum())
