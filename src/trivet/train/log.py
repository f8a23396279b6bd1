"""A run's log: `log.jsonl` in its folder, an object a line, with `event` and `time` (seconds since 1970).

A run that resumes drops the lines of steps that its checkpoint does not know, and goes on behind the rest.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trivet.errors import FileError
from trivet.train.events import Event, Stepped, Watch

NAME = "log.jsonl"


@contextmanager
def log_to(folder: Path) -> Iterator[Watch]:
    """A watcher that writes each event to the folder's log."""
    try:
        with (folder / NAME).open("a", encoding="utf-8") as file:

            def write(event: Event) -> None:
                file.write(json.dumps(_plain(event), allow_nan=False) + "\n")
                file.flush()

            yield write
    except OSError as error:
        raise FileError(f"[log] {folder / NAME}: {error.strerror}") from None


def _plain(event: Event) -> dict[str, Any]:
    values = asdict(event)
    if isinstance(event, Stepped):
        values = {**values.pop("report"), **values}
    clean = {k: _number(v) for k, v in values.items()}
    return {"event": type(event).__name__.lower(), "time": round(time.time(), 3), **clean}


def _number(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def read(folder: Path) -> list[dict[str, Any]]:
    """The log's objects; a last line that was cut short is left out."""
    path = folder / NAME
    if not path.exists():
        return []
    found = []
    for line in path.read_text("utf-8", errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def truncate(folder: Path, step: int) -> None:
    """Drops what the log says of steps after `step`."""
    lines = read(folder)
    kept = [line for line in lines if line.get("step", 0) <= step]
    if len(kept) == len(lines) and lines:
        return
    if lines or (folder / NAME).exists():
        aside = folder / f".{NAME}.partial"
        aside.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
        aside.replace(folder / NAME)
