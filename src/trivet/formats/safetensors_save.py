"""Writing a safetensors file: the same input gives the same bytes, and one tensor is held at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import dtypes
from trivet.blocks import BY_DTYPE, tensor_bytes
from trivet.dtypes import DType
from trivet.errors import InputError, UnsupportedError
from trivet.formats.common import quoted, written_aside
from trivet.formats.gguf import TensorSource
from trivet.formats.safetensors import DTYPES

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
    header: dict[str, Any] = {}
    if metadata:
        if not all(isinstance(v, str) for pair in metadata.items() for v in pair):
            raise _bad("metadata", "is not all strings")
        header["__metadata__"] = dict(metadata)
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
    with written_aside(Path(path), "write_safetensors") as file:
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
