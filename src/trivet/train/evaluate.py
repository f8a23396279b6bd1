"""Measuring a model on rows: loss and perplexity, exact answers, the likeliest of several choices.

loss      the mean negative log likelihood of all trained tokens, natural log, each counted once
exact     the share of rows whose answer, generated at temperature 0, is the row's but for space around it
choice    the share of rows {"prompt", "choices", "answer"} whose right choice has the least mean loss a byte
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet.errors import FileError, InputError, NonFiniteError
from trivet.formats.common import read_text
from trivet.generate.adapted import adapted
from trivet.generate.model import Model
from trivet.graph import Graph
from trivet.nn.attention import packed
from trivet.train.data import UNTRAINED, Batch, Batches, Dataset, Refused, Row, RowFile
from trivet.train.step import fitted, losses, token_inputs

TOKENS = 2048  # of a batch, at most, unless an example is longer
KEPT = 20  # wrong answers that a result shows

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Loss:
    """Over all trained tokens of a data set."""

    mean: float
    targets: int
    examples: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.mean) if self.mean < 700 else math.inf


@dataclass(slots=True)
class Answers:
    """How many of the rows were right, and some that were not: (line, wanted, given)."""

    right: int = 0
    rows: int = 0
    wrong: list[tuple[int, str, str]] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.right / self.rows if self.rows else math.nan

    def add(self, line: int, wanted: str, given: str) -> None:
        self.rows += 1
        self.right += wanted == given
        if wanted != given and len(self.wrong) < KEPT:
            self.wrong.append((line, wanted, given))


class Measure:
    """The losses of batches by a model as it is, its adapters in use included. Raises NonFiniteError."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.backend = model.backend
        given = token_inputs()
        logits = model.definition(given["ids"], given["positions"], packed(given["starts"]))
        added = adapted(model.adapters)
        whole = added.graph(Graph({"logits": logits})).outputs["logits"]
        load = model.checkpoint.load
        self.program = self.backend.compile(
            Graph({"losses": losses(whole, given["targets"])}),
            weights=lambda name: added.arrays[name] if name in added.arrays else load(name),
            sizes={},
        )

    def losses(self, batch: Batch) -> npt.NDArray[np.float64]:
        """The loss of each position, 0 where nothing is trained."""
        found = self.program.run(fitted(batch, self.backend).arrays())["losses"]
        out = np.asarray(self.backend.to_numpy(found)[: len(batch.ids)], np.float64)
        if not np.isfinite(out).all():
            raise NonFiniteError(
                "[eval] a loss is infinity or NaN: weights of the model, or of its adapter, are broken"
            )
        return out


def loss(model: Model, data: Dataset, advance: Advance = lambda _: None) -> Loss:
    """The mean loss over every trained token of a data set."""
    if not data.targets:
        raise InputError(f"[eval] {data.name} has nothing to measure")
    measure, total = Measure(model), 0.0
    batches = Batches(data, max(TOKENS, int(data.lengths.max())), shuffle=False)
    for _, step in batches.walk(1):
        for batch in step:
            total += float(measure.losses(batch).sum())
            advance(batch.trained)
    return Loss(total / data.targets, data.targets, len(data))


def exact(
    model: Model, path: Path, *, columns: Mapping[str, str] | None = None, max_tokens: int = 256,
    advance: Advance = lambda _: None,
) -> Answers:  # fmt: skip
    """Answers each row's last turn, and compares. Rows are messages, prompt/completion or
    instruction/output."""
    found = Answers()
    asked = [(row, *_asked(model, row)) for row in _rows(RowFile(path, columns=columns or {}))]
    for row, prompt, _ in asked:  # before any time is spent
        if len(prompt) >= model.context:
            raise FileError(
                f"[eval] {path} line {row.line}: a prompt of {len(prompt)} tokens leaves no room in a context"
                f" of {model.context}"
            )
    for row, prompt, wanted in asked:
        made = model.generate(prompt, max_tokens=max_tokens, temperature=0)
        found.add(row.line, wanted.strip(), made.text.strip())
        advance(1)
    return _some(found, path)


def _rows(file: RowFile) -> Iterator[Row]:
    for row in file:
        if isinstance(row, Refused):
            raise FileError(f"[eval] {file.path} line {row.line}: {row.reason}")
        yield row


def _asked(model: Model, row: Row) -> tuple[list[int], str]:
    """The ids of a row's prompt, and the answer that is wanted."""
    fields = row.fields
    if row.format == "messages":
        *before, last = fields["messages"]
        if last["role"] != "assistant" or not before:
            raise FileError(f"[eval] line {row.line}: the last message is not the assistant's answer")
        return model.encode_chat(before), str(last["content"])
    if row.format == "completion":
        return model.encode_prompt(fields["prompt"]), str(fields["completion"])
    if row.format == "instruction":
        asked = "\n\n".join(filter(None, (fields["instruction"], fields.get("input", ""))))
        return model.encode_chat([{"role": "user", "content": asked}]), str(fields["output"])
    raise FileError(f"[eval] line {row.line}: a row of {row.format} asks nothing")


def choice(model: Model, path: Path, *, advance: Advance = lambda _: None) -> Answers:
    """Takes the likeliest choice of each row: {"prompt": text, "choices": [texts], "answer": index or text}.
    Lengths are evened out by counting loss per byte of the choice."""
    measure, found = Measure(model), Answers()
    for line, prompt, choices, answer in list(_questions(path)):  # all checked before any time is spent
        scores = [_score(measure, prompt, text) for text in choices]
        found.add(line, choices[answer], choices[int(np.argmin(scores))])
        advance(1)
    return _some(found, path)


def _some(found: Answers, path: Path) -> Answers:
    if not found.rows:
        raise FileError(f"[eval] {path} has no rows")
    return found


def _questions(path: Path) -> Iterator[tuple[int, str, list[str], int]]:
    lines = read_text("eval", path).removeprefix("\ufeff").split("\n")  # splitlines would split JSON strings
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FileError(f"[eval] {path} line {number}: invalid JSON: {error}") from None
        yield number, *_question(path, number, row)


def _question(path: Path, line: int, row: Any) -> tuple[str, list[str], int]:
    fits = (
        isinstance(row, dict) and isinstance(row.get("prompt"), str) and isinstance(row.get("choices"), list)
    )
    if fits and not row["prompt"]:
        raise FileError(f'[eval] {path} line {line}: "prompt" is empty; the choices follow nothing')
    if not fits or len(row["choices"]) < 2 or not all(isinstance(c, str) and c for c in row["choices"]):
        raise FileError(
            f'[eval] {path} line {line}: wanted "prompt", a text, and "choices", two texts or more'
        )
    choices, answer = row["choices"], row.get("answer")
    index = choices.index(answer) if answer in choices else answer
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(choices):
        raise FileError(
            f'[eval] {path} line {line}: "answer" is {answer!r:.50}; wanted a choice, or its index'
        )
    return row["prompt"], choices, index


def _score(measure: Measure, prompt: str, text: str) -> float:
    model = measure.model
    before = model.encode_prompt(prompt)
    ids = np.array(before + model.tokenizer.encode(text), np.int32)
    if len(ids) > model.context:
        raise InputError(f"[eval] a prompt and choice of {len(ids)} tokens; the context is {model.context}")
    targets = ids[1:].copy()
    targets[: len(before) - 1] = UNTRAINED
    n = len(targets)
    batch = Batch(ids[:-1], targets, np.arange(n, dtype=np.int32), np.zeros(n, np.int32))
    return float(measure.losses(batch).sum()) / len(text.encode())
