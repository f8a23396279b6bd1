"""`Dataset`: the examples of one split, in two flat arrays; `load` makes them from a file.

Everything is read, checked and encoded before any time is spent on training. Four bytes and a bit a token
stay in memory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import arguments
from trivet.errors import FileError, InputError, ModelError, TemplateError, TokenizerError
from trivet.train.data.render import Example, Renderer
from trivet.train.data.rows import PIECE, Refused, Row, RowFile
from trivet.train.data.split import Index, Keys, Splits, keys

KEPT = 100  # refused rows and duplicates that a report names; it counts them all


@dataclass
class Dataset:
    """Examples of one split. `ids` and `trained` are those of all examples, one after the other; example i
    is [offsets[i], offsets[i + 1]) and comes from line `lines[i]`."""

    name: str
    ids: npt.NDArray[np.int32]
    trained: npt.NDArray[np.bool_]
    offsets: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]
    sha256: str  # of the file

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, i: int) -> Example:
        i = arguments.integer(i, "[data] example", 0, len(self) - 1)
        part = slice(self.offsets[i], self.offsets[i + 1])
        return Example(self.ids[part], self.trained[part])

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Positions that each example takes in a batch."""
        return np.diff(self.offsets) - 1

    @property
    def positions(self) -> int:
        """Positions of all examples."""
        return int(self.lengths.sum())

    @property
    def targets(self) -> int:
        """Positions that are trained."""
        return int(self.trained.sum())

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all examples: what another template, tokenizer, length or row would change."""
        hashed = hashlib.sha256()
        for array in (self.ids, self.trained, self.offsets):
            hashed.update(len(array).to_bytes(8, "little") + array.tobytes())
        return hashed.hexdigest()


@dataclass
class Report:
    """What became of a file's rows. Nothing is left out without a count here."""

    path: str
    format: str = ""
    rows: int = 0  # of the file, refused ones too
    examples: int = 0
    refused: int = 0
    untrained: int = 0  # rows with nothing to train on, left out
    cut: int = 0  # rows that did not fit the length
    cut_tokens: int = 0
    windowed: int = 0  # rows of text longer than that, in consecutive windows with nothing lost
    duplicates: int = 0  # rows equal to an earlier one; they are kept
    near_duplicates: int = 0  # the same but for case, space and punctuation
    spelled: int = 0  # rows that spell control tokens, kept as plain text
    changed: int = 0  # replies that the template changes
    unopened: int = 0  # replies that stand after something else than the model is given to reply to
    refusals: list[Refused] = field(default_factory=list)
    twins: list[tuple[int, int]] = field(default_factory=list)  # (line, the earlier line)
    left_out: list[int] = field(default_factory=list)  # lines of rows with nothing to train on

    def notes(self) -> list[str]:
        """One sentence for each thing that happened to rows."""
        said = (
            (self.refused, "refused"),
            (self.untrained, "left out, with nothing to train on"),
            (self.cut, f"cut at the length, {self.cut_tokens} tokens lost"),
            (self.windowed, "of text longer than the length, in windows, nothing lost"),
            (self.duplicates, "equal to an earlier one"),
            (self.near_duplicates, "equal to an earlier one but for case, space and punctuation"),
            (self.spelled, "with the text of control tokens, kept as plain text"),
        )
        notes = [f"{n} row{'s' * (n != 1)} {what}" for n, what in said if n]
        turns = (
            (self.changed, "changed by the template"),
            (self.unopened, "after another beginning than the template gives a model to reply to"),
        )
        return notes + [f"{n} repl{'ies' if n != 1 else 'y'} {what}" for n, what in turns if n]


@dataclass
class _Building:
    """A data set while rows come in."""

    ids: list[npt.NDArray[np.int32]] = field(default_factory=list)
    trained: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def add(self, example: Example, line: int) -> None:
        self.ids.append(example.ids)
        self.trained.append(example.trained)
        self.lines.append(line)

    def build(self, name: str, sha256: str) -> Dataset:
        sizes = np.array([len(ids) for ids in self.ids], np.int64)
        return Dataset(
            name,
            np.concatenate([np.empty(0, np.int32), *self.ids]),
            np.concatenate([np.empty(0, np.bool_), *self.trained]),
            np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]),
            np.array(self.lines, np.int64),
            sha256,
        )


@dataclass
class Loaded:
    """A file's data sets by split, what became of its rows, and what they are recognised by."""

    splits: dict[str, Dataset]
    report: Report
    index: Index


def load(
    path: str | os.PathLike[str],
    renderer: Renderer,
    *,
    format: str = "auto",
    columns: Mapping[str, str] | None = None,
    splits: Mapping[str, float] | None = None,
    seed: int = 0,
    skip_refused: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> Loaded:
    """Reads, checks and encodes a training file.

    format: "auto", "plain" or a key of rows.FORMATS. columns: the file's names of fields, such as
    {"prompt": "question"}. splits: fractions by name, by default {"train": 1}; `seed` draws them.
    skip_refused: go on without rows that cannot be used; else the first one is an error.
    `advance` is told how many more rows are done.

    Raises FileError for what the file holds, InputError for a wrong argument. A split with no example is
    an error, too."""
    parts = Splits({"train": 1.0} if splits is None else splits, seed)
    file = RowFile(Path(path), format, columns or {}, piece_of(renderer.length))
    report, index = Report(str(path)), Index(str(path))
    building = {name: _Building() for name in parts.fractions}
    for row in file:
        report.rows += 1
        used = row if isinstance(row, Refused) else _use(row, renderer, report)
        if isinstance(used, Refused):
            if not skip_refused:
                raise FileError(f"[data] {path} line {used.line}: {used.reason}")
            report.refused += 1
            _keep(report.refusals, used)
        else:
            assert isinstance(row, Row)
            target = building[parts.of(_seen(row, index, report))]
            for example in used:
                target.add(example, row.line)
        advance(1)
    made = {name: rows.build(name, file.sha256) for name, rows in building.items()}
    report.examples = sum(map(len, made.values()))
    for name, dataset in made.items():
        if not len(dataset) and not skip_refused:
            raise FileError(f"[data] {path} has {report.rows} rows, and no example for {name}")
    return Loaded(made, report, index)


def piece_of(length: int) -> int:
    """Characters of the pieces of a plain text: several windows, most of them full."""
    return max(PIECE, 8 * length)


def _use(row: Row, renderer: Renderer, report: Report) -> list[Example] | Refused:
    """The examples of a row, counted; or why it has none."""
    report.format = report.format or row.format
    try:
        made = renderer.render(row)
    except (InputError, ModelError, TemplateError, TokenizerError) as error:
        return Refused(row.line, str(error))
    report.cut += made.cut > 0
    report.cut_tokens += made.cut
    report.windowed += len(made.examples) > 1
    report.spelled += made.spelled
    report.changed += made.changed
    report.unopened += made.unopened
    if not made.examples:
        report.untrained += 1
        _keep(report.left_out, row.line)
    return made.examples


def _seen(row: Row, index: Index, report: Report) -> Keys:
    """The row's keys, with duplicates counted."""
    key = keys(row)
    exact, normal = index.add(key, row.line)
    if exact is not None or normal is not None:
        report.duplicates += exact is not None
        report.near_duplicates += exact is None
        _keep(report.twins, (row.line, exact or normal or 0))
    return key


def _keep(found: list[Any], item: Any) -> None:
    if len(found) < KEPT:
        found.append(item)
