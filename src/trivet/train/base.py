"""The weights a run stands on: as float32 values, or as a checkpoint with other element types.

What another element type takes is made when a tensor is loaded: one of them stands as floats at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet.blocks import quantize, to_bf16
from trivet.dtypes import NF4, NF4D, DType, bf16, f32
from trivet.errors import NonFiniteError
from trivet.lora import Lora
from trivet.models.checkpoint import Checkpoint, Entry


@dataclass(frozen=True, slots=True)
class Values(Mapping[str, npt.NDArray[np.float32]]):
    """Tensors of a checkpoint as float32, by name, each made when asked for: never all at once."""

    checkpoint: Checkpoint
    names: tuple[str, ...]

    def __getitem__(self, name: str) -> npt.NDArray[np.float32]:
        if name not in self.names:
            raise KeyError(name)
        return loaded(self.checkpoint, self.checkpoint.tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def loaded(checkpoint: Checkpoint, entry: Entry) -> npt.NDArray[np.float32]:
    """A tensor's numbers in memory of their own; the file's pages are let go."""
    made = entry.values()
    if checkpoint.gguf is not None:
        checkpoint.gguf.release()
    return made


def is_packed(checkpoint: Checkpoint) -> bool:
    """Whether any of its tensors is."""
    return any(entry.dtype.is_packed for entry in checkpoint.tensors.values())


def decoded(checkpoint: Checkpoint, dtype: DType) -> Checkpoint:
    """The same model with its matrices as `dtype`, f32 or bf16, and the rest as f32; decoded when loaded."""
    tensors = {
        name: Entry(kind, entry.shape, _load(checkpoint, entry, kind))
        for name, entry in checkpoint.tensors.items()
        for kind in [dtype if len(entry.shape) > 1 else f32]
    }
    return Checkpoint(checkpoint.path, checkpoint.metadata, tensors, checkpoint.gguf)


def nf4(checkpoint: Checkpoint, dtype: DType, block: int = 64, double: bool = True) -> Checkpoint:
    """The same model with the matrices of its blocks in NF4, of `block` elements, with scales that are
    double-quantised or float32. The rest is packed as it was, or as `decoded` has it. Rows that `block` does
    not divide have the longest shorter block that does, and are as the rest if there is none."""
    tensors = dict(decoded(checkpoint, dtype).tensors)
    for name, entry in checkpoint.tensors.items():
        kind = _fitting(entry.shape, block, NF4D if double else NF4) if Lora().takes(name) else None
        if kind is not None:
            tensors[name] = Entry(kind, entry.shape, _pack(checkpoint, name, kind))
        elif entry.dtype.is_packed:
            tensors[name] = entry
    return Checkpoint(checkpoint.path, checkpoint.metadata, tensors, checkpoint.gguf)


def nf4_notes(made: Checkpoint, block: int) -> list[str]:
    """What `nf4` could not do as it was told, in words."""
    kinds = Counter(entry.dtype for name, entry in made.tensors.items() if Lora().takes(name))
    stacks = Counter(e.dtype for e in made.tensors.values() if len(e.shape) > 2 and not e.dtype.is_packed)
    return [
        f"{count} matrices have rows that {block} does not divide: they are {kind}"
        for kind, count in kinds.items()
        if kind.block != block
    ] + [
        f"{count} stacks of experts are {kind}: experts are multiplied with in floats or a file's own blocks"
        for kind, count in stacks.items()
    ]


def _fitting(shape: tuple[int, ...], most: int, kinds: tuple[DType, ...]) -> DType | None:
    return next((d for d in reversed(kinds) if d.block <= most and shape[-1] % d.block == 0), None)


def _pack(checkpoint: Checkpoint, name: str, dtype: DType) -> Callable[[], npt.NDArray[Any]]:
    def load() -> npt.NDArray[Any]:
        try:
            return quantize(loaded(checkpoint, checkpoint.tensors[name]), dtype).reshape(-1)
        except NonFiniteError:
            raise NonFiniteError(
                f"[train] {name} has numbers that are not finite: {dtype} cannot hold them"
            ) from None

    return load


def _load(checkpoint: Checkpoint, entry: Entry, dtype: DType) -> Callable[[], npt.NDArray[Any]]:
    if entry.dtype is dtype:
        return entry.load
    if dtype is bf16:
        return lambda: to_bf16(loaded(checkpoint, entry))
    return lambda: loaded(checkpoint, entry)
