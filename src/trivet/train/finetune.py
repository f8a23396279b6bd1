"""The recipe `finetune`: a model and a data file to an adapter, or to a whole tuned model.

run = tv.finetune("smollm2-135m", "orders.jsonl", out="orders", method="qlora")
run.adapter        # a PEFT folder: tv.load("smollm2-135m", adapter=run.adapter)
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trivet import lora, models, runtime
from trivet.errors import FileError, InputError
from trivet.generate.model import Model, load
from trivet.models.checkpoint import Checkpoint
from trivet.train import base, curve, hand_over
from trivet.train import checkpoint as checkpoints
from trivet.train.config import Finetune, as_dict, make
from trivet.train.data import Batch, Batches, Dataset, Loaded, Position, Renderer, refuse_overlap
from trivet.train.data import load as load_data
from trivet.train.events import Evaluated, Event, Note, Planned, Stepped, Watch
from trivet.train.log import log_to, truncate
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


def finetune(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    watch: Watch | Sequence[Watch] = (),
    device: str = "auto",
    threads: int = 0,
    **settings: Any,
) -> Run:
    """Tunes a model on a data file, and writes an adapter or a model into the folder `out`.

    settings: those of `trivet.train.config.Finetune`: method, epochs, lr, rank, ...
    watch: called with each event (trivet.train.events), in order.
    Raises InputError for a setting, FileError for a file, before any time is spent."""
    given = {"model": os.fspath(model), "data": os.fspath(data), "out": os.fspath(out), **settings}
    return Session(make(Finetune, given), device, threads).run(watch)


def resume(
    out: str | os.PathLike[str],
    *,
    watch: Watch | Sequence[Watch] = (),
    device: str = "auto",
    threads: int = 0,
) -> Run:
    """Goes on with a run that was stopped, from its latest checkpoint and with its own settings."""
    return reopen(out, device, threads).run(watch)


def reopen(out: str | os.PathLike[str], device: str = "auto", threads: int = 0) -> Session:
    """The run in a folder, as its latest checkpoint left it."""
    latest = checkpoints.latest(Path(out))
    if latest is None:
        raise FileError(f"[resume] {out} has no checkpoint")
    saved = checkpoints.load(latest)
    config = make(Finetune, {**saved.facts["config"], "out": os.fspath(out)})
    return Session(config, device, threads, saved)


class Session:
    """Everything a run needs, made and checked before its first step."""

    def __init__(
        self, config: Finetune, device: str, threads: int, saved: checkpoints.Saved | None = None
    ) -> None:
        self.saved, self.threads = saved, threads
        self.folder = Path(config.out)
        if saved is None and self.folder.exists() and any(self.folder.iterdir()):
            raise InputError(f"[train] {self.folder} is not empty; resume the run there, or write elsewhere")
        self.model: Model = load(config.model, device, threads=threads)
        packed = base.is_packed(self.model.checkpoint)
        self.config = replace(config, method=config.method or ("qlora" if packed else "lora"))
        if self.config.method == "qlora" and not packed:
            raise InputError(f"[train] qlora wants a packed model; {config.model} holds floats: use lora")
        self.notes: list[str] = []
        self.train, self.held = self._data()
        c = self.config
        self.batches = Batches(
            self.train, c.tokens, rows=c.rows or None, micro=1 if c.rows else c.micro, seed=c.seed
        )
        self.steps = c.steps or self.batches.total(c.epochs)

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
        length = c.length or min(self.model.context, c.tokens)
        loaded = load_data(
            path,
            Renderer(self.model, length, train_on=c.train_on),
            format=c.format,
            columns=c.columns,
            splits=splits,
            seed=c.seed,
            skip_refused=c.skip_refused,
        )
        self.notes += [f"{path}: {note}" for note in loaded.report.notes()]
        return loaded

    @cached_property
    def held_batches(self) -> list[Batch]:
        if self.held is None:
            return []
        # no larger than those of training, so that measuring takes no more memory
        tokens = max(max(self._positions()), int(self.held.lengths.max()))
        batches = Batches(self.held, tokens, shuffle=False)
        return [batch for _, step in batches.walk(1) for batch in step]

    # --- what is trained ---

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The weights the run stands on."""
        whole = self.model.checkpoint
        return base.decoded(whole, self.config.dtype) if self.config.method == "lora" else whole

    @cached_property
    def method(self) -> Method:
        full = self.config.method == "full"
        module = models.by_architecture(self.checkpoint.architecture)
        c = self.config
        again = c.checkpointing == "block"
        return Method(module, self.checkpoint, None if full else c.lora, c.dtype, again)

    @cached_property
    def trainer(self) -> Trainer:
        c = self.config
        shapes = self.method.shapes()
        first = (
            base.Values(self.checkpoint, tuple(shapes))
            if c.method == "full"
            else lora.initial(shapes, c.seed)
        )
        accumulate = c.micro > 1 or (c.rows > 0 and _most(self.train, c.rows) > c.tokens)
        backend = runtime.backend(self.model.device)
        return Trainer(
            self.method, backend, first, c.optimiser, accumulate=accumulate, seed=c.seed, threads=self.threads
        )

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of the whole run."""
        return {
            "recipe": "finetune",
            "config": as_dict(self.config),
            "model": self.model.checkpoint.sha256,
        }

    # --- the run ---

    def planned(self, *, measure: bool = False) -> Planned:
        """What there is to do; with `measure`, how much memory and time it will take, too."""
        shapes = self.method.shapes().values()
        most = max(self._positions())
        memory = self.trainer.memory(most) if measure else 0
        seconds = self._pace() * self.steps if measure else 0.0
        return Planned(
            method=self.config.method,
            parameters=sum(_size(s) for s in shapes),
            of=sum(_size(e.shape) for e in self.checkpoint.tensors.values()),
            steps=self.steps,
            tokens=self.train.positions,
            targets=self.train.targets,
            examples=len(self.train),
            validation=len(self.held) if self.held else 0,
            resumed=self.saved.step if self.saved else 0,
            memory=memory,
            seconds=seconds,
        )

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
        facts = self.facts()
        if self.saved is not None and self.saved.facts.get("model") != facts["model"]:
            raise FileError(f"[resume] {self.config.model} is not the model this run began with")
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
        self.folder.mkdir(parents=True, exist_ok=True)
        truncate(self.folder, loop.trainer.taken)
        with log_to(self.folder) as log:
            loop.watchers.append(log)
            loop.tell(self.planned())
            for note in self.notes:
                loop.tell(Note(note))
            run.finished = loop.run()
            if run.finished:
                run.result = self._hand_over(loop)
            run.curve = curve.draw(self.folder)
        run.steps, run.seconds = loop.trainer.taken, time.perf_counter() - began
        return run

    def _hand_over(self, loop: Loop) -> Path:
        c, arrays = self.config, hand_over.parameters(loop)
        facts = {
            "recipe": "finetune",
            "method": c.method,
            "data": self.train.sha256,
            "steps": str(self.steps),
        }
        whole = self.model.checkpoint
        if c.method == "full":
            facts["parent"] = whole.sha256
            return hand_over.model(self.folder, arrays, whole, facts)
        return hand_over.adapter(self.folder, c.lora, arrays, whole, facts)


def _most(data: Dataset, rows: int) -> int:
    """Positions of the longest examples together."""
    return int(np.sort(data.lengths)[-rows:].sum())


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
