"""The moments of a parameter: one state each, `m.<name>` and `v.<name>`, or pages of whole rows, so that a
large matrix needs no single large piece of memory: `m.<name>@<first row>`. Both give equal bits, and a
checkpoint of either is one of the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def pages(shape: Sequence[int], most: int) -> list[tuple[int, int]]:
    """(first row, rows) of each page of at most `most` numbers, but of one row at least; 0: of any size.

    >>> pages((5, 100), 250), pages((5, 100), 0)
    ([(0, 2), (2, 2), (4, 1)], [(0, 5)])
    """
    rows = shape[0] if shape else 1
    at_once = max(most // max(math.prod(shape[1:]), 1), 1) if most else max(rows, 1)
    return [(first, min(at_once, rows - first)) for first in range(0, rows, at_once)] or [(0, rows)]


def page_name(kind: str, name: str, first: int, whole: bool) -> str:
    """What the state of a page is called; kind is "m" or "v"."""
    return f"{kind}.{name}" if whole else f"{kind}.{name}@{first}"


def regrouped(arrays: Mapping[str, Array], wanted: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Moments in pages as `wanted` has them; what does not fit stays as it is."""
    given, asked = _by_moment(arrays), _by_moment(wanted)
    out = dict(arrays)
    for moment in given.keys() & asked.keys():
        names, pieces = given[moment], asked[moment]
        found = [arrays[names[first]] for first in sorted(names)]
        if names.keys() == pieces.keys() or not _follow(found, names.keys()):
            continue
        whole = np.concatenate(found) if len(found) > 1 else found[0]
        for name in names.values():
            del out[name]
        for first, name in pieces.items():
            out[name] = whole if first < 0 else whole[first : first + wanted[name][0]]
    return out


def _follow(found: Sequence[Array], firsts: Iterable[int]) -> bool:
    """Whether pages are alike, and each begins where the one before it ends."""
    ends = np.cumsum([0, *(len(page) for page in found)]).tolist() if all(p.ndim for p in found) else []
    alike = len({(page.shape[1:], page.dtype) for page in found}) == 1
    return alike and ends[:-1] == [max(first, 0) for first in sorted(firsts)]


def _by_moment(names: Mapping[str, Any]) -> dict[str, dict[int, str]]:
    """Moment -> first row -> the page's name. A whole one begins at row -1: it is none of several."""
    found: dict[str, dict[int, str]] = {}
    for name in names:
        if name[:2] in ("m.", "v."):
            moment, at, first = name.rpartition("@")
            paged = at and first.isdecimal() and name[2:] not in names
            found.setdefault(moment if paged else name, {})[int(first) if paged else -1] = name
    return found
