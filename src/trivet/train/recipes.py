"""The recipes by name, and how a run of any of them goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trivet.errors import FileError
from trivet.train import checkpoint as checkpoints
from trivet.train import finetune, pretrain
from trivet.train.config import Finetune, Pretrain, Training, make
from trivet.train.events import Watch
from trivet.train.session import Run, Session

#: recipe -> its settings, and what makes a run of them ready
RECIPES: dict[str, tuple[type[Training], type[Session]]] = {
    "finetune": (Finetune, finetune.Session),
    "pretrain": (Pretrain, pretrain.Session),
}


def prepared(
    recipe: str,
    given: Mapping[str, Any],
    device: str = "auto",
    threads: int = 0,
    saved: checkpoints.Saved | None = None,
) -> Session:
    """A run of a recipe with named settings, made ready and checked."""
    settings, kind = RECIPES[recipe]
    return kind(make(settings, given), device, threads, saved)


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
    recipe = saved.facts.get("recipe")
    if recipe not in RECIPES:
        raise FileError(f"[resume] {latest} is of the recipe {recipe!r}; known: {', '.join(RECIPES)}")
    given = {**saved.facts.get("config", {}), "out": os.fspath(out)}
    return prepared(recipe, given, device, threads, saved)
