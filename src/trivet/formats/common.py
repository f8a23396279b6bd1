"""What the file formats share: tensor records, mapping a file, its JSON, and writing one aside."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import mmap
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from trivet.dtypes import DType
from trivet.errors import FileError, TrivetError

#: No file may claim more elements: eight bytes of each still have a signed 64-bit size, as NumPy demands
#: of a shape, counting a dimension of zero as one.
MAX_ELEMENTS = 2**60 - 1
#: bytes of a JSON text, as the safetensors package has it, and values in it, each of which takes far more
#: memory than its bytes: enough for a quarter of a million tensors
MAX_JSON = 100_000_000
MAX_JSON_VALUES = 2_000_000
#: bytes of a text that is held whole, while its tokens take some times as much
MAX_TEXT = 1 << 28


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


def demand_whole(data: mmap.mmap | bytes, path: Path) -> None:
    """Raises FileError if a mapped file is shorter now: reading the rest would end the process."""
    if isinstance(data, mmap.mmap) and (size := data.size()) < len(data):
        raise FileError(f"[read] {path} was cut short while it was open: it has {size} of {len(data)} bytes")


def read_text(call: str, path: Path) -> str:
    """A text file, or a pipe to its end: UTF-8, of at most MAX_TEXT bytes. Raises FileError."""
    try:
        with path.open("rb") as file:
            return decoded(file, f"[{call}] {path}")
    except FileError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise FileError(f"[{call}] {path}: {getattr(error, 'strerror', None) or error}") from None


def decoded(file: BinaryIO, what: str) -> str:
    """What is left in a file, which may be one without an end, as text; `what` begins the messages."""
    size = os.fstat(file.fileno()).st_size
    data = b"" if size > MAX_TEXT else file.read(MAX_TEXT + 1)
    if max(size, len(data)) > MAX_TEXT:
        raise FileError(f"{what} has more than {MAX_TEXT} bytes, the most a text may have; give a part of it")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(what, error) from None


def not_utf8(what: str, error: UnicodeDecodeError) -> FileError:
    """The error to raise where `what` ought to be text."""
    return FileError(f"{what} is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}")


def json_object(
    data: mmap.mmap | bytes, fail: Callable[[str], TrivetError], most_values: int = MAX_JSON_VALUES
) -> dict[str, Any]:
    """A JSON object in which no key appears twice; `fail` makes an error of what was found wrong."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
            raise fail(f"{quoted(twice)} appears twice")
        return found

    if len(data) > MAX_JSON:
        raise fail(f"has {len(data)} bytes; at most {MAX_JSON} are allowed")
    text = bytes(data[:])
    values = sum(map(text.count, (b",", b"[", b"{")))  # one of these, or a key, stands before each value
    if values > most_values:
        raise fail(f"holds some {values} values; at most {most_values} are allowed")
    try:
        parsed = json.loads(text.decode(), object_pairs_hook=once)
        if b"\\ud" in text or b"\\uD" in text:
            json.dumps(parsed, ensure_ascii=False).encode()  # raises for half of a surrogate pair
    except TrivetError:
        raise
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, too many digits, too deep
        raise fail(f"is not JSON: {str(error)[:120]}") from error
    if not isinstance(parsed, dict):
        raise fail(f"is a {type(parsed).__name__}, not an object")
    return parsed


def same_file(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> bool:
    """Whether two paths are one file, by whatever links, or would be if it were there."""
    if os.path.realpath(a) == os.path.realpath(b):
        return True
    return os.path.exists(a) and os.path.exists(b) and os.path.samefile(a, b)


@contextlib.contextmanager
def written_aside(path: Path, call: str) -> Iterator[BinaryIO]:
    """A file that becomes `path` when the block ends, whole and synced, or, on any error, never existed."""
    path = Path(os.path.realpath(path))  # a link stays, and what it points to is written
    if not path.name or (
        os.path.exists(path) and not path.is_file()
    ):  # renaming over a device would remove it
        raise FileError(f"[{call}] {path}: is a folder, or not a regular file")
    sweep(path.parent, path.name)
    aside = None
    try:
        aside, file = _aside(path)
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            aside.replace(path)
    except OSError as error:
        raise FileError(f"[{call}] {path}: {error.strerror or error}") from error
    finally:
        if aside is not None:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)


#: a file being written aside: its name, and a number that tells writers apart
_PARTIAL = re.compile(r"\.(.+)\.[0-9a-f]{12}\.partial", re.ASCII | re.DOTALL)


def _aside(path: Path) -> tuple[Path, BinaryIO]:
    """A new file beside `path`, locked, so that others see its writer is alive."""
    while True:
        aside = path.with_name(f".{path.name}.{os.urandom(6).hex()}.partial")
        file = aside.open("xb")
        try:
            with contextlib.suppress(OSError):  # a file system without locks: nobody sweeps there
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:  # else it was swept before it was locked
                return aside, file
        except BaseException:
            aside.unlink(missing_ok=True)
            file.close()
            raise
        file.close()


def sweep(folder: Path, name: str | None = None) -> None:
    """Removes what processes that were killed left of a file written aside in a folder, or of any file."""
    with contextlib.suppress(OSError):  # what matters will be said when the file is written
        for left in os.listdir(folder):
            match = _PARTIAL.fullmatch(left)
            if match and name in (None, match[1]):
                _remove_left(folder / left)


def _remove_left(path: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(handle).st_mode):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its writer lives
                path.unlink()
        finally:
            os.close(handle)
