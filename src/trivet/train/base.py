"""The weights a run stands on: as float32 values, or as a checkpoint with other element types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet.blocks import dequantize, to_bf16
from trivet.dtypes import DType, bf16, f32
from trivet.models.checkpoint import Checkpoint, Entry


def values(entry: Entry) -> npt.NDArray[np.float32]:
    """A tensor's numbers as float32."""
    raw = np.ascontiguousarray(entry.load()).reshape(-1).view(np.uint8)
    return dequantize(raw, entry.dtype, entry.shape)


def is_packed(checkpoint: Checkpoint) -> bool:
    """Whether any of its tensors is."""
    return any(entry.dtype.is_packed for entry in checkpoint.tensors.values())


def decoded(checkpoint: Checkpoint, dtype: DType) -> Checkpoint:
    """The same model with its matrices as `dtype`, f32 or bf16, and the rest as f32; decoded when loaded."""
    tensors = {
        name: Entry(kind, entry.shape, _load(entry, kind))
        for name, entry in checkpoint.tensors.items()
        for kind in [dtype if len(entry.shape) > 1 else f32]
    }
    return Checkpoint(checkpoint.path, checkpoint.metadata, tensors)


def _load(entry: Entry, dtype: DType) -> Callable[[], npt.NDArray[Any]]:
    if entry.dtype is dtype:
        return entry.load
    return lambda: to_bf16(values(entry)) if dtype is bf16 else values(entry)
