"""The recipe `pretrain`: a corpus to a small model from scratch, with a tokenizer made from it.

run = tv.pretrain("corpus.txt", out="small", style="gpt2", layers=6, width=384, tokenizer="bpe", vocab=4096)
run.result         # a GGUF file: tv.load(run.result).generate("Once upon a time")
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet.models import scratch
from trivet.models.checkpoint import Checkpoint
from trivet.text import train_bpe
from trivet.text.literal import strings
from trivet.text.template import ChatTemplate
from trivet.text.tokenizer import Tokenizer
from trivet.train import base, hand_over
from trivet.train.config import Pretrain, make
from trivet.train.data import Renderer, Row, RowFile, Splits
from trivet.train.data.dataset import piece_of
from trivet.train.data.split import keys
from trivet.train.events import Watch
from trivet.train.loop import Loop
from trivet.train.session import Run
from trivet.train.session import Session as Shared


def pretrain(
    data: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    watch: Watch | Sequence[Watch] = (),
    device: str = "auto",
    threads: int = 0,
    **settings: Any,
) -> Run:
    """Trains a new model on a corpus, and writes it into the folder `out` as `model.gguf`.

    data: plain text, or JSONL of {"text": ...}, a document a row.
    settings: those of `trivet.train.config.Pretrain`: style, layers, width, tokenizer, steps, lr, ...
    watch: called with each event (trivet.train.events), in order.
    Raises InputError for a setting, FileError for a file, before any time is spent."""
    given = {"data": os.fspath(data), "out": os.fspath(out), **settings}
    return Session(make(Pretrain, given), device, threads).run(watch)


@dataclass(frozen=True, slots=True)
class Source:
    """What examples are made for, before there is a model's file."""

    tokenizer: Tokenizer
    context: int
    chat_template: ChatTemplate | None = None


class Session(Shared):
    """A tokenizer and a model, both new."""

    config: Pretrain
    recipe = "pretrain"

    def prepare(self) -> None:
        c = self.config
        merges = train_bpe.train(self._texts(), c.tokens_wanted) if c.tokenizer == "bpe" else []
        self.words = train_bpe.metadata(merges)
        self.source = Source(Tokenizer.of(self.words), c.context)
        made = self.source.tokenizer.n_vocab
        if made < c.tokens_wanted:
            self.notes.append(f"{c.data}: the corpus gives {made} tokens, fewer than {c.tokens_wanted}")

    def _texts(self) -> Iterator[str]:
        """The texts that are trained on."""
        c = self.config
        splits = Splits({"train": 1 - c.holdout, "validation": c.holdout}, c.seed) if c.holdout else None
        for row in RowFile(Path(c.data), c.format, c.columns, piece_of(c.context)):
            if isinstance(row, Row) and (splits is None or splits.of(keys(row)) == "train"):
                yield from strings(row.fields)

    def renderer(self) -> Renderer:
        return Renderer(self.source, self.config.context, train_on="all")

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return scratch.checkpoint(self.config.sizes, self.words, self.config.seed, self.folder / "model.gguf")

    def first(self, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, npt.NDArray[np.float32]]:
        return base.Values(self.checkpoint, tuple(shapes))

    def hand_over(self, loop: Loop) -> Path:
        facts = {
            "recipe": self.recipe,
            "style": self.config.style,
            "tokenizer": self.config.tokenizer,
            "data": self.train.sha256,
            "seed": str(self.config.seed),
            "steps": str(self.steps),
        }
        return hand_over.fresh(self.folder, hand_over.parameters(loop), self.checkpoint, facts)
