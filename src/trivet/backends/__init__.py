"""The backends: one folder each, found by name, with the contract of `base.py`.

A folder's `__init__` defines `BACKEND`. Importing it must work everywhere: what is missing (a library, a
device) is reported by `BACKEND.unavailable()`.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from trivet.backends.base import Backend
from trivet.errors import DeviceUnavailable


@cache
def names() -> tuple[str, ...]:
    """The backends this installation knows, sorted.

    >>> "numpy" in names()
    True
    """
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.ispkg))


@cache
def find(name: str) -> Backend:
    """The backend of that folder, available or not; DeviceUnavailable if there is no such folder."""
    if name not in names():
        raise DeviceUnavailable(f"[backend] no backend {name!r}; known: {', '.join(names())}")
    backend: Backend = importlib.import_module(f"{__name__}.{name}").BACKEND
    return backend


def available() -> dict[str, str | None]:
    """Every backend, with None, or the reason why it cannot be used here."""
    return {name: find(name).unavailable() for name in names()}


def get(name: str) -> Backend:
    """The backend of that name, ready to use; DeviceUnavailable with the reason if it is not."""
    backend = find(name)
    if reason := backend.unavailable():
        raise DeviceUnavailable(f"[backend] {name} is not available: {reason}")
    return backend
