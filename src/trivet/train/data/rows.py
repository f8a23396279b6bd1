"""Training files, row by row: JSONL of four formats, and plain text.

    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    {"prompt": "2 + 2 =", "completion": " 4"}
    {"instruction": "Add.", "input": "2 and 2", "output": "4"}      ("input" may be absent)
    {"text": "Once upon a time"}

A file has one format: the first that its first row fits, in the order above. A plain text file is one
document, handed out in pieces that are split, packed and trained apart. A row that cannot be used comes out
as a `Refused`, with its line and the reason, and reading goes on: what it means is the caller's business.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from trivet.errors import FileError, InputError

#: format -> the fields that a row must have; those after the bar may be absent.
FORMATS = {
    "messages": (("messages",), ("tools",)),
    "completion": (("prompt", "completion"), ()),
    "instruction": (("instruction", "output"), ("input",)),
    "text": (("text",), ()),
}
REQUIRED = {name for required, _ in FORMATS.values() for name in required}
PLAIN = "plain"  # a plain text file
ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_LINE = 64 << 20  # bytes of one line
PIECE = 16384  # characters of a plain text file's pieces, about
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True)
class Row:
    """One checked row. `format` is a key of FORMATS; `opens` and `closes` are False for a piece of plain text
    that another piece stands before, or after."""

    line: int
    format: str
    fields: Mapping[str, Any]
    opens: bool = True
    closes: bool = True

    @cached_property
    def canonical(self) -> bytes:
        """The same bytes for the same fields, however the file orders and spaces them."""
        return json.dumps(self.fields, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that cannot be used, and why."""

    line: int
    reason: str


class _Bad(Exception):
    """The reason why a row is refused, on its way up."""


@dataclass
class RowFile:
    """A training file. Iterate over it once, or again: each time it is read anew."""

    path: Path
    format: str = "auto"
    columns: Mapping[str, str] = field(default_factory=dict)
    piece: int = PIECE
    sha256: str = ""  # of the bytes last read

    def __post_init__(self) -> None:
        self.path = Path(self.path)
        if self.format not in ("auto", PLAIN, *FORMATS):
            wanted = ", ".join(("auto", PLAIN, *FORMATS))
            raise InputError(f"[data] format {self.format!r}; wanted one of: {wanted}")
        known = {name for required, optional in FORMATS.values() for name in required + optional}
        for name in self.columns:
            if name not in known:
                raise InputError(f"[data] columns name {name!r}; the fields are: {', '.join(sorted(known))}")

    def __iter__(self) -> Iterator[Row | Refused]:
        """Rows in order. Raises FileError if the file cannot be read."""
        try:
            if (
                self.path.exists() and not self.path.is_file() and not self.path.is_dir()
            ):  # a pipe or a device may have no end
                raise FileError(f"[data] {self.path} is not a regular file")
            with self.path.open("rb") as file:
                self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                file.seek(0)
                if file.read(3) != codecs.BOM_UTF8:
                    file.seek(0)
                yield from self._plain(file) if self._is_plain(file) else self._json(file)
        except OSError as error:
            raise FileError(f"[data] {self.path}: {error.strerror or error}") from None

    def _is_plain(self, file: BinaryIO) -> bool:
        """Whether to read plain text: as told, by the suffix, or by the first character."""
        if self.format != "auto":
            return self.format == PLAIN
        if self.path.suffix.lower() in JSON_SUFFIXES:
            return False
        begin = file.tell()
        plain = not file.read(4096).lstrip().startswith(b'{"')
        file.seek(begin)
        return plain

    def _json(self, file: BinaryIO) -> Iterator[Row | Refused]:
        format = None if self.format == "auto" else self.format
        for number, line in _lines(file):
            try:
                if line is None:
                    raise _Bad(f"the line is longer than {MAX_LINE} bytes")
                row = self._row(number, _object(line), format)
                format = row.format
                yield row
            except _Bad as bad:
                yield Refused(number, str(bad))

    def _row(self, line: int, raw: Mapping[str, Any], format: str | None) -> Row:
        wanted = FORMATS[format][0] if format is not None else REQUIRED
        for name, column in self.columns.items():
            if column not in raw and name in wanted:
                raise _Bad(f"no column {column!r}, which stands for {name!r}")
        renamed = {name: raw[column] for name, column in self.columns.items() if column in raw}
        found = {**raw, **renamed}
        if format is None:
            format = _detect(found)
        required, optional = FORMATS[format]
        missing = [name for name in required if name not in found]
        if missing:
            others = [other for other, (names, _) in FORMATS.items() if all(n in found for n in names)]
            also = f"; it has the fields of {others[0]!r}, the file is {format!r}" if others else ""
            raise _Bad(f"no field {missing[0]!r}{also}")
        fields = {name: found[name] for name in required + optional if found.get(name) is not None}
        row = Row(line, format, fields)
        _check(row)
        return row

    def _plain(self, file: BinaryIO) -> Iterator[Row | Refused]:
        """The document in pieces, cut where a line ends and the next does not begin with white space: there
        byte-level tokenizers cut, too. (SentencePiece ones put their space before each piece.)"""
        line, first, held, begin = 0, True, "", 1
        for line, data in _lines(file, keep_blank=True):
            if data is None:
                raise FileError(f"[data] {self.path} line {line} is longer than {MAX_LINE} bytes")
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise FileError(f"[data] {self.path} line {line} is not UTF-8: {_byte(error)}") from None
            if len(held) >= self.piece and not text[:1].isspace():
                yield Row(begin, "text", {"text": held}, opens=first, closes=False)
                first, held, begin = False, "", line
            held += text
        if held:
            yield Row(begin, "text", {"text": held}, opens=first, closes=True)


