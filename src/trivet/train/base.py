"""The weights a run stands on: as float32 values, or as a checkpoint with other element types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet.blocks import to_bf16
from trivet.dtypes import DType, bf16, f32
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


def _load(checkpoint: Checkpoint, entry: Entry, dtype: DType) -> Callable[[], npt.NDArray[Any]]:
    if entry.dtype is dtype:
        return entry.load
    if dtype is bf16:
        return lambda: to_bf16(loaded(checkpoint, entry))
    return lambda: loaded(checkpoint, entry)
