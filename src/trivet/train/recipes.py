"""The recipes by name, and how a run of any of them goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trivet.errors import FileError, InputError
from trivet.train import checkpoint as checkpoints
from trivet.train import facts, finetune, pretrain
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
) -> Session:
    """A run of a recipe with named settings, made ready and checked."""
    settings, kind = RECIPES[recipe]
    return kind(make(settings, given), device, threads)


def resume(
    out: str | os.PathLike[str],
    *,
    watch: Watch | Sequence[Watch] = (),
    device: str = "auto",
    threads: int = 0,
    mesh: str | None = None,
) -> Run:
    """Goes on with a run that was stopped, from its latest checkpoint and with its own settings, on its mesh
    or on another one."""
    return reopen(out, device, threads, mesh).run(watch)


def reopen(
    out: str | os.PathLike[str], device: str = "auto", threads: int = 0, mesh: str | None = None
) -> Session:
    """The run in a folder, as its latest checkpoint left it."""
    latest = checkpoints.latest(Path(out))
    if latest is None:
        raise FileError(f"[resume] {out} has no checkpoint: there is nothing to go on from")
    saved = checkpoints.load(latest)
    facts.check(saved.facts, saved.step, RECIPES, str(latest))
    settings, kind = RECIPES[saved.facts["recipe"]]
    try:
        given = {**saved.facts["config"], "out": os.fspath(out)}
        config = make(settings, given if mesh is None else {**given, "mesh": mesh})
    except InputError as error:
        raise FileError(f"[resume] {latest}: {error}") from None
    return kind(config, device, threads, saved)
