"""Which split a row is in, and what two sets of rows have in common.

A row's place is its content's hash: it does not change when other rows come, go or move, and two rows that
differ only in case, white space or punctuation are never on two sides.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field

from trivet.errors import FileError, InputError
from trivet.text.literal import strings
from trivet.train.data.rows import Row

NAMES = ("train", "validation", "test")
SHOWN = 5  # lines named in an error


def normalise(text: str) -> str:
    """NFKC, case folded, white space made one space, punctuation taken off except before a digit, where it is
    a sign or a point.

    >>> normalise("  Hello,  WORLD! It is -2.5. "), normalise("Ｈｅｌｌｏ world: it is -2.5")
    ('hello world it is -2.5', 'hello world it is -2.5')
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    nexts = folded[1:] + " "
    kept = (
        " " if unicodedata.category(c)[0] == "P" and not nexts[i].isdigit() else c
        for i, c in enumerate(folded)
    )
    return re.sub(r"\s+", " ", "".join(kept)).strip()


@dataclass(frozen=True, slots=True)
class Keys:
    """What a row is recognised by: hashes of its fields as they are, and normalised."""

    exact: bytes
    normal: bytes


def keys(row: Row) -> Keys:
    """The keys of a row."""
    normal = "\x1f".join(map(normalise, strings(row.fields)))
    data = normal.encode() if normal.strip("\x1f") else row.canonical  # nothing but punctuation
    return Keys(hashlib.sha256(row.canonical).digest(), hashlib.sha256(data).digest())


class Splits:
    """Fractions of a file's rows, by name: Splits({"train": 0.9, "validation": 0.1})."""

    def __init__(self, fractions: Mapping[str, float], seed: int = 0) -> None:
        for name, fraction in fractions.items():
            if name not in NAMES:
                raise InputError(f"[data] split {name!r}; wanted: {', '.join(NAMES)}")
            if not 0 <= fraction <= 1:  # NaN neither
                raise InputError(f"[data] split {name} is {fraction}; wanted a number from 0 to 1")
        if not math.isclose(sum(fractions.values()), 1, abs_tol=1e-9):
            raise InputError(f"[data] the splits add up to {sum(fractions.values()):g}; wanted 1")
        self.fractions = {name: fractions[name] for name in NAMES if fractions.get(name)}
        self.seed = seed

    def of(self, key: Keys) -> str:
        """The split of a row."""
        digest = hashlib.sha256(str(self.seed).encode() + b":" + key.normal).digest()
        at, edge = int.from_bytes(digest[:6], "big") / 2**48, 0.0
        for name, fraction in self.fractions.items():
            edge += fraction
            if at < edge:
                return name
        return list(self.fractions)[-1]


@dataclass
class Index:
    """The rows seen so far of one set: key -> line."""

    name: str
    exact: dict[bytes, int] = field(default_factory=dict)
    normal: dict[bytes, int] = field(default_factory=dict)

    def add(self, key: Keys, line: int) -> tuple[int | None, int | None]:
        """Adds a row; gives the line of an earlier one that is the same, exactly and normalised."""
        before = self.exact.get(key.exact), self.normal.get(key.normal)
        self.exact.setdefault(key.exact, line)
        self.normal.setdefault(key.normal, line)
        return before


@dataclass(frozen=True, slots=True)
class Overlap:
    """Rows that two sets share: pairs of lines, of those that are equal, and of those that are not but have
    the same normalised text."""

    first: str
    second: str
    exact: list[tuple[int, int]]
    normal: list[tuple[int, int]]

    def __bool__(self) -> bool:
        return bool(self.exact or self.normal)


def overlap(first: Index, second: Index) -> Overlap:
    """What two sets share, in the order of the second."""
    exact = [(first.exact[k], line) for k, line in second.exact.items() if k in first.exact]
    equal = {line for _, line in exact}
    normal = [(first.normal[k], line) for k, line in second.normal.items() if k in first.normal]
    return Overlap(first.name, second.name, exact, [pair for pair in normal if pair[1] not in equal])


def refuse_overlap(first: Index, second: Index) -> None:
    """Raises FileError if two sets share rows: what is trained on cannot be measured with."""
    found = overlap(first, second)
    if not found:
        return
    pairs = found.exact + found.normal
    lines = ", ".join(f"{a} = {b}" for a, b in pairs[:SHOWN])
    raise FileError(
        f"[data] {second.name} shares {len(pairs)} row{'s' * (len(pairs) > 1)} with {first.name}"
        f" ({len(found.exact)} equal, {len(found.normal)} but for case, space or punctuation;"
        f" lines {lines}{', ...' if len(pairs) > SHOWN else ''})"
    )
