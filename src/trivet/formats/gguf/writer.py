"""Writing a GGUF file, version 3: the same input gives the same bytes, and one tensor is held at a time."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from trivet import dtypes
from trivet.blocks import tensor_bytes
from trivet.dtypes import DType
from trivet.errors import InputError, UnsupportedError
from trivet.formats.common import quoted, written_aside
from trivet.formats.gguf.types import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DEPTH,
    MAX_DIMS,
    MAX_KEY_BYTES,
    MAX_NAME_BYTES,
    MIN_ALIGNMENT,
    SCALARS,
    TENSOR_NUMBER,
    VERSION,
    Encoded,
    Value,
)

_KIND = {dtype: Value(kind) for kind, dtype in SCALARS.items()}
_INTEGERS = (Value.U32, Value.I32, Value.U64, Value.I64)  # a Python int takes the first that fits
_DENSE = {
    np.dtype(code): dtype
    for code, dtype in [
        ("<f4", dtypes.f32),
        ("<f2", dtypes.f16),
        ("<f8", dtypes.f64),
        ("i1", dtypes.i8),
        ("<i4", dtypes.i32),
        ("<i8", dtypes.i64),
    ]
}


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A tensor to be written. `data` holds its bytes in row-major order (any dtype), or is a function that
    makes them when their turn comes, so that only one tensor is in memory."""

    dtype: DType
    shape: tuple[int, ...]
    data: npt.NDArray[Any] | Callable[[], npt.NDArray[Any]]


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TensorSource | npt.NDArray[Any]],
) -> None:
    """Write a GGUF file beside `path`, then rename it to `path`: it is there whole, or not at all.

    A metadata value is a NumPy scalar or one-dimensional array (its exact type), bool, int (the first of
    u32, i32, u64, i64 that holds it), float (f32, or f64 beyond its range), str, bytes (u8 array), a
    non-empty list of such values of one kind, or an `Encoded` value of another file. Tensors are written
    in the order given; a plain array's type is its own. `general.alignment` in the metadata is obeyed.

    Raises InputError for a value, name or tensor that GGUF cannot hold, UnsupportedError for a dtype it
    does not have, FileError if the file cannot be written.
    """
    with written_aside(Path(path), "write_gguf") as file:
        stream_gguf(file, metadata, tensors)


def stream_gguf(
    file: BinaryIO, metadata: Mapping[str, Any], tensors: Mapping[str, TensorSource | npt.NDArray[Any]]
) -> None:
    """The same to an open file; metadata begins at byte 24, in the order given."""
    sources = sources_of(tensors)
    alignment = _alignment(metadata)
    header = bytearray(MAGIC + struct.pack("<IQQ", VERSION, len(sources), len(metadata)))
    for key, value in metadata.items():
        kind, data = _encode(value, f"metadata {quoted(key)}")
        header += _string(key, "metadata key", MAX_KEY_BYTES) + struct.pack("<I", kind) + data
    offset = 0
    for name, source in sources.items():
        header += _record(name, source, offset)
        offset += _padded(tensor_bytes(source.dtype, source.shape), alignment)
    file.write(header.ljust(_padded(len(header), alignment), b"\0"))
    for name, source in sources.items():
        _write_tensor(file, name, source, alignment)


def sources_of(tensors: Mapping[str, TensorSource | npt.NDArray[Any]]) -> dict[str, TensorSource]:
    """What is to be written, each checked. Raises InputError or UnsupportedError."""
    return {name: _source(name, tensor) for name, tensor in tensors.items()}


def _bad(field: str, problem: str) -> InputError:
    return InputError(f"[write_gguf] {field}: {problem}")


