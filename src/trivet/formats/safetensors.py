"""safetensors files, one or a sharded folder, as named arrays: read by memory map, without torch.

Bytes of a file, in order:

  1. N (u64, little-endian): bytes of the header; at most 100 MB
  2. the header: JSON that begins with "{", padded with spaces. An object of
     name -> {"dtype": str, "shape": [int, ...], "data_offsets": [begin, end]}, and optionally
     "__metadata__" -> an object of strings. Offsets count from the end of the header.
  3. the data: each tensor's little-endian row-major bytes. The tensors cover it whole, without holes
     or overlaps.

A sharded folder holds model.safetensors.index.json: {"weight_map": {name: file name}}. The reader is
our own because the safetensors package gives no bfloat16 array without torch.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import dtypes
from trivet.blocks import dequantize
from trivet.dtypes import DType
from trivet.errors import InputError, SafetensorsError, UnsupportedError
from trivet.formats.common import (
    MAX_ELEMENTS,
    MAX_JSON,
    AnyTensor,
    TensorInfo,
    UnsupportedTensor,
    demand_whole,
    json_object,
    map_file,
    quoted,
)

INDEX = "model.safetensors.index.json"
_MAX_DIMS = 32  # as NumPy has it

DTYPES: dict[str, DType] = {
    "F32": dtypes.f32,
    "F16": dtypes.f16,
    "BF16": dtypes.bf16,
    "F64": dtypes.f64,
    "I8": dtypes.i8,
    "U8": dtypes.u8,
    "I32": dtypes.i32,
    "I64": dtypes.i64,
    "BOOL": dtypes.bool_,
}
# Bits of an element of the types the format defines and trivet does not read.
_OTHER = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "U32": 32,
    "U64": 64,
    "C64": 64,
}


class SafetensorsFile:
    """An open safetensors file, or all the files of a folder as one.

    metadata     the strings of "__metadata__"
    tensors      name -> TensorInfo, in data order; offsets count within the file that holds the tensor
    unsupported  name -> UnsupportedTensor: of a type safetensors defines and trivet does not read
    """

    path: Path
    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorInfo]
    unsupported: Mapping[str, UnsupportedTensor]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SafetensorsFile:
        """Open a .safetensors file, or a folder with one, or a folder with an index and its shards.

        Raises FileError if something cannot be opened, SafetensorsError if it is malformed.
        """
        path = Path(path)
        if not path.is_dir():
            return cls(path, [path])
        if not (path / INDEX).exists():
            return cls(path, [_only_file(path)])
        weight_map = _read_index(path / INDEX)
        file = cls(path, [path / name for name in sorted(set(weight_map.values()))])
        for name, shard in weight_map.items():
            if name not in file._where or file._where[name][0] != path / shard:
                raise _bad(path / INDEX, f"weight_map {quoted(name)}", f"is not in {shard}")
        return file

    def __init__(self, path: Path, files: Iterable[Path]) -> None:
        self.path = path
        self._where: dict[str, tuple[Path, mmap.mmap | bytes]] = {}
        metadata: dict[str, str] = {}
        tensors: dict[str, TensorInfo] = {}
        unsupported: dict[str, UnsupportedTensor] = {}
        for file in files:
            data = map_file(file, "SafetensorsFile.open")
            found, strings = _read_header(file, data)
            metadata |= strings
            for tensor in found:
                if tensor.name in self._where:
                    other = self._where[tensor.name][0].name
                    raise _bad(file, f"tensor {quoted(tensor.name)}", f"is also in {other}")
                self._where[tensor.name] = (file, data)
                if isinstance(tensor, TensorInfo):
                    tensors[tensor.name] = tensor
                else:
                    unsupported[tensor.name] = tensor
        self.metadata = MappingProxyType(metadata)
        self.tensors = MappingProxyType(tensors)
        self.unsupported = MappingProxyType(unsupported)

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, a read-only view of the mapped file. Raises FileError if that was cut short."""
        info, (path, data) = self._info("SafetensorsFile.data", name), self._where[name]
        demand_whole(data, path)
        return np.frombuffer(data, np.uint8, info.nbytes, info.offset)

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor's values as a new float32 array."""
        info = self._info("SafetensorsFile.array", name)
        return dequantize(self.data(name), info.dtype, info.shape)

    def _info(self, call: str, name: str) -> TensorInfo:
        if name in self.tensors:
            return self.tensors[name]
        if name in self.unsupported:
            kind = self.unsupported[name].type_name
            raise UnsupportedError(
                f"[{call}] {self.path}: tensor {quoted(name)} has dtype {kind}, not supported"
            )
        raise InputError(f"[{call}] {self.path}: no tensor {quoted(name)}")


