"""The folder of a run: checkpoints that are there whole or not at all, whenever a process is killed.

    step-00000100/                          a whole checkpoint; at least eight digits
    best.json                               {"step": 100}: the one that pruning keeps
    .lock                                   locked by the process that changes the folder
    .step-00000100.partial-<process id>     being written; synced, then renamed
    .step-00000100.replaced-<process id>    the one before, while another of the same step takes its place
    .step-00000100.removed-<process id>     being removed

Names with a dot that nobody has locked are what a killed process left: whoever comes next removes them, or
puts a replaced checkpoint back if its place is empty.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from trivet import arguments
from trivet.errors import CheckpointError, FileError, InputError
from trivet.formats.common import written_aside

MAX_STEP = 2**53 - 1
_STEP = re.compile(r"step-(\d{8,16})", re.ASCII)
_LEFT = re.compile(r"\.(step-\d{8,16})\.(partial|replaced|removed)-\d+", re.ASCII)
_LEFT_RECORD = re.compile(r"\.best\.json\.[0-9a-f]{12}\.partial")
_BEST = "best.json"


def step_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(path: Path) -> int | None:
    """The step that a name stands for, if it is a checkpoint's."""
    match = _STEP.fullmatch(path.name)
    step = int(match[1]) if match else -1
    return step if 0 <= step <= MAX_STEP and step_name(step) == path.name else None


def run_folder(folder: str | os.PathLike[str]) -> Path:
    if not isinstance(folder, str | os.PathLike) or not str(folder) or "\0" in str(folder):
        raise InputError(f"[checkpoint] the folder is {str(folder)[:80]!r}; wanted a path")
    return Path(folder)


def checkpoints(folder: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints of a run by step, the last one last; none if the folder is not there."""
    folder = run_folder(folder)
    sweep(folder)
    return _steps(folder)


def _steps(folder: Path) -> list[Path]:
    found = [p for p in _listed(folder) if step_of(p) is not None and p.is_dir()]
    return sorted(found, key=lambda p: step_of(p) or 0)


def latest(folder: str | os.PathLike[str]) -> Path | None:
    """The last checkpoint of a run, None if it has none."""
    found = checkpoints(folder)
    return found[-1] if found else None


def best(folder: str | os.PathLike[str]) -> Path | None:
    """The checkpoint recorded as the best, None if none is, or if it was removed."""
    folder = run_folder(folder)
    try:
        with (folder / _BEST).open("rb") as file:
            text = file.read(1000)
        step = arguments.integer(json.loads(text)["step"], "step", 0, MAX_STEP)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"[checkpoint] {folder / _BEST}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f'[checkpoint] {folder / _BEST}: is not {{"step": number}}') from error
    path = folder / step_name(step)
    return path if path.is_dir() else None


def prune(folder: str | os.PathLike[str], keep_last: int, best_step: int | None = None) -> None:
    """Removes all checkpoints but the last `keep_last` and the best.

    best_step is recorded as the best from now on, if its checkpoint is there; None: as recorded before.
    Raises FileError if something cannot be removed; what stays is whole."""
    folder = run_folder(folder)
    keep_last = arguments.integer(keep_last, "[checkpoint] keep_last", 1)
    if best_step is not None:
        best_step = arguments.integer(best_step, "[checkpoint] best step", 0, MAX_STEP)
    try:
        with locked(folder):
            if best_step is not None and (folder / step_name(best_step)).is_dir():
                _record(folder, best_step)
            there = _steps(folder)
            kept = [*there[-keep_last:], best(folder)]
            for path in there:
                if path not in kept:
                    _discard(_moved(path, "removed"))  # renamed first: never half there under its name
    except OSError as error:
        raise FileError(f"[checkpoint] {folder}: cannot be pruned: {error.strerror}") from error


def _record(folder: Path, step: int) -> None:
    text = json.dumps({"step": step}).encode() + b"\n"
    with contextlib.suppress(OSError), (folder / _BEST).open("rb") as file:
        if file.read(1000) == text:
            return
    with written_aside(folder / _BEST, "checkpoint") as file:
        file.write(text)
    sync(folder)


@contextlib.contextmanager
def written_folder(target: Path) -> Iterator[Path]:
    """A folder that becomes `target` when the block ends, whole and synced, or, on any error, never existed.
    What was at `target` is there until then. Operating system errors are the caller's."""
    folder = target.parent
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync(folder.parent)
    with locked(folder) as alone:
        if alone:
            _sweep(folder)
        made, old = _aside(target, "partial"), None
        _discard(made)
        try:
            made.mkdir()
            yield made
            sync(made)
            if os.path.lexists(target):
                old = _moved(target, "replaced")
            made.rename(target)
            sync(folder)
        finally:
            _discard(made)
            if old is not None:
                _put_back(old, target)


@contextlib.contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Whether no other process changes the folder during the block. False, too, where it cannot be locked: a
    file system without locks, full, or read-only; the last two will be said by what is tried next."""
    handle = _lock(folder, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


def _lock(folder: Path, how: int) -> int | None:
    try:
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError:
        return None
    try:
        fcntl.flock(handle, how)  # ends with the process, however it ends
        return handle
    except OSError:
        os.close(handle)
        return None


def sweep(folder: Path) -> None:
    """Removes what killed processes left, if no process is at work and the folder may be written to."""
    if any(_LEFT.fullmatch(p.name) or _LEFT_RECORD.fullmatch(p.name) for p in _listed(folder)):
        with locked(folder, wait=False) as alone, contextlib.suppress(OSError):
            if alone:
                _sweep(folder)


def is_rest(name: str) -> bool:
    """Whether a killed process left it, and no checkpoint can come of it."""
    left = _LEFT.fullmatch(name)
    return name == ".lock" or bool((left and left[2] != "replaced") or _LEFT_RECORD.fullmatch(name))


def _sweep(folder: Path) -> None:
    for path in _listed(folder):
        left = _LEFT.fullmatch(path.name)
        if left and left[2] == "replaced":
            _put_back(path, folder / left[1])
        elif left or _LEFT_RECORD.fullmatch(path.name):
            _discard(path)


def _put_back(old: Path, target: Path) -> None:
    """A replaced checkpoint, whose successor is there, or never came to be."""
    if os.path.lexists(target):
        _discard(old)
    else:
        old.rename(target)


def _listed(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileError(f"[checkpoint] {folder}: {error.strerror}") from error


def _aside(path: Path, why: str) -> Path:
    return path.with_name(f".{path.name}.{why}-{os.getpid()}")


def _moved(path: Path, why: str) -> Path:
    aside = _aside(path, why)
    _discard(aside)
    path.rename(aside)
    return aside


def _discard(path: Path) -> None:
    """Removes a folder or what else has its name; what cannot be removed is left for the next sweep."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """A folder's names to the disk: until then a rename may be lost with the power."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems where folders need no sync
            raise
    finally:
        os.close(handle)
