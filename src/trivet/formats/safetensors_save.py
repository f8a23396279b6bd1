"""Writing safetensors, a file or shards: the same input gives the same bytes, one tensor at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from trivet import dtypes
from trivet.blocks import BY_DTYPE, tensor_bytes
from trivet.dtypes import DType
from trivet.errors import InputError, UnsupportedError
from trivet.formats.common import quoted, written_aside
from trivet.formats.gguf import TensorSource
from trivet.formats.gguf.split import grouped
from trivet.formats.safetensors import DTYPES, INDEX

SHARD_BYTES = 5_000_000_000  # as transformers has it
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_PLAIN = {BY_DTYPE[dtype].layout: dtype for dtype in _NAMES if dtype not in (dtypes.bf16, dtypes.bool_)}


def write_safetensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, TensorSource | npt.NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a safetensors file beside `path`, then rename it to `path`: it is there whole, or not at all.

    A plain array's type is its own; bf16 comes as a `TensorSource` of uint16 bits. `metadata` are strings.
    Raises UnsupportedError for a dtype the format does not have, InputError for data of another size or
    metadata that is no text, FileError if the file cannot be written."""
    sources = {name: _source(name, tensor) for name, tensor in tensors.items()}
    with written_aside(Path(path), "write_safetensors") as file:
        _stream(file, sources, _checked(metadata))


def write_sharded(
    folder: str | os.PathLike[str],
    tensors: Mapping[str, TensorSource | npt.NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
    max_bytes: int = SHARD_BYTES,
) -> list[Path]:
    """Writes `folder`/model.safetensors, or, of more than `max_bytes`, model-00001-of-N.safetensors and on,
    with their index; gives the paths, the index last. All are there whole, or none. Each shard has
    `metadata`.

    Raises as `write_safetensors` does, and InputError if the folder has safetensors already, which would be
    mixed with these, or max_bytes is below 1."""
    if max_bytes < 1:
        raise _bad("max_bytes", f"is {max_bytes}; wanted at least 1")
    folder = Path(folder)
    if there := sorted(folder.glob("*.safetensors")) + sorted(folder.glob(INDEX)):
        raise _bad(str(folder), f"has {there[0].name}; write to another folder")
    sources = {name: _source(name, tensor) for name, tensor in tensors.items()}
    groups = grouped(sources, max_bytes)
    if len(groups) == 1:
        write_safetensors(folder / "model.safetensors", sources, metadata)
        return [folder / "model.safetensors"]
    names = [f"model-{i:05d}-of-{len(groups):05d}.safetensors" for i in range(1, len(groups) + 1)]
    total = sum(tensor_bytes(source.dtype, source.shape) for source in sources.values())
    weight_map = {name: file for file, group in zip(names, groups, strict=True) for name in group}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    paths = [folder / name for name in (*names, INDEX)]
    with ExitStack() as stack:  # which ends in reverse: the index, which is read first, comes last
        files = [stack.enter_context(written_aside(path, "write_safetensors")) for path in reversed(paths)]
        files.reverse()
        for file, group in zip(files, groups, strict=False):
            _stream(file, group, _checked(metadata))
        files[-1].write(json.dumps(index, indent=2).encode() + b"\n")
    return paths


def _checked(metadata: Mapping[str, str] | None) -> dict[str, str]:
    if not all(isinstance(v, str) for pair in (metadata or {}).items() for v in pair):
        raise _bad("metadata", "is not all strings")
    return dict(metadata or {})


def _stream(file: BinaryIO, sources: Mapping[str, TensorSource], metadata: dict[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    # Widest elements first, so that each tensor begins at a multiple of its element's size.
    order = sorted(sources, key=lambda name: -sources[name].dtype.nbytes)
    offset = 0
    for name in order:
        source = sources[name]
        end = offset + tensor_bytes(source.dtype, source.shape)
        header[name] = {
            "dtype": _type_name(name, source.dtype),
            "shape": list(source.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    data = json.dumps(header, separators=(",", ":")).encode()
    data = data.ljust(-(-len(data) // 8) * 8)
    file.write(len(data).to_bytes(8, "little") + data)
    for name in order:
        file.write(_bytes(name, sources[name]))


def _source(name: str, tensor: TensorSource | npt.NDArray[Any]) -> TensorSource:
    if isinstance(tensor, TensorSource):
        return tensor
    dtype = _PLAIN.get(tensor.dtype.newbyteorder("<"))
    if dtype is None:
        raise UnsupportedError(
            f"[write_safetensors] tensor {quoted(name)}: no type for NumPy's {tensor.dtype}"
        )
    return TensorSource(dtype, tensor.shape, tensor)


def _bad(field: str, problem: str) -> InputError:
    return InputError(f"[write_safetensors] {field}: {problem}")


def _type_name(name: str, dtype: DType) -> str:
    if dtype not in _NAMES:
        raise UnsupportedError(f"[write_safetensors] tensor {quoted(name)}: the format has no {dtype}")
    return _NAMES[dtype]


def _bytes(name: str, source: TensorSource) -> memoryview:
    data = source.data() if callable(source.data) else source.data
    want = tensor_bytes(source.dtype, source.shape)
    if data.nbytes != want:
        raise _bad(
            f"tensor {quoted(name)}", f"{source.dtype} {source.shape} is {want} bytes, got {data.nbytes}"
        )
    little = data.astype(data.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).reshape(-1).view(np.uint8).data
