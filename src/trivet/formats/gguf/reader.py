"""Opening a GGUF file: the header is read and checked whole; the weights are mapped, not read."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet.blocks import dequantize
from trivet.errors import GGUFError, InputError, UnsupportedError
from trivet.formats.common import (
    MAX_ELEMENTS,
    TensorInfo,
    UnsupportedTensor,
    demand_whole,
    map_file,
    overlap,
    quoted,
)
from trivet.formats.gguf import split
from trivet.formats.gguf.cursor import Cursor, Later
from trivet.formats.gguf.types import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMS,
    MAX_KEY_BYTES,
    MIN_ALIGNMENT,
    TENSOR_TYPES,
    VERSIONS,
    Encoded,
    TensorType,
    Value,
)

# What people hand to a GGUF reader by mistake.
_LOOKS_LIKE = (
    (b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint"),
    (b"version https://git-lfs", "a Git LFS pointer; the file itself was not downloaded"),
    (b"<", "a web page"),
    (b"FUGG", "a byte-reversed GGUF file"),
    (b"tjgg", "an old GGML file (ggjt)"),
    (b"lmgg", "an old GGML file (ggml)"),
    (b"fmgg", "an old GGML file (ggmf)"),
)


class Metadata(Mapping[str, Any]):
    """Read-only; long lists of strings are made when they are first asked for."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, Later):
            value = self._values[key] = value.make()
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(dict(self))


