"""The recipes by name, and how a run of any of them goes on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trivet.errors import FileError
from trivet.train import checkpoint as checkpoints
from trivet.train import finetune, pretrain
from trivet.train.config import Finetune, Pretrain, make
from trivet.train.events import Watch
from trivet.train.session import Run, Session


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
        raise FileError(f"[resume] {out} has no checkpoint: there is nothing to go on from")
    saved = checkpoints.load(latest)
    recipe, config = saved.facts.get("recipe"), {**saved.facts.get("config", {}), "out": os.fspath(out)}
    if recipe == "finetune":
        return finetune.Session(make(Finetune, config), device, threads, saved)
    if recipe == "pretrain":
        return pretrain.Session(make(Pretrain, config), device, threads, saved)
    raise FileError(f"[resume] {latest} is of the recipe {recipe!r}; known: finetune, pretrain")
