"""A model from a Hugging Face folder to a GGUF file, from a file to a folder, or into parts of another size.

Weights keep their numbers where they keep their type: a tensor is changed only if `type` asks for it, or if
the other format wants it: what is no matrix is f32 in a GGUF file, and what is packed is f16 in a folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import cards, hf_folder, mixes, models, packing
from trivet.blocks import tensor_bytes
from trivet.dtypes import DType, f16, f32, f64
from trivet.errors import InputError
from trivet.formats.gguf import TensorSource, demand_place
from trivet.formats.safetensors_save import SHARD_BYTES
from trivet.models.checkpoint import Checkpoint, Entry, open_checkpoint, resolve

#: what a folder's weights may be
FLOATS = ("f32", "f16", "bf16")
#: endings of files that are not written, and no folder is meant by
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")


@dataclass(slots=True)
class Converted:
    """What was written: the path to open, its tensors and their bytes, and what did not come with it."""

    path: Path
    tensors: int
    nbytes: int
    notes: list[str] = field(default_factory=list)


def convert(
    model: str | Path,
    out: str | os.PathLike[str],
    *,
    type: str = "keep",
    max_bytes: int | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Converted:
    """Writes a model in the other format, with its tokenizer, chat template and metadata.

    model: a GGUF file, the first of its parts, a Hugging Face folder, or a name.
    out: a path that ends in .gguf gives a GGUF file, any other a Hugging Face folder of safetensors. A file
        is there whole, or not at all; in a folder, config.json comes last.
    type: "keep", f32, f16, bf16; in a GGUF file any of `trivet.mixes.MIXES`, though `trivet.quantize` can
        do more for packed ones.
    max_bytes: of tensors in a part, NAME-00001-of-N; by default a GGUF file has one part, a folder's have
        5 GB.
    advance: is told of every tensor that is written.
    Raises InputError, UnsupportedError for what the other format has no words for, NonFiniteError for a
    weight that the type cannot hold, FileError, and what opening the model raises; then no model is written.

    >>> convert("smollm2-135m", "smollm2", type="q4_k_m")
    Traceback (most recent call last):
    trivet.errors.InputError: [convert] type is 'q4_k_m'; a folder has: keep, f32, f16, bf16
    """
    to_file = Path(out).suffix.lower() == ".gguf"
    kind = mixes.named(type)
    known = ("keep", *(mixes.MIXES if to_file else FLOATS))
    if kind not in known:
        raise InputError(
            f"[convert] type is {type!r}; a {'GGUF file' if to_file else 'folder'} has: {', '.join(known)}"
        )
    if max_bytes is not None and max_bytes < 1:
        raise InputError(f"[convert] max_bytes is {max_bytes}; wanted at least 1")
    if Path(out).suffix.lower() in WEIGHTS:
        raise InputError(f"[convert] {out} is neither a folder nor a .gguf file, which convert writes")
    checkpoint, target = _open(model, out)
    if to_file:
        demand_place("convert", target)
    models.build(checkpoint)  # so that what is converted is a model
    if to_file:
        checkpoint = packing.with_output(checkpoint)
    write = _file if to_file else _folder
    return write(checkpoint, target, kind, max_bytes, advance)


def _open(model: str | Path, out: str | os.PathLike[str]) -> tuple[Checkpoint, Path]:
    checkpoint = open_checkpoint(resolve(model))
    target = packing.target("convert", out, checkpoint)
    if checkpoint.path.is_dir() and checkpoint.path.resolve() in target.resolve().parents:
        raise InputError(f"[convert] {target} is in the model's own folder; write somewhere else")
    return checkpoint, target


# --- to a GGUF file ------------------------------------------------------------------------------


def _file(
    checkpoint: Checkpoint,
    target: Path,
    type: str,
    max_bytes: int | None,
    advance: Callable[[int], None],
) -> Converted:
    kinds = _kept(checkpoint) if type == "keep" else mixes.kinds(checkpoint, type)
    metadata = packing.carried(checkpoint)
    if checkpoint.gguf is None or type != "keep":
        number = mixes.MIXES[kinds["token_embd.weight"].name if type == "keep" else type].number
        metadata["general.file_type"] = np.uint32(number)
        metadata["general.quantization_version"] = np.uint32(2)
    written = packing.write(
        "convert", target, checkpoint, kinds, metadata, max_bytes=max_bytes, advance=advance
    )
    notes = [] if type == "keep" else mixes.notes(checkpoint, type)
    notes += packing.notes(written, metadata)
    return Converted(written.path, len(written.tensors), sum(t.nbytes for t in written.tensors), notes)


def _kept(checkpoint: Checkpoint) -> dict[str, DType]:
    """Every tensor as it is, but those of a folder that are no matrices, or f64: programs expect f32."""
    own = {name: entry.dtype for name, entry in checkpoint.tensors.items()}
    if checkpoint.gguf is not None:
        return own
    plain = mixes.kinds(checkpoint, "f16")  # which says what is a matrix
    kept = {name: own[name] if dtype is f16 else dtype for name, dtype in plain.items()}
    return {name: f32 if dtype is f64 else dtype for name, dtype in kept.items()}


# --- to a folder ---------------------------------------------------------------------------------


def _folder(
    checkpoint: Checkpoint,
    target: Path,
    type: str,
    max_bytes: int | None,
    advance: Callable[[int], None],
) -> Converted:
    tensors = {}
    for name, entry in checkpoint.tensors.items():
        kind = hf_folder.floating(entry, type)
        tensors[name] = TensorSource(kind, entry.shape, partial(_floats, name, entry, kind, advance))
    said = checkpoint.metadata if checkpoint.gguf else cards.read(checkpoint.path / "README.md")
    card = cards.converted(target.name, checkpoint.path.name, said)
    size = SHARD_BYTES if max_bytes is None else max_bytes
    notes = hf_folder.write("convert", target, checkpoint, tensors, {}, card, size)
    packed = sum(entry.dtype.is_packed for entry in checkpoint.tensors.values())
    if packed:
        now = "f16" if type == "keep" else type
        notes.append(f"{packed} tensors were packed: they are {now} now, no better than before")
    return Converted(
        target, len(tensors), sum(tensor_bytes(t.dtype, t.shape) for t in tensors.values()), notes
    )


def _floats(name: str, entry: Entry, kind: DType, advance: Callable[[int], None]) -> npt.NDArray[Any]:
    advance(1)
    if entry.dtype is kind:
        return np.ascontiguousarray(entry.load())
    return packing.encoded("convert", f"tensor {name!r}", entry.values(), kind)[0]
