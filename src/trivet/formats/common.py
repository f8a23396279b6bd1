"""What the file formats share: tensor records, mapping a file, and writing one aside."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from trivet.dtypes import DType
from trivet.errors import FileError

#: No file may claim more elements: eight bytes of each still have a signed 64-bit size, as NumPy demands
#: of a shape, counting a dimension of zero as one.
MAX_ELEMENTS = 2**60 - 1


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a file. `shape` is row-major; `offset` counts bytes from the start of the file."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class UnsupportedTensor:
    """A tensor of a type its format defines and trivet does not read; `type_name` says which."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


AnyTensor: TypeAlias = TensorInfo | UnsupportedTensor


def overlap(tensors: Iterable[AnyTensor]) -> tuple[AnyTensor, AnyTensor] | None:
    """The first two tensors that share a byte, if any do."""
    ordered = sorted((t for t in tensors if t.nbytes), key=lambda t: t.offset)
    for before, after in itertools.pairwise(ordered):
        if after.offset < before.offset + before.nbytes:
            return before, after
    return None


def quoted(text: str, limit: int = 80) -> str:
    """A name from a file, fit for one line of a message."""
    return repr(text if len(text) <= limit else text[:limit] + "…")


def map_file(path: Path, call: str) -> mmap.mmap | bytes:
    """The file's bytes, mapped read-only (b"" for an empty file, which cannot be mapped)."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for a writer
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise FileError(f"[{call}] {path}: is {kind}")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if status.st_size else b""
    except (OSError, ValueError) as error:  # ValueError: a path with a null character, or emptied just now
        if isinstance(error, FileError):
            raise
        raise FileError(f"[{call}] {path}: {getattr(error, 'strerror', None) or error}") from error


@contextlib.contextmanager
def written_aside(path: Path, call: str) -> Iterator[BinaryIO]:
    """A file that becomes `path` when the block ends, whole and synced, or, on any error, never existed."""
    path = Path(os.path.realpath(path))  # a link stays, and what it points to is written
    if not path.name or (path.exists() and not path.is_file()):  # renaming over a device would remove it
        raise FileError(f"[{call}] {path}: is a folder, or not a regular file")
    aside = path.with_name(f".{path.name}.{os.urandom(6).hex()}.partial")
    try:
        with aside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        raise FileError(f"[{call}] {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