def _padded(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def _alignment(metadata: Mapping[str, Any]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    kind, data = _encode(value, "general.alignment")
    alignment = int.from_bytes(data, "little")
    if kind != Value.U32 or alignment < MIN_ALIGNMENT or alignment & (alignment - 1):
        raise _bad("general.alignment", f"is {value!r}; a u32 power of two from {MIN_ALIGNMENT} is allowed")
    return alignment


def _source(name: str, tensor: TensorSource | npt.NDArray[Any]) -> TensorSource:
    field = f"tensor {quoted(name)}"
    if not isinstance(tensor, TensorSource):
        dtype = _DENSE.get(tensor.dtype.newbyteorder("<"))
        if dtype is None:
            raise UnsupportedError(f"[write_gguf] {field}: GGUF has no tensors of NumPy's {tensor.dtype}")
        tensor = TensorSource(dtype, tensor.shape, tensor)
    if tensor.dtype not in TENSOR_NUMBER:
        raise UnsupportedError(f"[write_gguf] {field}: GGUF has no tensors of {tensor.dtype}")
    if len(tensor.shape) > MAX_DIMS or any(d < 0 for d in tensor.shape):
        raise _bad(field, f"has shape {tensor.shape}; at most {MAX_DIMS} dimensions, none negative")
    tensor_bytes(tensor.dtype, tensor.shape)  # raises if rows do not divide into blocks
    return tensor


def _string(text: str, field: str, limit: int | None = None) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise _bad(field, f"{quoted(text)} has no UTF-8 form: {error.reason}") from error
    if limit is not None and not 0 < len(data) <= limit:
        raise _bad(field, f"{quoted(text)} has {len(data)} bytes; 1 to {limit} are allowed")
    return struct.pack("<Q", len(data)) + data


def _record(name: str, source: TensorSource, offset: int) -> bytes:
    dims = source.shape[::-1]
    numbers = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    tail = struct.pack("<IQ", TENSOR_NUMBER[source.dtype], offset)
    return _string(name, "tensor name", MAX_NAME_BYTES) + numbers + tail


def _write_tensor(file: BinaryIO, name: str, source: TensorSource, alignment: int) -> None:
    data = source.data() if callable(source.data) else source.data
    want = tensor_bytes(source.dtype, source.shape)
    if data.nbytes != want:
        raise _bad(
            f"tensor {quoted(name)}", f"{source.dtype} {source.shape} is {want} bytes, got {data.nbytes}"
        )
    little = data.astype(data.dtype.newbyteorder("<"), copy=False)
    file.write(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data)
    file.write(bytes(_padded(want, alignment) - want))


def _encode(value: Any, field: str, depth: int = 0) -> Encoded:
    """A metadata value as its type and bytes."""
    if isinstance(value, Encoded):
        return value
    if isinstance(value, str):
        return Encoded(Value.STRING, _string(value, field))
    if isinstance(value, bool | int | float | np.generic):
        array = _numbers([value], field) if isinstance(value, bool | int | float) else np.asarray([value])
        return Encoded(_kind(array, field), _little(array))
    if isinstance(value, bytes | bytearray):
        value = np.frombuffer(bytes(value), np.uint8)
    if isinstance(value, np.ndarray | list | tuple):
        kind, count, data = _elements(value, field, depth)
        return Encoded(Value.ARRAY, struct.pack("<IQ", kind, count) + data)
    raise _bad(field, f"GGUF metadata cannot hold a {type(value).__name__}")


def _elements(value: Any, field: str, depth: int) -> tuple[Value, int, bytes]:
    """An array's element type, length and bytes."""
    if isinstance(value, np.ndarray) and value.ndim != 1:
        raise _bad(field, f"an array must have one dimension, got shape {value.shape}")
    if isinstance(value, np.ndarray) and value.dtype.kind != "U":
        return _kind(value, field), len(value), _little(value)
    items = list(value)
    if not items and isinstance(value, list | tuple):
        raise _bad(field, "an empty list has no element type; give an empty NumPy array")
    if all(isinstance(v, str) for v in items):
        return Value.STRING, len(items), b"".join(_string(v, field) for v in items)
    if all(isinstance(v, list | tuple | np.ndarray) for v in items):
        if depth == MAX_DEPTH:
            raise _bad(field, f"nests arrays deeper than {MAX_DEPTH}")
        inner = [_encode(v, f"{field}[{i}]", depth + 1).data for i, v in enumerate(items)]
        return Value.ARRAY, len(items), b"".join(inner)
    array = _numbers(items, field)
    return _kind(array, field), len(items), _little(array)


def _numbers(items: list[Any], field: str) -> npt.NDArray[Any]:
    """Python or NumPy numbers as an array of the one type that holds them all."""
    kinds = {type(v) for v in items}
    if len(kinds) == 1 and issubclass(next(iter(kinds)), np.generic):
        return np.array(items)
    if kinds == {bool}:
        return np.array(items, np.bool_)
    if kinds == {int}:
        for kind in _INTEGERS:
            limits = np.iinfo(SCALARS[kind])
            if limits.min <= min(items) and max(items) <= limits.max:
                return np.array(items, SCALARS[kind])
        raise _bad(field, f"{min(items)} to {max(items)} do not fit one 64-bit integer type")
    if kinds <= {int, float}:
        wide = np.array(items, np.float64)
        finite = wide[np.isfinite(wide)]
        return wide if (np.abs(finite) > np.finfo(np.float32).max).any() else wide.astype(np.float32)
    raise _bad(field, f"mixes {', '.join(sorted(k.__name__ for k in kinds))}")


def _kind(array: npt.NDArray[Any], field: str) -> Value:
    little = array.dtype.newbyteorder("<")
    if little not in _KIND:
        raise _bad(field, f"GGUF metadata has no type for NumPy's {array.dtype}")
    return _KIND[little]


def _little(array: npt.NDArray[Any]) -> bytes:
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
