"""The packages that backends need, looked up without importing them, and what keeps them from starting."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import metadata

from trivet.errors import DeviceError


def version(package: str) -> str | None:
    """The installed version of a package; None if it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with.

    >>> numbers("0.10.2"), numbers("0.11rc1"), numbers("1.dev3+cuda")
    ((0, 10, 2), (0, 11), (1,))
    """
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


_homes: dict[str, int] = {}  # library -> the process that it was first used in


def unforked(library: str) -> None:
    """Raises DeviceError in a process that was forked from the one that the library began in: its threads are
    not there, and a call would wait for them for ever."""
    if _homes.setdefault(library, os.getpid()) != os.getpid():
        raise DeviceError(
            f"[device] {library} was in use before this process was forked, and does not go along: start"
            " processes by spawn, not by fork"
        )


def failure(start: Callable[[], object]) -> str | None:
    """None if a library starts, else what it raised, in a line. It may be anything: a shared library that
    does not load, a version that does not fit another, a word in the environment that it does not know."""
    try:
        start()
    except Exception as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return None
