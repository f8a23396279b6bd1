"""A Hugging Face folder from a model's tensors: names, order of rows, configuration, tokenizer."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import dtypes, graph, models
from trivet.adapter import in_order
from trivet.blocks import dequantize
from trivet.dtypes import DType, f16, f32
from trivet.errors import FileError, InputError, UnsupportedError
from trivet.formats.common import sweep, written_aside
from trivet.formats.gguf import TensorSource
from trivet.formats.safetensors_save import SHARD_BYTES, write_sharded
from trivet.models.checkpoint import Checkpoint, Entry, offset, read_config, transposed
from trivet.text.hf_tokenizer import tokenizer_files

#: endings of the files that are copied from a folder
_KEPT = (".json", ".txt", ".model", ".jinja")
_LICENCES = ("LICENSE", "LICENCE", "NOTICE", "COPYING", "USE_POLICY")
_MAX_KEPT = 1 << 28  # bytes


def write(
    call: str,
    folder: Path,
    base: Checkpoint,
    tensors: Mapping[str, TensorSource],
    facts: Mapping[str, str],
    card: str,
    max_bytes: int = SHARD_BYTES,
) -> list[str]:
    """Writes the folder, config.json last, and tells what could not come with it.

    `call` is who asks, for the messages. `tensors` have GGUF's names and order; `facts` go into each file of
    at most `max_bytes` of them, `card` is the README. Raises InputError if the folder is there and not empty,
    UnsupportedError for what config.json has no words for."""
    module = models.by_architecture(base.architecture)
    named: dict[str, TensorSource] = {}
    for name, source in tensors.items():
        theirs = module.hf_original(name)
        if theirs is not None and "{}" in theirs:
            for i in range(source.shape[0]):
                part = partial(_part, base, name, source, i)
                named[theirs.format(i)] = TensorSource(source.dtype, source.shape[1:], part)
        elif theirs:
            shape = source.shape[::-1] if transposed(module, name) else source.shape
            dtype = f32 if offset(module, name) else source.dtype
            named[theirs] = TensorSource(dtype, shape, partial(_ordered, base, name, source))
        elif theirs is None and not base.path.is_dir():  # a folder's own configuration says it
            raise UnsupportedError(
                f"[{call}] config.json has no words for the tensor {name}; write a .gguf file"
            )
    config = _config(module, base, tensors)
    if os.path.exists(folder) and not folder.is_dir():
        raise InputError(
            f"[{call}] {folder} is there and no folder; the name of a GGUF file to write ends in .gguf"
        )
    try:
        files, notes = _kept(base.path) if base.path.is_dir() else _tokenizer(base)
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        if any(folder.iterdir()):
            raise InputError(f"[{call}] {folder} is not empty; write somewhere else")
    except OSError as error:
        raise FileError(f"[{call}] {error.filename}: {error.strerror}") from None
    files |= {"README.md": card.encode(), "config.json": json.dumps(config, indent=2).encode() + b"\n"}
    # What takes long comes first: until that is done, nothing has its name.
    write_sharded(folder, named, {"format": "pt", **facts}, max_bytes)
    for name, data in files.items():
        with written_aside(folder / name, call) as file:
            file.write(data)
    return notes


def floating(entry: Entry, type: str) -> DType:
    """What a folder holds a tensor as: what `type` says, or, of "keep", what it is, f16 if it is packed."""
    if type != "keep":
        return dtypes.BY_NAME[type]
    return f16 if entry.dtype.is_packed else entry.dtype


def _part(base: Checkpoint, name: str, source: TensorSource, index: int) -> npt.NDArray[Any]:
    """One part of a tensor that a folder holds in parts."""
    return np.ascontiguousarray(_ordered(base, name, source)[index])


def _ordered(base: Checkpoint, name: str, source: TensorSource) -> npt.NDArray[Any]:
    """The tensor's bytes with the rows of queries and keys in Hugging Face's order, turned where it has them
    so."""
    data = source.data() if callable(source.data) else source.data
    rows = np.ascontiguousarray(data).reshape(-1).view(graph.to_numpy(source.dtype)).reshape(source.shape)
    ordered = in_order(base, name, rows, back=True)
    module = models.by_architecture(base.architecture)
    if added := offset(module, name):
        ordered = dequantize(ordered.view(np.uint8), source.dtype, source.shape) - np.float32(added)
    turned = transposed(module, name)
    return np.ascontiguousarray(ordered.T) if turned else ordered


def _config(module: Any, base: Checkpoint, tensors: Mapping[str, TensorSource]) -> dict[str, Any]:
    names = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
    kind = names[tensors["token_embd.weight"].dtype.name]
    if not base.path.is_dir():
        return {**module.hf_config(base), "torch_dtype": kind}
    config = read_config(base.path)
    config.pop("dtype", None)
    return {**config, "torch_dtype": kind}


def _kept(source: Path) -> tuple[dict[str, bytes], list[str]]:
    """The tokenizer, the licence and whatever else is small in a folder."""
    files = {}
    for file in sorted(source.iterdir()):
        skipped = file.name in ("config.json", "README.md") or file.name.endswith(".index.json")
        kept = file.suffix in _KEPT or file.name.upper().startswith(_LICENCES)
        if kept and file.is_file() and not skipped and file.stat().st_size <= _MAX_KEPT:
            files[file.name] = file.read_bytes()
    return files, []


def _tokenizer(base: Checkpoint) -> tuple[dict[str, bytes], list[str]]:
    """The tokenizer of a GGUF file as files of a folder, or why there is none."""
    try:
        return {name: text.encode() for name, text in tokenizer_files(base.metadata).items()}, []
    except UnsupportedError as error:
        return {}, [str(error)]
