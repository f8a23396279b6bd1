"""What a finished run hands over: an adapter, as a PEFT folder, or the tuned model, as a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trivet.adapter import Adapter
from trivet.dtypes import DType, f16, f32
from trivet.errors import UnsupportedError
from trivet.formats.gguf import TensorSource
from trivet.lora import Lora
from trivet.models.checkpoint import Checkpoint
from trivet.train import bundle
from trivet.train import checkpoint as checkpoints
from trivet.train.checkpoint_folder import step_name
from trivet.train.events import Note
from trivet.train.loop import Loop

F32 = npt.NDArray[np.float32]


def parameters(loop: Loop) -> dict[str, F32]:
    """The parameters to hand over: the best by validation if the run measured on the way, else the last."""
    best = loop.best
    if best is None or not loop.pace.evaluate or best[0] == loop.trainer.taken:
        return loop.trainer.parameters
    path = loop.folder / step_name(best[0])
    if not path.is_dir():
        loop.tell(Note(f"step {best[0]}, the best by validation, was removed: the last is handed over"))
        return loop.trainer.parameters
    saved = checkpoints.load(path)
    loop.tell(Note(f"step {best[0]} had the lowest validation loss, {best[1]:.4f}: that is handed over"))
    return {name: saved.arrays[name] for name in loop.trainer.parameters}


def adapter(
    folder: Path, lora: Lora, arrays: Mapping[str, F32], base: Checkpoint, facts: Mapping[str, str]
) -> Path:
    """Writes `adapter` in the run's folder."""
    return Adapter.of(lora, dict(arrays), base, folder.resolve().name, **facts).save(folder / "adapter")


def model(folder: Path, arrays: Mapping[str, F32], base: Checkpoint, facts: Mapping[str, str]) -> Path:
    """Writes `model.gguf` in the run's folder, a bundle: the base's metadata, matrices as f16 where they fit,
    the rest as f32."""
    if base.gguf is None:
        raise UnsupportedError(
            "[train] a tuned model is written as GGUF, which wants a GGUF file to begin with"
        )
    kept = {key: base.gguf.encoded(key) for key in base.metadata if not key.startswith("trivet.plan.")}
    tensors = {name: _source(arrays[name]) for name in base.tensors if name in arrays}
    tensors |= {
        name: TensorSource(entry.dtype, entry.shape, entry.load())
        for name, entry in base.tensors.items()
        if name not in arrays
    }
    path, parent = folder / "model.gguf", base.metadata.get("trivet.bundle.id")
    bundle.write(path, {**kept, "general.file_type": np.uint32(1)}, tensors, stage=facts, parent=parent)
    return path


def fresh(folder: Path, arrays: Mapping[str, F32], made: Checkpoint, facts: Mapping[str, str]) -> Path:
    """Writes `model.gguf` in the run's folder, a bundle, of a model from scratch."""
    told = {"general.name": folder.resolve().name, "general.file_type": np.uint32(1)}
    path, tensors = folder / "model.gguf", {name: _source(arrays[name]) for name in made.tensors}
    bundle.write(path, {**made.metadata, **told}, tensors, stage=facts)
    return path


def _source(array: F32) -> TensorSource:
    """Converted when its turn to be written comes: one tensor at a time, not all at once."""
    largest = max(array.max(initial=0), -array.min(initial=0))  # without a copy, which abs would make
    dtype: DType = f16 if array.ndim > 1 and largest < 65504 else f32
    return TensorSource(dtype, array.shape, (lambda: array.astype(np.float16)) if dtype is f16 else array)
