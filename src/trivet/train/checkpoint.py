"""Checkpoints of a training run: one folder each, hashed whole, and refused if a byte of it is another.

    step-00000100/
      tensors.safetensors   parameters and moments
      checkpoint.json       the rest, written last:

  1. a JSON object: "format": "trivet.checkpoint", "version": 1, "step": int, "facts": object,
     "header": sha256 of the header of tensors.safetensors with its length,
     "tensors": {name: sha256 of its bytes}, and last
  2. a line '"sha256": "<64 hex digits>"', the sha256 of all bytes before this line, then "}" and a line feed

The facts are the caller's: plain data, in which NaN and infinity are written as Python's json writes them.
How a folder of checkpoints changes stands in checkpoint_folder.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import arguments
from trivet.dtypes import bf16
from trivet.errors import CheckpointError, DTypeError, FileError, InputError, UnsupportedError
from trivet.formats.common import map_file, quoted
from trivet.formats.gguf import TensorSource
from trivet.formats.safetensors import SafetensorsFile
from trivet.formats.safetensors_save import write_safetensors
from trivet.graph import of_numpy, to_numpy
from trivet.train.checkpoint_folder import (
    MAX_STEP,
    best,
    checkpoints,
    latest,
    prune,
    run_folder,
    step_name,
    step_of,
    written_folder,
)

__all__ = ["FORMAT", "VERSION", "Saved", "best", "checkpoints", "latest", "load", "prune", "save"]

FORMAT, VERSION = "trivet.checkpoint", 1
_TENSORS, _FACTS = "tensors.safetensors", "checkpoint.json"
_MAX_FACTS = 1 << 24  # bytes of checkpoint.json
_SEAL = b' "sha256": "'
_CHUNK = 1 << 20
_FIELDS = {"format": str, "version": int, "step": int, "facts": dict, "header": str, "tensors": dict}


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that was found whole. The arrays are read-only views of the mapped file; bf16 as bits."""

    step: int
    facts: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]


def save(
    folder: str | os.PathLike[str],
    step: int,
    arrays: Mapping[str, npt.NDArray[Any]],
    facts: Mapping[str, Any],
) -> Path:
    """Saves a checkpoint as `folder`/step-<step>; returns when it is on the disk. One of the same step is
    replaced. uint16 arrays hold bf16 bits.

    Raises InputError for what cannot be saved, FileError if it cannot be written: nothing has changed then.
    """
    folder = run_folder(folder)
    step = arguments.integer(step, "[checkpoint] step", 0, MAX_STEP)
    plain = plain_data(facts, "[checkpoint] facts")
    target = folder / step_name(step)
    digests: dict[str, str] = {}
    sources = {name: _source(name, array, digests) for name, array in arrays.items()}
    try:
        with written_folder(target) as made:
            write_safetensors(made / _TENSORS, sources)
            header = _header_digest(made / _TENSORS)
            with (made / _FACTS).open("xb") as file:
                file.write(_sealed(step, plain, header, digests))
                file.flush()
                os.fsync(file.fileno())
    except (OSError, FileError) as error:
        raise FileError(_not_saved(target, arrays, error)) from error
    return target


def load(path: str | os.PathLike[str], shapes: Mapping[str, tuple[int, ...]] | None = None) -> Saved:
    """A checkpoint, after all of it has been checked. `shapes`: the arrays it must have, if they are known.

    Raises CheckpointError (what is missing, or which tensor was changed), SafetensorsError, FileError, and
    UnsupportedError for a newer version."""
    path = run_folder(path)
    if not path.is_dir():
        raise FileError(f"[checkpoint] {path}: no such folder")
    if not (path / _FACTS).exists():
        raise CheckpointError(f"[checkpoint] {path}: is not a checkpoint: it has no {_FACTS}")
    facts = _read_facts(path / _FACTS)
    if step_of(path) not in (None, facts["step"]):
        raise _bad(path, "step", f"is {facts['step']}, which is not what the folder's name says")
    if not (path / _TENSORS).is_file():  # a folder would be taken as one of shards
        raise _bad(path, _TENSORS, "is missing")
    file = SafetensorsFile.open(path / _TENSORS)
    _check_names(path, "checkpoint.json", set(facts["tensors"]), {*file.tensors, *file.unsupported})
    _check_digests(path / _TENSORS, file, facts)
    arrays = {
        name: file.data(name).view(to_numpy(info.dtype)).reshape(info.shape)
        for name, info in file.tensors.items()
    }
    if shapes is not None:
        _check_names(path, "this run", set(shapes), set(arrays))
        for name, shape in shapes.items():
            if arrays[name].shape != tuple(shape):
                raise _bad(path, f"tensor {quoted(name)}", f"is {arrays[name].shape}, wanted {tuple(shape)}")
    return Saved(facts["step"], facts["facts"], arrays)


# --- writing ---


def _source(name: Any, array: Any, digests: dict[str, str]) -> TensorSource:
    if not isinstance(name, str) or not name or name == "__metadata__":
        raise InputError(f"[checkpoint] tensor name {name!r:.80}: is not one a file can hold")
    if not isinstance(array, np.ndarray):
        raise InputError(f"[checkpoint] tensor {quoted(name)}: is a {type(array).__name__}, not an array")
    little = array.dtype.newbyteorder("<")
    try:
        dtype = bf16 if little == np.uint16 else of_numpy(little)
    except DTypeError as error:
        raise InputError(f"[checkpoint] tensor {quoted(name)}: cannot hold NumPy's {array.dtype}") from error
    return hashed(name, TensorSource(dtype, array.shape, array), digests)