def _lines(file: BinaryIO, keep_blank: bool = False) -> Iterator[tuple[int, bytes | None]]:
    """Lines with their numbers from 1; None in place of one that is too long, which is not kept in memory."""
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        too_long = len(line) > MAX_LINE
        while too_long and line and not line.endswith(b"\n"):
            line = file.readline(1 << 20)
        if keep_blank or too_long or line.strip():
            yield number, None if too_long else line


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise _Bad(f"not UTF-8: {_byte(error)}") from None
    except json.JSONDecodeError as error:
        raise _Bad(f"invalid JSON: {error.msg} at character {error.pos + 1}") from None
    except (RecursionError, ValueError) as error:
        deep = isinstance(error, RecursionError)
        raise _Bad(f"invalid JSON: {'nested too deep' if deep else error}") from None
    if not isinstance(value, dict):
        raise _Bad(f"a {_kind(value)}; wanted one JSON object a line")
    return value


def _byte(error: UnicodeDecodeError) -> str:
    return f"byte {error.start} is {error.object[error.start]:#04x}"


def _no_constant(name: str) -> NoReturn:
    raise _Bad(f"invalid JSON: {name} is no number")


def _detect(fields: Mapping[str, Any]) -> str:
    for format, (required, _) in FORMATS.items():
        if all(name in fields for name in required):
            return format
    has = ", ".join(repr(name)[:40] for name in list(fields)[:8]) or "nothing"
    wanted = "; ".join(" and ".join(required) for required, _ in FORMATS.values())
    raise _Bad(f"the row has {has}; wanted one of: {wanted} (columns can be mapped)")


def _check(row: Row) -> None:
    if row.format == "messages":
        _check_messages(row.fields.get("messages"))
        if not isinstance(row.fields.get("tools", []), list):
            raise _Bad(f"'tools' is a {_kind(row.fields['tools'])}; wanted a list")
    else:
        for name in FORMATS[row.format][0] + FORMATS[row.format][1]:
            value = row.fields.get(name, "")
            if not isinstance(value, str):
                raise _Bad(f"{name!r} is a {_kind(value)}; wanted text")
        for name in FORMATS[row.format][0]:
            if row.fields.get(name) is None:
                raise _Bad(f"{name!r} is null; wanted text")
        if row.format == "text" and not row.fields["text"]:
            raise _Bad("'text' is empty")
    try:
        _ = row.canonical
    except UnicodeEncodeError:
        raise _Bad("a text has a lone surrogate, which UTF-8 cannot express") from None
    except RecursionError:
        raise _Bad("nested too deep") from None


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list):
        raise _Bad(f"'messages' is a {_kind(messages)}; wanted a list")
    if not messages:
        raise _Bad("the conversation is empty")
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _Bad(f"message {i} is a {_kind(message)}; wanted an object with a role and a content")
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise _Bad(f"message {i} has the role {_short(role)}; known: {', '.join(ROLES)}")
        calls = role == "assistant" and message.get("tool_calls")
        if not isinstance(content, str) and not (content is None and calls):
            raise _Bad(f"message {i} has a content that is a {_kind(content)}; wanted text")


def _kind(value: Any) -> str:
    names = {dict: "JSON object", list: "list", str: "text", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:37] + "..."
