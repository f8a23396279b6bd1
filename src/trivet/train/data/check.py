"""What training on files would mean: counts, what is masked, what is refused, what files share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, groupby
from typing import Any

import numpy as np

from trivet.text.tokenizer import Tokenizer
from trivet.train.data.dataset import Dataset, Loaded, load
from trivet.train.data.render import Example, Renderer
from trivet.train.data.split import Overlap, overlap


@dataclass(frozen=True, slots=True)
class Checked:
    """The files as they would be trained on, and the rows that two of them share."""

    files: list[Loaded]
    overlaps: list[Overlap]

    @property
    def clean(self) -> bool:
        """Nothing is refused, no two files share a row, and each has something to train on."""
        sound = all(not f.report.refused and f.report.examples for f in self.files)
        return sound and not self.overlaps


def check(
    paths: Sequence[str | os.PathLike[str]],
    renderer: Renderer,
    *,
    format: str = "auto",
    columns: Mapping[str, str] | None = None,
) -> Checked:
    """Reads files as `load` does, to the end whatever they hold. Raises FileError only for one that cannot
    be read at all."""
    files = [load(path, renderer, format=format, columns=columns, skip_refused=True) for path in paths]
    shared = [overlap(a.index, b.index) for a, b in combinations(files, 2)]
    return Checked(files, [found for found in shared if found])


def plain(checked: Checked) -> dict[str, Any]:
    """All of it as plain data."""
    return {
        "clean": checked.clean,
        "files": [_file(loaded) for loaded in checked.files],
        "overlaps": [asdict(found) for found in checked.overlaps],
    }


def counts(dataset: Dataset) -> dict[str, int | float]:
    """Tokens of the examples: the smallest, the median, the largest, all; and how many are trained."""
    sizes = np.diff(dataset.offsets)
    if not len(sizes):
        return {"min": 0, "median": 0, "max": 0, "total": 0, "trained": 0}
    return {
        "min": int(sizes.min()),
        "median": float(np.median(sizes)),
        "max": int(sizes.max()),
        "total": int(sizes.sum()),
        "trained": dataset.targets,
    }


def pieces(example: Example, tokenizer: Tokenizer) -> list[tuple[str, bool]]:
    """The text of an example in runs, each with whether it is trained."""
    runs = groupby(zip(example.trained.tolist(), example.ids.tolist(), strict=True), key=lambda pair: pair[0])
    return [
        (b"".join(tokenizer.token_bytes(id) for _, id in run).decode("utf-8", "replace"), trained)
        for trained, run in runs
    ]


def _file(loaded: Loaded) -> dict[str, Any]:
    dataset = loaded.splits["train"]
    return {**asdict(loaded.report), "tokens": counts(dataset), "sha256": dataset.sha256}
