"""A run's log: `log.jsonl` in its folder, an object a line, with `event` and `time` (seconds since 1970).

A run that resumes drops the lines of steps that its checkpoint does not know, and goes on behind the rest.
One process at a time has a run's folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
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
ASIDE = f".{NAME}.partial"


@contextmanager
def run_log(folder: Path, step: int) -> Iterator[Watch]:
    """Makes a run's folder, has it for this process alone, and gives its log from behind `step` on."""
    with alone(folder):
        truncate(folder, step)
        with log_to(folder) as write:
            yield write


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Makes a run's folder, and has it for this process alone. Raises FileError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise FileError(f"[train] {folder}: {error.strerror}") from None
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno == errno.EWOULDBLOCK:
                    raise FileError(f"[train] {folder}: another process is at work there") from None
        yield
    finally:
        os.close(handle)  # ends with the process, however it ends


@contextmanager
def log_to(folder: Path) -> Iterator[Watch]:
    """A watcher that writes each event to the folder's log."""
    path = folder / NAME
    try:
        file = path.open("ab", buffering=0)
    except OSError as error:
        raise FileError(f"[log] {path}: {error.strerror}") from None

    def write(event: Event) -> None:
        line = json.dumps(_plain(event), allow_nan=False).encode() + b"\n"
        try:
            while line:
                line = line[file.write(line) :]
        except OSError as error:
            raise FileError(f"[log] {path}: {error.strerror}") from None

    with file:
        yield write


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
    """The log's objects; a last line that was cut short, and what is no event, is left out."""
    found = []
    for line in _content(folder / NAME).splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(line, parse_float=_finite, parse_constant=_finite)
            if isinstance(value, dict) and "event" in value and isinstance(value.get("step", 0), int):
                found.append(value)
    return found


def _finite(text: str) -> float | None:
    """A number of the log; None for what is none, as the log itself says it."""
    value = float(text)
    return value if math.isfinite(value) else None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise FileError(f"[log] {path}: {error.strerror}") from None


def truncate(folder: Path, step: int) -> None:
    """Drops what the log says of steps after `step`, all of it at step 0, and a line that was cut short."""
    path, aside = folder / NAME, folder / ASIDE
    with contextlib.suppress(OSError):
        aside.unlink()  # of a process that was killed
    kept = [line for line in read(folder) if step and line.get("step", 0) <= step]
    text = "".join(json.dumps(line) + "\n" for line in kept).encode()
    if text == _content(path):
        return
    try:
        aside.write_bytes(text)
        aside.replace(path)
    except OSError as error:
        raise FileError(f"[log] {path}: {error.strerror}") from None
