"""A checkpoint written as a GGUF file, each tensor as a dtype of its own; one tensor is in memory at a time.

A tensor that its dtype cannot hold is written as bf16, which has float32's range, or if need be as f32: one
with a scale beyond f16 (a value over 10^5 or so), and one whose values are so small that their scales would
be zero. That is found out while writing, and then the file is begun again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import blocks, cards
from trivet.backends.native.quantize import quantize
from trivet.blocks import tensor_bytes
from trivet.dtypes import DType, bf16, f32, f64
from trivet.errors import InputError, NonFiniteError, UnsupportedError
from trivet.formats.common import quoted, same_file
from trivet.formats.gguf import TensorSource, write_split
from trivet.models.checkpoint import STALE, Checkpoint, Entry

#: a relative error from which on a tensor is lost: two bits a value cost 0.3
_LOST = 0.7
#: architectures whose files llama.cpp does not open without an output matrix
_WITH_OUTPUT = ("gptneox", "olmo2", "stablelm")

Importance = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor that was written. `error` is |written - values| / |values| in Euclidean norm."""

    name: str
    shape: tuple[int, ...]
    before: DType
    after: DType
    error: float

    @property
    def nbytes(self) -> int:
        return tensor_bytes(self.after, self.shape)


@dataclass(slots=True)
class Written:
    """What a file holds, and which tensors could not be what they were meant to be."""

    tensors: list[Packed] = field(default_factory=list)
    unfit: dict[str, DType] = field(default_factory=dict)  # name -> what it was meant to be
    squares: float = 0.0
    errors: float = 0.0
    path: Path = Path()  # what to open: the file, or its first part


def target(call: str, out: str | os.PathLike[str], checkpoint: Checkpoint) -> Path:
    """The path to write a checkpoint to. Raises InputError if it is what is read, UnsupportedError for a
    checkpoint with tensors that trivet cannot read."""
    if not str(out):
        raise InputError(f"[{call}] the file to write has an empty name")
    path = Path(out)
    if any(same_file(path, part) for part in files(checkpoint)):
        raise InputError(f"[{call}] {path} is the model itself; write somewhere else")
    if checkpoint.unsupported:
        name, tensor = next(iter(checkpoint.unsupported.items()))
        raise UnsupportedError(
            f"[{call}] {checkpoint.path.name}: tensor {quoted(name)} has type {tensor.type_name}, which"
            " trivet does not read"
        )
    return path


