"""tokenizer.model, SentencePiece's file, as GGUF metadata; see hf_reader.

It is a protocol buffer: fields, each a varint `number << 3 | wire type`, then a varint (wire type 0), eight
bytes (1), a varint length and so many bytes (2), or four bytes (5). Those that are read:

  1  piece, repeated           3  normalizer_spec              5  denormalizer_spec, as 3
     1  text                      1  name
     2  score, float32            2  precompiled_charsmap
     3  type: 1 normal,           3  add_dummy_prefix, true
        2 unknown, 3 control,     4  remove_extra_whitespaces, true
        4 user-defined,           5  escape_whitespaces, true
        5 unused, 6 byte
  2  trainer_spec
     3  model_type: 1 unigram, 2 BPE          24  treat_whitespace_as_suffix
     40 unk_id, 0   41 bos_id, 1   42 eos_id, 2   43 pad_id, -1
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from trivet.errors import TokenizerError, UnsupportedError
from trivet.text.vocabulary import CONTROL, NORMAL, UNUSED, USER_DEFINED, Vocabulary

_FILE = "tokenizer.model"
_MOST_OTHERS = 1000  # fields that are no pieces
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_MODELS = {1: "t5", 2: "llama"}
_SPECIAL = {"unknown": (40, 0), "bos": (41, 1), "eos": (42, 2), "padding": (43, -1)}
Field: TypeAlias = int | bytes


def from_model(data: bytes, added: Mapping[int, Any], n_vocab: int) -> dict[str, Any]:
    """Metadata of the file's bytes, with the tokens that other files add to it by id.

    Raises TokenizerError for bytes that are not what they claim (the field is named), UnsupportedError for a
    kind or a normaliser that is not known."""
    vocabulary = Vocabulary(n_vocab, _FILE)
    parts: dict[int, list[bytes]] = {1: [], 2: [], 3: [], 5: []}
    for i, (number, value) in enumerate(_fields(data, "the file")):
        if i > n_vocab + _MOST_OTHERS:
            raise _wrong("the file", f"has more than {i} fields for a model of {n_vocab} tokens")
        if number in parts:
            parts[number].append(_blob(value, f"field {number}"))
    trainer, normalizer = (_last(b"".join(parts[n]), f"field {n}") for n in (2, 3))
    model = _MODELS.get(_integer(trainer, 3, 1))
    if model is None:
        raise UnsupportedError(f"[tokenizer] {_FILE}: trainer_spec.model_type is {trainer[3]!r}; known: 1, 2")
    if _integer(trainer, 24, 0):
        raise UnsupportedError(f"[tokenizer] {_FILE}: trainer_spec.treat_whitespace_as_suffix is set")
    _check_normalizer(normalizer, _last(b"".join(parts[5]), "field 5"))
    scores = np.zeros(n_vocab, np.float32)
    for id, piece in enumerate(parts[1]):
        scores[_add_piece(vocabulary, id, piece)] = _score(piece, id)
    for id, token in added.items():
        _add_token(vocabulary, id, token)
    return {
        **vocabulary.metadata(),
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.add_space_prefix": bool(_integer(normalizer, 3, 1)),
        "tokenizer.ggml.add_bos_token": _named(vocabulary, trainer, "bos") is not None and model == "llama",
        "tokenizer.ggml.add_eos_token": False,
        **_special(vocabulary, trainer),
    }


def _fields(data: bytes, field: str) -> Iterator[tuple[int, Field]]:
    """The fields of a message: number and value."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at, field)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at, field)
            yield number, value
            continue
        size = {_EIGHT: 8, _FOUR: 4}.get(kind)
        if kind == _BYTES:
            size, at = _varint(data, at, field)
        if size is None:
            raise _wrong(field, f"has wire type {kind} at byte {at}")
        if size > len(data) - at:
            raise _wrong(
                field, f"ends within its field {number}: {size} bytes of {len(data) - at} that are left"
            )
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int, field: str) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value & (2**64 - 1), at + i + 1
    raise _wrong(field, f"has a number at byte {at} that does not end")


