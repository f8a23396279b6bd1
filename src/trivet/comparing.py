"""Two models compared: tensor by tensor, and by what they make of a text.

Tensors are streamed, a piece of one at a time, so memory does not grow with the models. On a text, A is the
reference: KL(A || B) is what is lost, in nats a token, by taking B's distribution for A's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import arguments, runtime
from trivet.errors import (
    FileError,
    InputError,
    NonFiniteError,
    TokenizerError,
    TrivetError,
    UnsupportedError,
)
from trivet.generate.describe import plain
from trivet.generate.model import Model
from trivet.models.checkpoint import Checkpoint, Entry, open_checkpoint, resolve

WINDOW = 2048  # tokens of a text that are seen together, at most
LOGITS = 1 << 25  # logits of a model held at a time
#: what a file is called and for, not what the model is
_NO_METADATA = ("trivet.plan.", "split.", "general.file_type", "general.quantization_version")

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """A tensor that both have. `rmse` is |B - A| / |A| in Euclidean norm, `largest` the largest |B - A|; both
    are NaN where either holds NaN or infinity, and None where the shapes differ."""

    name: str
    types: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    identical: bool  # type, shape and every byte
    rmse: float | None
    largest: float | None


@dataclass(frozen=True, slots=True)
class Likelihood:
    """What a model makes of a text: its mean NLL, natural log, over `tokens`, and bits per UTF-8 byte."""

    nll: float
    tokens: int
    bits_per_byte: float


@dataclass(frozen=True, slots=True)
class TextDifference:
    """Two models on one text, in windows of at most `window` tokens, as `Model.nll` has them. `kl` is the
    mean KL(A || B) in nats a token, `same_top` the share of tokens where the likeliest is the same; they are
    None where `refused` says why the two cannot be held against each other token by token."""

    a: Likelihood
    b: Likelihood
    kl: float | None
    same_top: float | None
    refused: str | None
    window: int


@dataclass(slots=True)
class Comparison:
    """Two models. `metadata` has (key, value of A, value of B), None where it is not there."""

    tensors: list[TensorDifference] = field(default_factory=list)
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)
    metadata: list[tuple[str, Any, Any]] = field(default_factory=list)
    rmse: float = 0.0  # over all tensors of one shape together
    text: TextDifference | None = None

    @property
    def identical(self) -> bool:
        """Whether tensors and metadata are the same."""
        same = all(tensor.identical for tensor in self.tensors)
        return same and not (self.only_a or self.only_b or self.metadata)


def compare(
    a: str | Path,
    b: str | Path,
    *,
    text: str | None = None,
    device: str = "auto",
    threads: int = 0,
    advance: Advance = lambda _: None,
) -> Comparison:
    """Compares two models, given as to `trivet.load`.

    text: is scored by both, in windows of at most 2048 tokens, or of the smaller context.
    advance: is told of each tensor, then of tokens scored.
    Raises InputError for a text with nothing to score, NonFiniteError if a model makes infinity or NaN of
    it, and what opening the models raises.

    >>> compare("model.gguf", "model.gguf")
    Traceback (most recent call last):
    trivet.errors.FileError: [load] no file or folder 'model.gguf', and no model of that name ...
    """
    device = runtime.resolve(device)  # a wrong name is reported even where nothing is computed there
    first, second = open_checkpoint(resolve(a)), open_checkpoint(resolve(b))
    done = Comparison(metadata=_metadata(_said(first), _said(second)))
    done.only_a = [name for name in first.tensors if name not in second.tensors]
    done.only_b = [name for name in second.tensors if name not in first.tensors]
    sums = np.zeros(2)
    for name, entry in first.tensors.items():
        if other := second.tensors.get(name):
            found, squares = _tensor(name, entry, other)
            done.tensors.append(found)
            sums += squares
        advance(1)
    done.rmse = _ratio(*sums)
    if text is not None:
        models = [Model(checkpoint, device, threads=threads) for checkpoint in (first, second)]
        done.text = _text(models[0], models[1], arguments.text(text, "[compare] the text"), advance)
    return done


def _said(checkpoint: Checkpoint) -> dict[str, Any]:
    """A model's metadata, with the tokenizer of a folder; where that cannot be read, without it."""
    try:
        return {**checkpoint.metadata, **checkpoint.tokenizer_metadata}
    except (TokenizerError, UnsupportedError, FileError):
        return dict(checkpoint.metadata)