def hashed(name: str, source: TensorSource, digests: dict[str, str]) -> TensorSource:
    """The same tensor; the sha256 of its bytes is noted when its turn to be written comes."""

    def data() -> npt.NDArray[Any]:
        array = source.data() if callable(source.data) else source.data
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        whole = np.ascontiguousarray(little).reshape(-1).view(np.uint8)
        digests[name] = hashlib.sha256(whole.data).hexdigest()
        return whole

    return TensorSource(source.dtype, source.shape, data)


def _header_digest(path: Path) -> str:
    with path.open("rb") as file:
        return _digest(file, 0, 8 + int.from_bytes(file.read(8), "little"))


def plain_data(value: Any, where: str, depth: int = 0) -> Any:
    """Plain data as JSON has it: lists for tuples, Python's numbers for NumPy's."""
    if depth > 100:
        raise InputError(f"{where[:120]}…: nests deeper than 100")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InputError(f"{where}: a key is {key!r:.80}; wanted strings")
        return {key: plain_data(v, f"{where}.{key}", depth + 1) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if value is not None and not isinstance(value, str | bool | int | float):
        raise InputError(f"{where}: is a {type(value).__name__}, which JSON does not have")
    return value


def _sealed(step: int, facts: Any, header: str, digests: dict[str, str]) -> bytes:
    """The bytes of checkpoint.json."""
    body = {
        "format": FORMAT,
        "version": VERSION,
        "step": step,
        "facts": facts,
        "header": header,
        "tensors": digests,
    }
    text = json.dumps(body, indent=1).encode().removesuffix(b"\n}") + b",\n"
    sealed = text + _SEAL + hashlib.sha256(text).hexdigest().encode() + b'"\n}\n'
    if len(sealed) > _MAX_FACTS:
        raise InputError(f"[checkpoint] facts: take {len(sealed)} bytes; at most {_MAX_FACTS} are allowed")
    return sealed


def _not_saved(target: Path, arrays: Mapping[str, npt.NDArray[Any]], error: Exception) -> str:
    """Why, what it would have taken, and what there is to go on from."""
    cause = error if isinstance(error, OSError) else error.__cause__
    why = getattr(cause, "strerror", None) or str(error)
    try:
        last = latest(target.parent)
        free = shutil.disk_usage(target.parent).free / 1e6
        need = sum(array.nbytes for array in arrays.values()) / 1e6
        why += f" (it takes {need:,.1f} MB, {free:,.1f} MB are free)"
    except (OSError, FileError):
        last = None
    kept = f"{last.name} is still there, whole" if last else "there is no earlier checkpoint"
    return f"[checkpoint] {target}: cannot be saved: {why}; {kept}"


# --- reading ---


def _bad(path: Path, field: str, found: str) -> CheckpointError:
    return CheckpointError(f"[checkpoint] {path}: {field}: {found}")


def _read_facts(path: Path) -> dict[str, Any]:
    text = map_file(path, "checkpoint")
    if len(text) > _MAX_FACTS:
        raise _bad(path, "size", f"is {len(text)} bytes; at most {_MAX_FACTS} are allowed")
    text = bytes(text[:])
    try:
        body = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise _bad(path, "content", f"is not JSON, or was cut short: {str(error)[:120]}") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise _bad(path, "format", f'is not "{FORMAT}"')
    version = body.get("version")
    if type(version) is int and version > VERSION:
        raise UnsupportedError(f"[checkpoint] {path}: version {version:.6g}; this build reads {VERSION}")
    start = text.rfind(_SEAL)
    seal = _SEAL + hashlib.sha256(text[: max(start, 0)]).hexdigest().encode() + b'"\n}\n'
    if start < 0 or text[start:] != seal:
        raise _bad(path, "sha256", "is not that of the content: the file was changed")
    for field, kind in _FIELDS.items():
        if type(body.get(field)) is not kind:
            raise _bad(path, field, f"is a {type(body.get(field)).__name__}; wanted {kind.__name__}")
    if version != VERSION or not 0 <= body["step"] <= MAX_STEP:
        raise _bad(path, "version or step", "is out of range")
    if not all(isinstance(digest, str) for digest in body["tensors"].values()):
        raise _bad(path, "tensors", "is not an object of sha256 digests")
    return body


def _check_names(path: Path, whose: str, wanted: set[str], there: set[str]) -> None:
    for name in sorted(wanted - there):
        raise _bad(path, f"tensor {quoted(name)}", f"is in {whose}, but not in {_TENSORS}")
    for name in sorted(there - wanted):
        raise _bad(path, f"tensor {quoted(name)}", f"is in {_TENSORS}, but not in {whose}")


def _check_digests(path: Path, file: SafetensorsFile, facts: dict[str, Any]) -> None:
    """Read, not mapped: hashing leaves no pages in this process, and a failing disk is an error."""
    try:
        with path.open("rb") as source:
            if _header_digest(path) != facts["header"]:
                raise _bad(path, "header", "sha256 differs: names, types or shapes were changed")
            for name, info in file.tensors.items():
                if _digest(source, info.offset, info.nbytes) != facts["tensors"][name]:
                    raise _bad(path, f"tensor {quoted(name)}", "sha256 differs: a byte of it was changed")
            for name in file.unsupported:
                raise _bad(path, f"tensor {quoted(name)}", "is of a type no checkpoint has")
    except OSError as error:
        raise FileError(f"[checkpoint] {path}: {error.strerror}") from error


def _digest(source: Any, start: int, nbytes: int) -> str:
    digest = hashlib.sha256()
    source.seek(start)
    while nbytes and (chunk := source.read(min(nbytes, _CHUNK))):
        digest.update(chunk)
        nbytes -= len(chunk)
    return digest.hexdigest()
