"""A trained model as one GGUF file that says what made it, and in which every byte is accounted for.

Other programs read it as any GGUF. What is added is metadata, the first two keys at the head of the file:

    trivet.bundle.id        sha256 of all bytes before the tensors' data, these 64 digits taken as zeros
    trivet.bundle.sha256    sha256 of each tensor's bytes, in the order of the tensors
    trivet.bundle.version   1
    trivet.bundle.stage     JSON: what made it, from what; the caller's
    trivet.bundle.parent    the id of the bundle it was made from, if it was

So the id stands for the whole file: weights, tokenizer, configuration, shapes, stage and all ancestors.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet.errors import DTypeError, FileError, InputError, UnsupportedError
from trivet.formats.common import quoted, written_aside
from trivet.formats.gguf import GGUFFile, TensorSource, stream_gguf
from trivet.graph import of_numpy
from trivet.train.checkpoint import hashed, plain_data

__all__ = ["VERSION", "Bundle", "verify", "write"]

VERSION = 1
_PREFIX = "trivet.bundle."
_ID, _SHA256 = f"{_PREFIX}id", f"{_PREFIX}sha256"
_EMPTY = "0" * 64
_MAX_HEAD = 1 << 28  # bytes before the data, and of padding
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
# Where the digits lie: a GGUF header takes 24 bytes, a length or count 8, a type 4.
_ID_AT = 24 + 8 + len(_ID) + 4 + 8
_SHA256_AT = _ID_AT + 64 + 8 + len(_SHA256) + 4 + 4 + 8


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a bundle says of itself."""

    id: str
    parent: str | None
    stage: dict[str, Any]


def write(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TensorSource | npt.NDArray[Any]],
    *,
    stage: Mapping[str, Any],
    parent: str | None = None,
) -> Bundle:
    """Writes a bundle: there whole, or not at all. Metadata and tensors are as for `write_gguf`; metadata of
    another bundle is left out. Each tensor is made once, and one is held at a time.

    Raises InputError for what cannot be written, FileError if the file cannot be."""
    if parent is not None and not (isinstance(parent, str) and _DIGEST.fullmatch(parent)):
        raise InputError(f"[bundle] parent: is {parent!r:.80}; wanted the id of a bundle, or None")
    if not tensors:
        raise InputError("[bundle] tensors: there are none")
    told = plain_data(stage, "[bundle] stage")
    digests: dict[str, str] = {}
    ours = {_ID: _EMPTY, _SHA256: [_EMPTY] * len(tensors), f"{_PREFIX}version": np.uint32(VERSION)}
    ours |= {f"{_PREFIX}stage": json.dumps(told)} | ({f"{_PREFIX}parent": parent} if parent else {})
    theirs = {key: value for key, value in metadata.items() if not key.startswith(_PREFIX)}
    sources = {name: hashed(name, _source(name, tensor), digests) for name, tensor in tensors.items()}
    with written_aside(Path(path), "bundle") as file:
        stream_gguf(file, ours | theirs, sources)
        for i, digest in enumerate(digests.values()):
            file.seek(_SHA256_AT + i * (8 + 64) + 8)
            file.write(digest.encode())
        file.flush()
        made = _identity(GGUFFile.open(file.name))
        file.seek(_ID_AT)
        file.write(made.encode())
    return Bundle(made, parent, told)


def verify(path: str | os.PathLike[str]) -> Bundle:
    """What a bundle says of itself, after every byte of it has been checked.

    Raises FileError that names the tensor that was changed, or says that the rest was, or that the file is no
    bundle; GGUFError if it is malformed; UnsupportedError for a newer version."""
    file = GGUFFile.open(path)
    version = file.metadata.get(f"{_PREFIX}version")
    if version is None:
        raise _bad(file.path, f"{_PREFIX}version", "is missing: it is not a bundle")
    if type(version) is int and version > VERSION:
        raise UnsupportedError(f"[bundle] {file.path}: version {version}; this build reads {VERSION}")
    identity, digests = file.metadata.get(_ID), file.metadata.get(_SHA256)
    if not isinstance(digests, list) or len(digests) != len(file.tensors) or file.unsupported:
        raise _bad(file.path, _SHA256, "is not a list of a digest for each tensor")
    if version != VERSION or list(file.metadata)[:2] != [_ID, _SHA256] or identity != _identity(file):
        raise _bad(file.path, _ID, "differs: metadata, names, shapes or digests were changed")
    for (name, info), digest in zip(file.tensors.items(), digests, strict=True):
        if hashlib.sha256(file.data(name).data).hexdigest() != digest:
            raise _bad(
                file.path, f"tensor {quoted(name)}", f"sha256 differs: its {info.nbytes} bytes changed"
            )
    _check_gaps(file)
    return _told(file, identity)


def _bad(path: Path, field: str, found: str) -> FileError:
    return FileError(f"[bundle] {path}: {field}: {found}")


def _source(name: str, tensor: TensorSource | npt.NDArray[Any]) -> TensorSource:
    if isinstance(tensor, TensorSource):
        return tensor
    try:
        return TensorSource(of_numpy(tensor.dtype), tensor.shape, tensor)
    except DTypeError as error:
        raise InputError(f"[bundle] tensor {quoted(name)}: {error}") from error


def _identity(file: GGUFFile) -> str:
    start = min((info.offset for info in file.tensors.values()), default=0)
    if start > _MAX_HEAD:
        raise _bad(file.path, "data", f"begins at byte {start}; at most {_MAX_HEAD} are allowed before it")
    with file.path.open("rb") as source:
        head = bytearray(source.read(start))
    head[_ID_AT : _ID_AT + 64] = _EMPTY.encode()
    return hashlib.sha256(head).hexdigest()


def _check_gaps(file: GGUFFile) -> None:
    """What lies between the tensors and behind them is padding."""
    ends = sorted((info.offset, info.offset + info.nbytes) for info in file.tensors.values())
    with file.path.open("rb") as source:
        size = source.seek(0, os.SEEK_END)
        for (_, end), (start, _) in zip(ends, [*ends[1:], (size, size)], strict=True):
            source.seek(end)
            if start - end >= min(file.alignment, _MAX_HEAD) or source.read(start - end).strip(b"\0"):
                raise _bad(file.path, "padding", f"bytes {end} to {start} are not all zeros, or too many")


def _told(file: GGUFFile, identity: str) -> Bundle:
    parent, text = file.metadata.get(f"{_PREFIX}parent"), file.metadata.get(f"{_PREFIX}stage")
    if parent is not None and not (isinstance(parent, str) and _DIGEST.fullmatch(parent)):
        raise _bad(file.path, f"{_PREFIX}parent", "is not the id of a bundle")
    try:
        stage = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        stage = None
    if not isinstance(stage, dict):
        raise _bad(file.path, f"{_PREFIX}stage", "is not a JSON object")
    return Bundle(identity, parent, stage)
