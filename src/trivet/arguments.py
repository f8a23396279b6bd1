"""Checks of what people pass: what comes back has the plain Python type, or InputError says why not.

A float that stands for a count, text that stands for ids, a set that has no order: NumPy and C would take
them and mean something else.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np

from trivet.errors import InputError


def integer(value: Any, what: str, least: int | None = None, most: int | None = None) -> int:
    """`value` as an int within bounds: any integer type but bool.

    >>> integer(np.int64(3), "[example] n", 1)
    3
    """
    number = _integer(value)
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        low = "" if least is None else f" from {least}"
        high = "" if most is None else f" to {most}"
        raise InputError(f"{what} is {_short(value)}; wanted an integer{low}{high}")
    return number


def integers(values: Any, what: str) -> list[int]:
    """A flat list of integers: from a list, a tuple, an array, any iterable with an order.

    >>> integers(np.arange(3), "[example] ids")
    [0, 1, 2]
    """
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu":
        listed: list[int] = values.tolist()
        return listed
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | bytearray | Set | Mapping):
        raise InputError(f"{what} is a {type(values).__name__}; wanted a flat list of integers")
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise InputError(f"{what} is an array of shape {values.shape}; wanted a flat list of integers")
    out = list(map(_integer, kept := list(values)))
    for i, number in enumerate(out):
        if number is None:
            raise InputError(f"{what}[{i}] is {_short(kept[i])}; wanted an integer")
    return [number for number in out if number is not None]


def text(value: Any, what: str) -> str:
    """`value`, which must be a str."""
    if not isinstance(value, str):
        raise InputError(f"{what} is a {type(value).__name__}; wanted a str")
    return value


def texts(value: Any, what: str) -> list[str]:
    """A list of str, from one or several."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Iterable) or isinstance(value, bytes | bytearray):
        raise InputError(f"{what} is a {type(value).__name__}; wanted a str, or a list of them")
    return [text(item, f"{what}[{i}]") for i, item in enumerate(value)]


def _integer(value: Any) -> int | None:
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