def with_output(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint as a GGUF file is to hold it: where other programs want an output matrix, and the model
    takes its embedding for one, it has that twice."""
    tensors = checkpoint.tensors
    if checkpoint.architecture not in _WITH_OUTPUT or "output.weight" in tensors:
        return checkpoint
    tensors = {**tensors, "output.weight": tensors["token_embd.weight"]}
    return Checkpoint(checkpoint.path, checkpoint.metadata, tensors, checkpoint.gguf)


def files(checkpoint: Checkpoint) -> list[Path]:
    """What a checkpoint is read from: its parts; its folder, and what is in that but for GGUF files."""
    if checkpoint.gguf is not None:
        return list(checkpoint.gguf.paths)
    return [checkpoint.path, *(f for f in checkpoint.path.iterdir() if f.suffix.lower() != ".gguf")]


def write(
    call: str,
    path: str | os.PathLike[str],
    checkpoint: Checkpoint,
    kinds: Mapping[str, DType],
    metadata: Mapping[str, Any],
    *,
    importance: Importance | None = None,
    max_bytes: int | None = None,
    threads: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> Written:
    """Writes the file, or parts with at most `max_bytes` of tensors: there whole, or not at all.

    call: who asks, for the messages.
    kinds: the dtype of every tensor; those that are no floats stay as they are.
    metadata: as for `write_gguf`; `carried` gives a checkpoint's own.
    importance: weights of a matrix's columns, by which errors count.
    advance: is told of every tensor that is written.
    Raises NonFiniteError that names a tensor with an infinity or NaN, and what `write_gguf` raises."""
    wanted = dict(kinds)
    most, read = sys.maxsize if max_bytes is None else max_bytes, files(checkpoint)
    while True:
        work = _Work(call, checkpoint, wanted, importance or {}, threads, advance)
        try:
            work.done.path = write_split(path, metadata, work.sources(), most, read)[0]
        except _Again:
            wanted |= work.again
            continue
        work.done.unfit = {name: kind for name, kind in kinds.items() if wanted[name] is not kind}
        return work.done


def encoded(
    call: str, what: str, values: npt.NDArray[np.float32], kind: DType, dither: int | None = None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """One tensor's bytes as `kind`, by the definition of its format, and the values that those are; `dither`
    as for `blocks.quantize`. Raises NonFiniteError, about `what`, if the values or these are not finite."""
    if not np.isfinite(values).all():
        raise NonFiniteError(f"[{call}] {what} is not finite everywhere")
    beyond = NonFiniteError(f"[{call}] {what} is beyond {kind}; give type f32 or bf16")
    try:
        raw = blocks.quantize(values, kind, dither)
    except NonFiniteError:
        raise beyond from None
    written = blocks.dequantize(raw.reshape(-1), kind, values.shape)
    if not np.isfinite(written).all():
        raise beyond
    return raw, written


def carried(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint's metadata as the file to be written takes it, without what says what the old file was; of
    a folder, with its name, what its card says, its tokenizer and its chat template."""
    gguf = checkpoint.gguf
    if gguf is None:
        name = {"general.name": checkpoint.path.resolve().name}
        said = cards.read(checkpoint.path / "README.md")
        return {**checkpoint.metadata, **name, **said, **checkpoint.tokenizer_metadata}
    return {key: gguf.encoded(key) for key in checkpoint.metadata if not key.startswith(STALE)}


def notes(written: Written, metadata: Mapping[str, Any]) -> list[str]:
    """What a user ought to know of what was written."""
    packed = sum(t.before.is_packed and t.after is not t.before for t in written.tensors)
    said = []
    if packed:
        said.append(f"{packed} tensors were packed before, and have lost twice: start from the original")
    after = {tensor.name: tensor.after for tensor in written.tensors}
    for name, kind in written.unfit.items():
        said.append(f"{quoted(name)} is {after[name]}: its values are too large, or too small, for {kind}")
    if "tokenizer.ggml.model" not in metadata:
        said.append("there is no tokenizer to write: the file speaks ids only")
    return said


class _Again(Exception):
    """The file has to be begun again, with other dtypes."""


class _Work:
    """One attempt."""

    def __init__(
        self,
        call: str,
        checkpoint: Checkpoint,
        kinds: Mapping[str, DType],
        importance: Importance,
        threads: int,
        advance: Callable[[int], None],
    ) -> None:
        self.call, self.checkpoint, self.kinds, self.importance = call, checkpoint, kinds, importance
        self.threads, self.advance = threads, advance
        self.left = len(checkpoint.tensors)
        self.done = Written()
        self.again: dict[str, DType] = {}

    def sources(self) -> dict[str, TensorSource]:
        return {
            name: TensorSource(self.kinds[name], entry.shape, partial(self._bytes, name, entry))
            for name, entry in self.checkpoint.tensors.items()
        }

    def _bytes(self, name: str, entry: Entry) -> npt.NDArray[Any]:
        kind, raw = self.kinds[name], entry.load()
        same = kind is entry.dtype and (kind is f64 or not kind.is_float)
        out = self._kept(name, entry, raw) if same else self._packed(name, entry, kind, raw)
        self.advance(1)
        if self.checkpoint.gguf is not None:
            self.checkpoint.gguf.release()
        self.left -= 1
        if self.again and not self.left:
            raise _Again
        return out

    def _kept(self, name: str, entry: Entry, raw: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if entry.dtype is f64:
            _demand_finite(self.call, name, entry)
        self.done.tensors.append(Packed(name, entry.shape, entry.dtype, entry.dtype, 0.0))
        return np.ascontiguousarray(raw).reshape(-1).view(np.uint8)

    def _packed(self, name: str, entry: Entry, kind: DType, raw: npt.NDArray[Any]) -> npt.NDArray[Any]:
        shape = entry.shape or (1,)
        weights = self.importance.get(name) if kind.is_packed else None
        source = entry.dtype
        if source is f64:  # which the native core does not pack
            raw, source = entry.values(), f32
        try:
            out, squares, errors = quantize(raw, source, shape, kind, weights, self.threads)
        except NonFiniteError:
            _demand_finite(self.call, name, entry)
            return self._unfit(name, entry, kind)
        error = (errors / squares) ** 0.5 if squares else 0.0
        if error > _LOST:
            return self._unfit(name, entry, kind)
        self.done.tensors.append(Packed(name, entry.shape, entry.dtype, kind, error))
        self.done.squares += squares
        self.done.errors += errors
        return out

    def _unfit(self, name: str, entry: Entry, kind: DType) -> npt.NDArray[Any]:
        """The next attempt has another dtype; this one goes on, to find others."""
        self.again[name] = f32 if kind is bf16 else bf16
        return np.zeros(tensor_bytes(kind, entry.shape), np.uint8)


def _demand_finite(call: str, name: str, entry: Entry) -> None:
    values = entry.values().reshape(-1)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        row, column = divmod(int(bad[0]), entry.shape[-1] if entry.shape else 1)
        raise NonFiniteError(
            f"[{call}] tensor {quoted(name)}: {len(bad)} of its values are not finite, the first,"
            f" {values[bad[0]]}, in row {row}, column {column}"
        )