def _bad(path: Path, field: str, found: str) -> SafetensorsError:
    return SafetensorsError(f"[safetensors] {path}: {field}: {found}")


def _only_file(folder: Path) -> Path:
    files = sorted(folder.glob("*.safetensors"))
    if folder / "model.safetensors" in files:
        return folder / "model.safetensors"
    if len(files) != 1:
        raise _bad(
            folder, INDEX, f"is missing, and the folder holds {len(files)} .safetensors files, not one"
        )
    return files[0]


def _read_index(path: Path) -> dict[str, str]:
    index = json_object(map_file(path, "SafetensorsFile.open"), partial(_bad, path, "index"))
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _bad(path, "weight_map", "is not an object of tensor names and file names")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or shard in ("", "..") or Path(shard).name != shard or "\0" in shard:
            raise _bad(path, f"weight_map {quoted(name)}", f"is {quoted(str(shard))}, not a plain file name")
    return weight_map


def _read_header(path: Path, data: mmap.mmap | bytes) -> tuple[list[AnyTensor], dict[str, str]]:
    if len(data) < 8:
        raise _bad(path, "header length", f"needs 8 bytes, the file has {len(data)}")
    length = int.from_bytes(data[:8], "little")
    room = min(len(data) - 8, MAX_JSON)
    if not 2 <= length <= room:
        raise _bad(path, "header length", f"is {length}; 2 to {room} are allowed")
    if data[8:9] != b"{":
        raise _bad(path, "header", f"begins with {data[8:9]!r}, not '{{'; it may not be a safetensors file")
    header = json_object(data[8 : 8 + length], partial(_bad, path, "header"))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _bad(path, "__metadata__", "is not an object of strings")
    start = 8 + length
    tensors = [_read_tensor(path, name, entry, start) for name, entry in header.items()]
    tensors.sort(key=lambda t: (t.offset, t.nbytes))
    _check_cover(path, tensors, start, len(data))
    return tensors, metadata


def _read_tensor(path: Path, name: str, entry: Any, start: int) -> AnyTensor:
    field = f"tensor {quoted(name)}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _bad(path, field, "is not an object of dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or (kind not in DTYPES and kind not in _OTHER):
        raise _bad(path, f"{field} dtype", f"is {quoted(str(kind))}, which safetensors does not define")
    if not _naturals(shape) or len(shape) > _MAX_DIMS or math.prod(max(d, 1) for d in shape) > MAX_ELEMENTS:
        limits = f"at most {_MAX_DIMS} counts whose product is at most 2**60-1"
        raise _bad(path, f"{field} shape", f"is not a list of {limits}")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _bad(path, f"{field} data_offsets", "is not [begin, end] with 0 <= begin <= end")
    begin, end = offsets
    bits = math.prod(shape) * (_OTHER[kind] if kind in _OTHER else 8 * DTYPES[kind].nbytes)
    if bits != 8 * (end - begin):
        raise _bad(path, f"{field} data_offsets", f"span {end - begin} bytes; {kind} {shape} is {bits / 8:g}")
    if kind in DTYPES:
        return TensorInfo(name, DTYPES[kind], tuple(shape), start + begin, end - begin)
    return UnsupportedTensor(name, kind, tuple(shape), start + begin, end - begin)


def _naturals(value: Any) -> bool:
    # the upper bound also keeps products and messages short
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 2**63 for v in value)


def _check_cover(path: Path, tensors: list[AnyTensor], start: int, size: int) -> None:
    at = start
    for tensor in tensors:
        if tensor.offset != at:
            what = "overlaps the tensor before it" if tensor.offset < at else "leaves a hole before it"
            field = f"tensor {quoted(tensor.name)} data_offsets"
            raise _bad(path, field, f"begin at {tensor.offset - start}, {at - start} was due: {what}")
        at += tensor.nbytes
    if at != size:
        raise _bad(path, "data", f"the tensors take {at - start} bytes, the file has {size - start}")