def _last(data: bytes, field: str) -> dict[int, Field]:
    """Of fields that occur once, the last counts."""
    return dict(_fields(data, field))


def _wrong(field: str, problem: str) -> TokenizerError:
    return TokenizerError(f"[tokenizer] {_FILE}: {field} {problem}")


def _blob(value: Field, field: str) -> bytes:
    if not isinstance(value, bytes):
        raise _wrong(field, f"is the number {value}; wanted bytes")
    return value


def _integer(message: Mapping[int, Field], number: int, otherwise: int) -> int:
    """A signed 32-bit field; the wire has negative ones as 64 bits."""
    value = message.get(number, otherwise)
    if not isinstance(value, int):
        raise _wrong(f"field {number}", "is not a varint")
    return value - 2**64 if value >= 2**63 else value


def _check_normalizer(spec: Mapping[int, Field], inverse: Mapping[int, Field]) -> None:
    name = _blob(spec.get(1, b""), "normalizer_spec.name").decode("utf-8", "replace")
    if spec.get(2) or inverse.get(2):
        raise UnsupportedError(f"[tokenizer] {_FILE}: the normalizer {name!r:.60} (a precompiled_charsmap)")
    if _integer(spec, 4, 1):
        raise UnsupportedError(f"[tokenizer] {_FILE}: normalizer_spec.remove_extra_whitespaces is set")
    if not _integer(spec, 5, 1):
        raise UnsupportedError(f"[tokenizer] {_FILE}: normalizer_spec.escape_whitespaces is not set")


def _add_piece(vocabulary: Vocabulary, id: int, data: bytes) -> int:
    field = f"piece {id}"
    piece = _last(data, field)
    kind = _integer(piece, 3, NORMAL)
    try:
        text = _blob(piece.get(1, b""), field).decode()
    except UnicodeDecodeError as error:
        raise _wrong(field, f"is not UTF-8 at byte {error.start}") from None
    if not 1 <= kind <= 6:
        raise _wrong(field, f"has the type {kind}; allowed: 1 to 6")
    if kind == UNUSED or (kind == USER_DEFINED and "\u2581" in text):
        raise UnsupportedError(f"[tokenizer] {_FILE}: {field}, {text!r:.60}, has the type {kind}")
    return vocabulary.add(text, id, kind, field)


def _score(data: bytes, id: int) -> float:
    raw = _last(data, f"piece {id}").get(2, b"\0\0\0\0")
    if not isinstance(raw, bytes) or len(raw) != 4:
        raise _wrong(f"piece {id}", "has a score that is not a float32")
    (score,) = struct.unpack("<f", raw)
    if not math.isfinite(score):
        raise _wrong(f"piece {id}", f"has the score {score}; wanted a finite number")
    return float(score)


def _add_token(vocabulary: Vocabulary, id: int, token: Any) -> None:
    field = f"added token {id}"
    if not isinstance(token, dict):
        raise _wrong(field, f"is {token!r:.60}; wanted an object")
    for flag in ("lstrip", "rstrip", "single_word"):
        if token.get(flag):
            raise UnsupportedError(f"[tokenizer] {_FILE}: {field}, {token.get('content')!r:.60}, is {flag}")
    if vocabulary.tokens.get(id) != token.get("content"):
        vocabulary.add(token.get("content"), id, CONTROL if token.get("special") else USER_DEFINED, field)


def _named(vocabulary: Vocabulary, trainer: Mapping[int, Field], name: str) -> int | None:
    """The id of a special token, or None where the file has none."""
    number, otherwise = _SPECIAL[name]
    id = _integer(trainer, number, otherwise)
    if id >= 0 and id not in vocabulary.tokens:
        raise _wrong(f"trainer_spec field {number}", f"is {id}; the vocabulary has no such id")
    return id if id >= 0 else None


def _special(vocabulary: Vocabulary, trainer: Mapping[int, Field]) -> dict[str, Any]:
    ids = {name: _named(vocabulary, trainer, name) for name in _SPECIAL}
    return {f"tokenizer.ggml.{name}_token_id": np.uint32(i) for name, i in ids.items() if i is not None}
