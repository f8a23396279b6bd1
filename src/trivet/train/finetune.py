"""The recipe `finetune`: a model and a data file to an adapter, or to a whole tuned model.

run = tv.finetune("smollm2-135m", "orders.jsonl", out="orders", method="qlora")
run.result         # a PEFT folder: tv.load("smollm2-135m", adapter=run.result)
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import lora
from trivet.errors import FileError, InputError
from trivet.generate.model import Model, load
from trivet.models.checkpoint import Checkpoint
from trivet.train import base, hand_over
from trivet.train.config import Finetune, make
from trivet.train.data import Renderer
from trivet.train.events import Watch
from trivet.train.loop import Loop
from trivet.train.session import Run
from trivet.train.session import Session as Shared


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


class Session(Shared):
    """A model, and what of it is tuned."""

    config: Finetune
    recipe = "finetune"

    def prepare(self) -> None:
        self.model: Model = load(self.config.model, self.device, threads=self.threads)
        packed, c = base.is_packed(self.model.checkpoint), self.config
        method = c.method or ("qlora" if packed or c.base else "lora")
        on = c.base or ("file" if packed else "nf4") if method == "qlora" else ""
        self.config = replace(c, method=method, base=on)
        if on == "file" and not packed:
            raise InputError(f"[train] base is 'file', which wants a packed one; {c.model} holds floats")
        _refuse_idle(self.config)
        if on == "nf4":
            self.notes += base.nf4_notes(self.checkpoint, c.nf4_block)
        if self.config.method == "full" and self.model.checkpoint.gguf is None:
            raise InputError(
                f"[train] full wants a GGUF file, as it writes one; {self.config.model} is none:"
                f" `trivet convert {shlex.quote(str(self.config.model))} model.gguf` makes one"
            )
        if self.saved is not None and self.saved.facts.get("model") != self.model.checkpoint.sha256:
            raise FileError(f"[resume] {self.config.model} is not the model this run began with")

    def renderer(self) -> Renderer:
        c = self.config
        return Renderer(self.model, c.length or min(self.model.context, c.tokens), train_on=c.train_on)

    @property
    def name(self) -> str:
        return self.config.method

    @property
    def adapters(self) -> lora.Lora | None:
        return None if self.config.method == "full" else self.config.lora

    @cached_property
    def checkpoint(self) -> Checkpoint:
        whole, c = self.model.checkpoint, self.config
        if c.base == "nf4":
            return base.nf4(whole, c.dtype, c.nf4_block, c.nf4_double)
        return base.decoded(whole, c.dtype) if c.method == "lora" else whole

    def first(self, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, npt.NDArray[np.float32]]:
        if self.config.method == "full":
            return base.Values(self.checkpoint, tuple(shapes))
        return lora.initial(shapes, self.config.seed)

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "model": self.model.checkpoint.sha256}

    def hand_over(self, loop: Loop) -> Path:
        c, arrays = self.config, hand_over.parameters(loop)
        facts = {
            "recipe": "finetune",
            "method": c.method,
            "data": self.train.sha256,
            "steps": str(self.steps),
        }
        if c.base == "nf4":
            facts["nf4"] = f"blocks of {c.nf4_block}" + ", double-quantised" * c.nf4_double
        whole = self.model.checkpoint
        if c.method == "full":
            facts["parent"] = whole.sha256
            return hand_over.model(self.folder, arrays, whole, facts)
        return hand_over.adapter(self.folder, c.lora, arrays, whole, facts)


def _refuse_idle(c: Finetune) -> None:
    """Raises InputError for a setting that the run would not look at."""
    idle: tuple[str, ...] = ("rank", "alpha", "dropout", "rslora", "targets") if c.method == "full" else ()
    idle += ("nf4_block", "nf4_double") if c.base != "nf4" else ()
    how = f"{c.method} on the file's own blocks" if c.base == "file" else c.method
    for field in fields(c):
        value = getattr(c, field.name)
        if field.name in idle and value != field.default:
            raise InputError(f"[train] {field.name} is {value!r}, which {how} has no use for")
