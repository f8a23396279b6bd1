"""Reading numbers, strings and metadata values one after another out of a mapped GGUF header.

Nothing is allocated before the file is known to hold it, and every failure names the field.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np

from trivet.errors import GGUFError
from trivet.formats.gguf.types import MAX_DEPTH, MAX_INNER, SCALARS, Value

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALAR = {kind: struct.Struct("<" + code) for kind, code in zip(SCALARS, "BbHhIif?Qqd", strict=True)}
# The fewest bytes an element of an array can take: a string its length, an array its type and count.
_LEAST = {kind: dtype.itemsize for kind, dtype in SCALARS.items()} | {Value.STRING: 8, Value.ARRAY: 12}


class Later(NamedTuple):
    """A value that is made when it is asked for."""

    make: Callable[[], Any]


class Cursor:
    """A position in the bytes of a file."""

    def __init__(self, data: mmap.mmap | bytes, label: str) -> None:
        self.data = data
        self.size = len(data)
        self.label = label
        self.at = 0
        self.inner = 0  # arrays inside arrays so far

    def fail(self, field: str, found: str) -> NoReturn:
        raise GGUFError(f"[gguf] {self.label}: {field}: {found}")

    def need(self, nbytes: int, field: str) -> int:
        """The position of the next `nbytes` bytes, which are passed over."""
        at = self.at
        if nbytes > self.size - at:
            self.fail(field, f"needs {nbytes} bytes at offset {at}, the file has {self.size - at} more")
        self.at = at + nbytes
        return at

    def u32(self, field: str) -> int:
        value: int = _U32.unpack_from(self.data, self.need(4, field))[0]
        return value

    def u64(self, field: str) -> int:
        value: int = _U64.unpack_from(self.data, self.need(8, field))[0]
        return value

    def count(self, field: str, least: int) -> int:
        """A number of things of at least `least` bytes each: no more than the rest of the file can hold."""
        count = self.u64(field)
        limit = (self.size - self.at) // least
        if count > limit:
            self.fail(field, f"is {count}, the rest of the file has room for at most {limit}")
        return count

    def string(self, field: str) -> str:
        length = self.count(f"{field} length", 1)
        at = self.need(length, field)
        try:
            return str(self.data[at : at + length], "utf-8")
        except UnicodeDecodeError as error:
            self.fail(field, f"is not UTF-8 at byte {error.start}: {error.reason}")

    def value(self, kind: int, field: str, depth: int = 0) -> Any:
        """A metadata value: int, float, bool, str, a NumPy array, or a list of strings or of arrays."""
        if kind == Value.STRING:
            return self.string(field)
        if kind == Value.ARRAY:
            return self._array(field, depth)
        if kind not in SCALARS:
            self.fail(field, f"has type {kind}; metadata types are 0 to {max(Value)}")
        scalar = _SCALAR[kind]
        at = self.need(scalar.size, field)
        if kind == Value.BOOL and self.data[at] > 1:
            self.fail(field, f"is a bool of value {self.data[at]}; 0 and 1 are allowed")
        return scalar.unpack_from(self.data, at)[0]

    def _array(self, field: str, depth: int) -> Any:
        kind = self.u32(f"{field} element type")
        if kind not in _LEAST:
            self.fail(f"{field} element type", f"is {kind}; metadata types are 0 to {max(Value)}")
        if depth == MAX_DEPTH:
            self.fail(field, f"nests arrays deeper than {MAX_DEPTH}")
        count = self.count(f"{field} array length", _LEAST[kind])
        if kind == Value.STRING:
            return self._strings_made(count, field) if depth else self._strings(count, field)
        if kind == Value.ARRAY:
            self.inner += count
            if self.inner > MAX_INNER:
                self.fail(field, f"makes {self.inner} arrays inside arrays; at most {MAX_INNER} are allowed")
            return [self._array(f"{field}[{i}]", depth + 1) for i in range(count)]
        return self._numbers(kind, count, field)

    def _numbers(self, kind: int, count: int, field: str) -> np.ndarray[Any, Any]:
        dtype = SCALARS[kind]
        at = self.need(count * dtype.itemsize, field)
        raw = np.frombuffer(self.data, np.uint8, count * dtype.itemsize, at)
        if kind == Value.BOOL and (raw > 1).any():
            self.fail(field, f"holds a bool of value {raw.max()}; 0 and 1 are allowed")
        if dtype.itemsize == 1:
            return raw.view(dtype)  # a view of the map: plans and other blobs can be large
        array = raw.view(dtype).astype(dtype.newbyteorder("="))  # a copy, aligned
        array.flags.writeable = False
        return array

    def _strings(self, count: int, field: str) -> list[str] | Later:
        """Vocabularies have some 10⁵ strings: they are checked here, and made when they are asked for."""
        data, at, unpack = self.data, self.at, _U64.unpack_from
        cuts = [at - 8]  # lengths whose first byte is not ASCII
        try:
            for _ in range(count):
                length = unpack(data, at)[0]
                if length & 0x80:
                    cuts.append(at)
                at += 8 + length
            if at > self.size:
                return self._strings_made(count, field)
            # What lies between two cuts is UTF-8 only if each of its strings is: an ASCII byte follows each.
            for start, stop in pairwise([*cuts, at]):
                str(data[start + 8 : stop], "utf-8")
        except (struct.error, OverflowError, UnicodeDecodeError):
            return self._strings_made(count, field)
        start, self.at = self.at, at
        return Later(partial(Cursor(data, self.label)._strings_at, start, count, field))

    def _strings_at(self, at: int, count: int, field: str) -> list[str]:
        self.at = at
        return self._strings_made(count, field)

    def _strings_made(self, count: int, field: str) -> list[str]:
        """This is `string` written out in one loop."""
        data, size, at, unpack = self.data, self.size, self.at, _U64.unpack_from
        strings: list[str] = []
        try:
            for _ in range(count):
                start = at + 8
                if start > size:
                    break
                at = start + unpack(data, at)[0]
                if at > size:
                    break
                strings.append(str(data[start:at], "utf-8"))
        except UnicodeDecodeError as error:
            self.fail(f"{field}[{len(strings)}]", f"is not UTF-8 at byte {error.start}: {error.reason}")
        if len(strings) < count:
            self.fail(f"{field}[{len(strings)}]", f"ends at byte {max(at, start)}, the file has {size}")
        self.at = at
        return strings