class GGUFFile:
    """An open GGUF file, or all the parts of a split one as one.

    metadata     key -> int, float, bool, str, NumPy array (numbers), list of str, or list of arrays
    tensors      name -> TensorInfo, in file order; shapes are row-major
    unsupported  name -> UnsupportedTensor: of a type GGUF defines and trivet does not read
    paths        the file, or all its parts; offsets count within the part that holds the tensor
    """

    path: Path
    paths: tuple[Path, ...]
    version: int
    alignment: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    unsupported: Mapping[str, UnsupportedTensor]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """Map the file at `path` and check its header; of a split model, the first part opens them all.

        Raises FileError if it cannot be opened, GGUFError if it is malformed, and UnsupportedError for
        big-endian files and version 1.
        """
        file = cls(Path(path), map_file(Path(path), "GGUFFile.open"))
        paths = split.parts(file.path, file.metadata)
        if len(paths) > 1:
            file._join(paths)
        return file

    def __init__(self, path: Path, data: mmap.mmap | bytes) -> None:
        cursor = Cursor(data, str(path))
        self.path = path
        self.version = _version(cursor)
        n_tensors = cursor.count("n_tensors", 24)
        n_kv = cursor.count("n_kv", 13)
        # Both counts were taken to fit alone; together they are checked as the cursor walks on.
        self._data = data
        self._extents: dict[str, tuple[int, int, int]] = {}
        self._values = self._read_metadata(cursor, n_kv)
        self.metadata = Metadata(self._values)
        self.alignment = self._read_alignment(cursor)
        self.tensors, self.unsupported = _read_tensors(cursor, n_tensors, self.alignment)
        self._bytes = np.frombuffer(data, np.uint8)
        self._others: dict[str, GGUFFile] = {}  # tensor -> the part that holds it, if not this file
        self.paths = (path,)
        self.release()  # of what the header took

    def release(self) -> None:
        """Lets the file's pages leave this process's memory, until they are read again."""
        for part in {self, *self._others.values()}:
            if isinstance(part._data, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
                part._data.madvise(mmap.MADV_DONTNEED)

    def _join(self, paths: Sequence[Path]) -> None:
        """Takes in the tensors of the other parts; what is said of parts is no metadata of the whole."""
        tensors, unsupported = dict(self.tensors), dict(self.unsupported)
        for number, path in enumerate(paths[1:], 1):
            part = GGUFFile(path, map_file(path, "GGUFFile.open"))
            split.check_part(path, part.metadata, number, len(paths))
            for name in (*part.tensors, *part.unsupported):
                if name in tensors or name in unsupported:
                    raise GGUFError(f"[gguf] {path}: tensor {quoted(name)}: is also in an earlier part")
                self._others[name] = part
            tensors |= part.tensors
            unsupported |= part.unsupported
        split.check_total(self.path, self.metadata, len(tensors) + len(unsupported))
        self.tensors, self.unsupported = MappingProxyType(tensors), MappingProxyType(unsupported)
        for key in split.KEYS:
            self._values.pop(key, None)
            self._extents.pop(key, None)
        self.paths = tuple(paths)

    def _read_metadata(self, cursor: Cursor, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for i in range(count):
            start = cursor.at
            key = cursor.string(f"metadata key {i}")
            nbytes = cursor.at - start - 8
            if not 0 < nbytes <= MAX_KEY_BYTES:
                cursor.fail(f"metadata key {i}", f"has {nbytes} bytes; 1 to {MAX_KEY_BYTES} are allowed")
            field = f"metadata {quoted(key)}"
            if key in metadata:
                cursor.fail(field, "appears twice")
            kind = cursor.u32(f"{field} type")
            start = cursor.at
            metadata[key] = cursor.value(kind, field)
            self._extents[key] = (kind, start, cursor.at)
        return metadata

    def _read_alignment(self, cursor: Cursor) -> int:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        kind, _, _ = self._extents.get("general.alignment", (Value.U32, 0, 0))
        if kind != Value.U32:
            cursor.fail("general.alignment", f"has type {kind}; it must be a u32 (type {Value.U32.value})")
        if alignment < MIN_ALIGNMENT or alignment & (alignment - 1):
            cursor.fail(
                "general.alignment", f"is {alignment}; a power of two from {MIN_ALIGNMENT} is allowed"
            )
        return int(alignment)

    def encoded(self, key: str) -> Encoded:
        """The metadata value as it lies in the file, for `write_gguf` to copy with its exact type."""
        if key not in self._extents:
            raise InputError(f"[GGUFFile.encoded] {self.path}: no metadata {quoted(key)}")
        kind, start, stop = self._extents[key]
        demand_whole(self._data, self.path)
        return Encoded(kind, bytes(self._data[start:stop]))

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, a read-only view of the mapped file. Raises FileError if that was cut short."""
        info, part = self._info("GGUFFile.data", name), self._others.get(name, self)
        demand_whole(part._data, part.path)
        return part._bytes[info.offset : info.offset + info.nbytes]

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor's values as a new float32 array in row-major shape."""
        info = self._info("GGUFFile.array", name)
        return dequantize(self.data(name), info.dtype, info.shape)

    def _info(self, call: str, name: str) -> TensorInfo:
        if name in self.tensors:
            return self.tensors[name]
        if name in self.unsupported:
            kind = self.unsupported[name].type_name
            raise UnsupportedError(
                f"[{call}] {self.path}: tensor {quoted(name)} has type {kind}, not supported"
            )
        raise InputError(f"[{call}] {self.path}: no tensor {quoted(name)}")


def _version(cursor: Cursor) -> int:
    head = bytes(cursor.data[:24])
    if head[:4] != MAGIC[: len(head)]:
        kind = next((f"; it looks like {what}" for magic, what in _LOOKS_LIKE if head.startswith(magic)), "")
        if head[8:9] == b"{":
            kind = "; it looks like a safetensors file"
        raise GGUFError(f"[gguf] {cursor.label}: magic: is {head[:4]!r}, a GGUF file begins {MAGIC!r}{kind}")
    cursor.need(4, "magic")
    version = cursor.u32("version")
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in (1, *VERSIONS):
        raise UnsupportedError(f"[gguf] {cursor.label}: big-endian (version {swapped}); convert it to little")
    if version == 1:
        raise UnsupportedError(f"[gguf] {cursor.label}: version 1; versions 2 and 3 are supported")
    if version not in VERSIONS:
        cursor.fail("version", f"is {version}; versions 2 and 3 are known")
    return version


def _read_tensors(
    cursor: Cursor, count: int, alignment: int
) -> tuple[Mapping[str, TensorInfo], Mapping[str, UnsupportedTensor]]:
    """The records first: offsets count from the data section, whose start is known after the last one."""
    records: dict[str, tuple[TensorType, tuple[int, ...], int]] = {}
    for i in range(count):
        name = cursor.string(f"tensor {i} name")
        if not name:
            cursor.fail(f"tensor {i} name", "is empty")
        field = f"tensor {quoted(name)}"
        if name in records:
            cursor.fail(field, "appears twice")
        records[name] = _read_record(cursor, field)
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    unsupported: dict[str, UnsupportedTensor] = {}
    for name, (kind, shape, offset) in records.items():
        nbytes = math.prod(shape) // kind.block * kind.nbytes
        _check_extent(cursor, f"tensor {quoted(name)}", start, offset, nbytes, alignment)
        if kind.dtype is None:
            unsupported[name] = UnsupportedTensor(name, kind.name, shape, start + offset, nbytes)
        else:
            tensors[name] = TensorInfo(name, kind.dtype, shape, start + offset, nbytes)
    if pair := overlap([*tensors.values(), *unsupported.values()]):
        before, after = pair
        cursor.fail(f"tensor {quoted(after.name)} offset", f"overlaps tensor {quoted(before.name)}")
    return MappingProxyType(tensors), MappingProxyType(unsupported)


def _read_record(cursor: Cursor, field: str) -> tuple[TensorType, tuple[int, ...], int]:
    n_dims = cursor.u32(f"{field} n_dims")
    if n_dims > MAX_DIMS:
        cursor.fail(f"{field} n_dims", f"is {n_dims}; at most {MAX_DIMS} are allowed")
    shape = tuple(cursor.u64(f"{field} dim {d}") for d in range(n_dims))[::-1]
    if math.prod(max(d, 1) for d in shape) > MAX_ELEMENTS:  # also where another dimension is zero
        cursor.fail(f"{field} dims", f"are {shape}; at most 2**60-1 elements are allowed")
    number = cursor.u32(f"{field} type")
    if number not in TENSOR_TYPES:
        cursor.fail(f"{field} type", f"is {number}, which is not a GGUF tensor type")
    kind = TENSOR_TYPES[number]
    row = shape[-1] if shape else 1
    if row % kind.block:
        cursor.fail(f"{field} dims", f"are {shape}; rows of {kind.name} divide by {kind.block}")
    return kind, shape, cursor.u64(f"{field} offset")


def _check_extent(cursor: Cursor, field: str, start: int, offset: int, nbytes: int, alignment: int) -> None:
    if offset % alignment:
        cursor.fail(f"{field} offset", f"is {offset}; it must divide by the alignment of {alignment}")
    room = max(0, cursor.size - start)
    if offset > room or nbytes > room - offset:  # Python's integers do not wrap
        cursor.fail(f"{field} offset", f"is {offset} for {nbytes} bytes; the data section has {room}")
