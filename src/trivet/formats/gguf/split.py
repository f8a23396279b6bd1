"""GGUF files split into parts, NAME-00001-of-00005.gguf and on: each a GGUF file, together one model.

Metadata of a part, besides its own general.alignment:

  split.no             its number, from 0                      (u16 where trivet writes)
  split.count          how many parts there are                (u16)
  split.tensors.count  how many tensors all parts hold         (i32)

The first part holds the model's metadata, and is what is opened. A tensor lies whole in one part.
(llama.cpp's gguf-split)
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet.blocks import tensor_bytes
from trivet.errors import FileError, GGUFError, InputError
from trivet.formats.common import quoted, same_file, written_aside
from trivet.formats.gguf.place import demand_place
from trivet.formats.gguf.writer import TensorSource, sources_of, stream_gguf

NO, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
KEYS = (NO, COUNT, TENSORS)
MAX_PARTS = 0xFFFF

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.ASCII | re.DOTALL)


def part_name(base: str, number: int, count: int) -> str:
    """
    >>> part_name("model", 1, 5)
    'model-00001-of-00005.gguf'
    """
    return f"{base}-{number:05d}-of-{count:05d}.gguf"


def parts(path: Path, metadata: Mapping[str, Any]) -> list[Path]:
    """The paths of all parts of a file with this metadata; only itself if it is not split.

    Raises GGUFError if it is not the first, or its name does not say where the others are."""
    count = _natural(path, metadata, COUNT, 1, MAX_PARTS)
    if count == 1:
        return [path]
    number = _natural(path, metadata, NO, 0, count - 1)
    match = _NAME.fullmatch(path.name)
    if match is None or (int(match[2]), int(match[3])) != (number + 1, count):
        raise _bad(path, COUNT, f"is {count} and this is part {number + 1}, so its name ends in"
                   f" {part_name('', number + 1, count)}; it was renamed")  # fmt: skip
    names = [part_name(match[1], i, count) for i in range(1, count + 1)]
    if number:
        raise _bad(path, NO, f"is {number}: this is part {number + 1} of {count}; open the first, {names[0]}")
    return [path.with_name(name) for name in names]


def check_part(path: Path, metadata: Mapping[str, Any], number: int, count: int) -> None:
    """Raises GGUFError if a file is not the part that its name says."""
    if _natural(path, metadata, NO, 0, MAX_PARTS) != number:
        raise _bad(path, NO, f"is {metadata.get(NO, 0)}; by its name it is {number}")
    if _natural(path, metadata, COUNT, 1, MAX_PARTS) != count:
        raise _bad(path, COUNT, f"is {metadata.get(COUNT, 1)}; the first part says {count}")


def check_total(path: Path, metadata: Mapping[str, Any], tensors: int) -> None:
    """Raises GGUFError if the parts do not hold as many tensors as the first says."""
    wanted = _natural(path, metadata, TENSORS, 0, 2**31 - 1, tensors)
    if wanted != tensors:
        raise _bad(path, TENSORS, f"is {wanted}; the parts hold {tensors}")


def _natural(
    path: Path, metadata: Mapping[str, Any], key: str, least: int, most: int, default: int | None = None
) -> int:
    value = metadata.get(key, least if default is None else default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _bad(path, key, f"is {value!r:.80}; wanted an integer from {least} to {most}")
    return value


def _bad(path: Path, field: str, found: str) -> GGUFError:
    return GGUFError(f"[gguf] {path}: {field}: {found}")


def write_split(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TensorSource | npt.NDArray[Any]],
    max_bytes: int,
    read: Collection[Path] = (),
) -> list[Path]:
    """Writes a model as parts beside `path`, NAME-00001-of-N.gguf for NAME.gguf, and gives their paths: all
    of them whole, or none. What fits in one part becomes `path` itself.

    metadata, tensors: as for `write_gguf`; tensors keep their order.
    max_bytes: of tensors in a part; a larger tensor has a part to itself.
    read: files that the tensors come from, and no part may be.
    Raises as `write_gguf` does, and InputError for max_bytes below 1, more than 65535 parts, or a part that
    is read, or that would replace a file that is no GGUF file."""
    path = Path(path)
    if max_bytes < 1:
        raise InputError(f"[write_split] max_bytes is {max_bytes}; wanted at least 1")
    groups = grouped(sources_of(tensors), max_bytes)
    count = len(groups)
    if count > MAX_PARTS:
        raise InputError(f"[write_split] {count} parts of {max_bytes} bytes; at most {MAX_PARTS} are allowed")
    if count == 1:
        paths, headers = [path], [dict(metadata)]
    else:
        base = path.name.removesuffix(".gguf")
        paths = [path.with_name(part_name(base, i, count)) for i in range(1, count + 1)]
        headers = [_header(metadata, i, count, len(tensors)) for i in range(count)]
    for part in paths:
        if any(same_file(part, other) for other in read):
            raise InputError(f"[write_split] {part} is a part of the model itself; write somewhere else")
        demand_place("write_split", part, named=False)
    with ExitStack() as stack:  # which ends in reverse: the first part gets its name last
        files = [stack.enter_context(written_aside(part, "write_split")) for part in paths]
        for part, file, header, group in zip(paths, files, headers, groups, strict=True):
            try:
                stream_gguf(file, header, group)
            except OSError as error:  # which the stack would say of the last part
                raise FileError(f"[write_split] {part}: {error.strerror or error}") from error
    return paths


def _header(metadata: Mapping[str, Any], number: int, count: int, tensors: int) -> dict[str, Any]:
    kept = metadata if number == 0 else {k: v for k, v in metadata.items() if k == "general.alignment"}
    if NO in metadata or COUNT in metadata:
        raise InputError(
            f"[write_split] metadata {quoted(NO)} and {quoted(COUNT)} are for write_split to give"
        )
    ours = {NO: np.uint16(number), COUNT: np.uint16(count), TENSORS: np.int32(tensors)}
    return {**kept, **ours}


def grouped(tensors: Mapping[str, TensorSource], max_bytes: int) -> list[dict[str, TensorSource]]:
    """Tensors in order, in as few groups of at most `max_bytes` as that leaves; a larger one stands alone."""
    groups: list[dict[str, TensorSource]] = [{}]
    room = max_bytes
    for name, source in tensors.items():
        nbytes = tensor_bytes(source.dtype, source.shape)
        if nbytes > room and groups[-1]:
            groups.append({})
            room = max_bytes
        groups[-1][name] = source
        room -= nbytes
    return groups