def _metadata(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    keys = [key for key in {**a, **b} if not key.startswith(_NO_METADATA)]
    return [
        (key, plain(a.get(key)), plain(b.get(key)))
        for key in keys
        if key not in a or key not in b or not _same(a[key], b[key])
    ]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(np.asarray(a), np.asarray(b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float | np.floating) and isinstance(b, float | np.floating):
        return bool(np.float32(a) == np.float32(b))  # what GGUF keeps of config.json's numbers
    return bool(a == b)


def _tensor(name: str, a: Entry, b: Entry) -> tuple[TensorDifference, npt.NDArray[np.float64]]:
    """The difference, and the sums of squares of B - A and of A."""
    types, shapes, sums = (a.dtype.name, b.dtype.name), (a.shape, b.shape), np.zeros(2)
    if a.shape != b.shape:
        return TensorDifference(name, types, shapes, False, None, None), sums
    identical, largest = a.dtype is b.dtype, 0.0
    for (raw, x), (other_raw, y) in zip(a.pieces(), b.pieces(), strict=True):
        identical = identical and np.array_equal(raw, other_raw)
        with np.errstate(invalid="ignore", over="ignore"):
            change = y - x
        pairs = ((change, change), (x, x))
        sums += [np.einsum("n,n->", p, q, dtype=np.float64) for p, q in pairs]
        largest = max(largest, float(np.abs(change).max(initial=0))) if np.isfinite(sums).all() else math.nan
    return TensorDifference(name, types, shapes, identical, _ratio(*sums), largest), sums


def _ratio(error: float, whole: float) -> float:
    """|B - A| / |A| of their squares; 0 of nothing that changed."""
    if not math.isfinite(error + whole):
        return math.nan
    return math.sqrt(error / whole) if whole else 0.0 if not error else math.inf


# --- a text ---


def _text(a: Model, b: Model, text: str, advance: Advance) -> TextDifference:
    ids, refused = _ids(a, b, text)
    window = min(WINDOW, a.context, b.context)
    if min(map(len, ids)) < 2:
        raise InputError(f"[compare] the text is {min(map(len, ids))} tokens; there is nothing to score")
    nbytes = len(text.encode())
    if refused is None:
        return _together(a, b, ids[0], window, nbytes, advance)
    alone = [
        _likelihood(m.nll(i, window=window, advance=advance), nbytes)
        for m, i in zip((a, b), ids, strict=True)
    ]
    return TextDifference(alone[0], alone[1], None, None, refused, window)


def _ids(a: Model, b: Model, text: str) -> tuple[list[list[int]], str | None]:
    """The text's ids for each, and why they do not stand for the same; a folder may lack a tokenizer, then
    the other's is taken."""
    found: list[list[int]] = []
    missing: list[TrivetError] = []
    for model in (a, b):
        try:
            found.append(model.tokenizer.encode(text, add_special=True))
        except TrivetError as error:
            missing.append(error)
    if not found:
        raise missing[0]
    sizes = a.config.vocab, b.config.vocab
    if sizes[0] != sizes[1]:
        if missing:
            raise missing[0]
        return found, f"their vocabularies have {sizes[0]} and {sizes[1]} tokens"
    if missing:
        return found * 2, None
    tokens = [m.checkpoint.tokenizer_metadata.get("tokenizer.ggml.tokens", []) for m in (a, b)]
    if tokens[0] != tokens[1]:
        at = next((i for i, (x, y) in enumerate(zip(*tokens, strict=False)) if x != y), min(map(len, tokens)))
        return found, f"their vocabularies differ, first in token {at}"
    return found, None if found[0] == found[1] else "their tokenizers cut the text differently"


def _likelihood(losses: npt.NDArray[np.float64], nbytes: int) -> Likelihood:
    return Likelihood(float(losses.mean()), len(losses), float(losses.sum()) / math.log(2) / nbytes)


def _together(
    a: Model, b: Model, ids: list[int], window: int, nbytes: int, advance: Advance
) -> TextDifference:
    """Both over the same tokens, each scored once, in windows that do not overlap but for a token."""
    losses: tuple[list[float], list[float]] = [], []
    divergence, same = 0.0, 0
    for start in range(0, len(ids) - 1, window - 1):
        for target, rows in _rows(a, b, ids[start : start + window]):
            for model, row in zip((a, b), rows, strict=True):
                if not np.isfinite(row).all():
                    name, at = model.checkpoint.path.name, len(losses[0])
                    raise NonFiniteError(f"[compare] {name} makes infinity or NaN of token {at} of the text")
            scores = [_log_softmax(row) for row in rows]
            for kept, score in zip(losses, scores, strict=True):
                kept.append(-float(score[target]))
            divergence += float(np.dot(np.exp(scores[0]), scores[0] - scores[1]))
            same += int(rows[0].argmax()) == int(rows[1].argmax())
            advance(1)
    count = len(losses[0])
    first, second = (_likelihood(np.array(found), nbytes) for found in losses)
    return TextDifference(first, second, divergence / count, same / count, None, window)


def _rows(a: Model, b: Model, ids: list[int]) -> Iterator[tuple[int, list[npt.NDArray[np.float32]]]]:
    """(next token, the logits of both) after each of `ids` but the last, of fresh sequences."""
    sessions = a.session(), b.session()
    step = max(1, min(256, LOGITS // a.config.vocab))
    for at in range(0, len(ids) - 1, step):
        part = ids[at : min(at + step, len(ids) - 1)]
        logits = [m.engine.forward(s, part, range(len(part))) for m, s in zip((a, b), sessions, strict=True)]
        for i in range(len(part)):
            yield ids[at + i + 1], [found[i] for found in logits]


def _log_softmax(row: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = row.astype(np.float64)
    wide -= wide.max()
    return np.asarray(wide - math.log(np.exp(wide).sum()))
