"""A tokenizer, of a GGUF file or of metadata like one's. The native core does the work: see
native/src/text/tokenizer.h."""

from __future__ import annotations

import ctypes
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from trivet import _native as core
from trivet import arguments
from trivet.errors import InputError, TokenizerError
from trivet.formats.gguf import write_gguf


class Tokenizer:
    """Text to token ids and back. Never changes: threads may share one."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        """Takes over a tv_tokenizer; use `Tokenizer.open`."""
        self._handle = handle
        weakref.finalize(self, core.tv_tokenizer_free, handle)
        info = core.tv_tokenizer_info(struct_size=ctypes.sizeof(core.tv_tokenizer_info))
        core.tv_tokenizer_get_info(handle, ctypes.byref(info))
        #: "gpt2" (byte-level BPE), "llama" (SentencePiece BPE) or "t5" (its unigram model), and the
        #: pre-tokeniser's name.
        self.model: str = info.model.decode()
        self.pre: str = info.pre.decode()
        self.n_vocab: int = info.n_vocab
        self.bos_id = _optional(info.bos_id)
        self.eos_id = _optional(info.eos_id)
        self.unk_id = _optional(info.unk_id)
        self.pad_id = _optional(info.pad_id)
        #: What `add_special` adds, and whether a space is put before a text.
        self.add_bos = bool(info.add_bos)
        self.add_eos = bool(info.add_eos)
        self.add_space_prefix = bool(info.add_space_prefix)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """The tokenizer of a GGUF file, which is mapped, not read.

        Raises FileError if it cannot be opened, GGUFError or TokenizerError if it is not what it claims to
        be (the field is named), UnsupportedError for a kind of tokenizer trivet does not have."""
        handle = ctypes.c_void_p()
        core.tv_tokenizer_open(os.fsencode(path), ctypes.byref(handle))
        return cls(handle)

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer that metadata under GGUF's keys describes; errors as `open`.

        >>> from trivet.text import train_bpe
        >>> Tokenizer.of(train_bpe.metadata([])).decode([39, 72])
        'Hi'
        """
        with tempfile.TemporaryDirectory(prefix="trivet-") as folder:
            path = Path(folder) / "tokenizer.gguf"
            write_gguf(path, metadata, {})
            return cls.open(path)  # mapped: the file may go

    def encode(
        self,
        text: str,
        add_special: bool = False,
        parse_special: bool = False,
        literal: Sequence[tuple[int, int]] = (),
    ) -> list[int]:
        """Ids of a text. `add_special`: with the BOS and EOS the file asks for. `parse_special`: text that
        spells a control token becomes that token, except in the `literal` spans of its UTF-8 bytes, which
        are in order and apart.

        Raises InputError for a text that UTF-8 cannot express (lone surrogates)."""
        data = _utf8(text)
        flags = add_special * core.TV_ADD_SPECIAL | parse_special * core.TV_PARSE_SPECIAL
        spans = (core.tv_span * len(literal))(*(core.tv_span(begin, end) for begin, end in literal))
        needed = ctypes.c_size_t(len(data) + 8)
        while True:  # a second time only where spaces fall back to bytes
            ids = (ctypes.c_int32 * needed.value)()
            capacity = needed.value
            status = core.library().tv_tokenizer_encode_literal(
                self._handle, data, len(data), flags, spans, len(spans), ids, capacity, ctypes.byref(needed)
            )
            if status != core.TV_CAPACITY:
                core._check(status)
                return ids[: needed.value]

    def decode(self, ids: Iterable[int], skip_special: bool = False, continuation: bool = False) -> str:
        """Text of ids. `skip_special`: control tokens give none. `continuation`: the ids continue a text, so
        a first space is kept where `encode` would have put it. Bytes that are not UTF-8 become U+FFFD.

        Raises TokenizerError for an id that does not exist."""
        array, flags = self._array(ids), _decode_flags(skip_special, continuation)
        return _filled(core.tv_tokenizer_decode, self._handle, array, len(array), flags).decode()

    def token_bytes(self, id: int) -> bytes:
        """The bytes a token stands for; they need not be whole characters. Raises TokenizerError."""
        return _filled(core.tv_tokenizer_token_bytes, self._handle, _id(id))

    def token(self, id: int) -> str:
        """A token as the file spells it (byte-level, or with U+2581 for spaces). Raises TokenizerError."""
        info = self._info(id)
        return ctypes.string_at(info.text, info.text_size).decode("utf-8", "replace")

    @property
    def bos_token(self) -> str:
        """BOS as the file spells it, as chat templates want it; empty if there is none."""
        return "" if self.bos_id is None else self.token(self.bos_id)

    @property
    def eos_token(self) -> str:
        """The same of EOS."""
        return "" if self.eos_id is None else self.token(self.eos_id)

    def is_special(self, id: int) -> bool:
        """Whether a token is a control or unknown token. Raises TokenizerError."""
        return self._info(id).kind in (core.TV_TOKEN_CONTROL, core.TV_TOKEN_UNKNOWN)

    def find(self, text: str) -> int | None:
        """The token that the file spells so, or None."""
        data = _utf8(text)
        found = ctypes.c_int32()
        core.tv_tokenizer_find(self._handle, data, len(data), ctypes.byref(found))
        return _optional(found.value)

    @cached_property
    def nfc(self) -> bool:
        """Whether a text is normalised to NFC before it is encoded, so that `decode` may give another one."""
        return self.model == "gpt2" and self.decode(self.encode("e\u0301")) == "\u00e9"

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """The ids that end a reply: EOS, end of turn and their like."""
        needed = ctypes.c_size_t()
        core.tv_tokenizer_get_ends(self._handle, None, 0, ctypes.byref(needed))
        ids = (ctypes.c_int32 * needed.value)()
        core.tv_tokenizer_get_ends(self._handle, ids, needed.value, ctypes.byref(needed))
        return frozenset(ids)

    def stream(self, skip_special: bool = False, continuation: bool = True) -> TokenStream:
        """A streaming decoder, for ids that continue a text unless `continuation` is False."""
        handle = ctypes.c_void_p()
        flags = _decode_flags(skip_special, continuation)
        core.tv_tokenizer_stream_open(self._handle, flags, ctypes.byref(handle))
        return TokenStream(handle)

    def _info(self, id: int) -> Any:
        info = core.tv_token_info(struct_size=ctypes.sizeof(core.tv_token_info))
        core.tv_tokenizer_get_token(self._handle, _id(id), ctypes.byref(info))
        return info

    def _array(self, ids: Iterable[int]) -> ctypes.Array[ctypes.c_int32]:
        checked = [_id(i) for i in arguments.integers(ids, "[tokenizer] ids")]
        return (ctypes.c_int32 * len(checked))(*checked)


class TokenStream:
    """Ids in, whole characters out: put together, what it gives is `decode` of all the ids."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        weakref.finalize(self, core.tv_tokenizer_stream_free, handle)
        self._text = ctypes.POINTER(ctypes.c_char)()
        self._size = ctypes.c_size_t()

    def push(self, id: int) -> str:
        """The text that can be shown after this id; maybe none yet. Raises TokenizerError."""
        return self._call(core.tv_tokenizer_stream_push, _id(id))

    def flush(self) -> str:
        """Ends the text: what was held back of an unfinished character comes out as U+FFFD."""
        return self._call(core.tv_tokenizer_stream_flush)

    def _call(self, function: Callable[..., None], *arguments: int) -> str:
        function(self._handle, *arguments, ctypes.byref(self._text), ctypes.byref(self._size))
        return ctypes.string_at(self._text, self._size.value).decode()


def _optional(id: int) -> int | None:
    return None if id < 0 else id


def _id(id: int) -> int:
    """An id that fits the C type; the core checks the vocabulary's own bounds."""
    id = arguments.integer(id, "[tokenizer] token id")
    if not -(2**31) <= id < 2**31:
        raise TokenizerError(f"[tokenizer] token id {id} is in no vocabulary")
    return id


def _decode_flags(skip_special: bool, continuation: bool) -> int:
    return skip_special * core.TV_SKIP_SPECIAL | continuation * core.TV_CONTINUATION


def _utf8(text: str) -> bytes:
    try:
        return arguments.text(text, "[tokenizer] the text").encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"[tokenizer] the text has a lone surrogate at character {error.start}; UTF-8 has none"
        ) from None


def _filled(function: Callable[..., None], *arguments: Any) -> bytes:
    """Asks for the size, then for the bytes."""
    needed = ctypes.c_size_t()
    function(*arguments, None, 0, ctypes.byref(needed))
    buffer = ctypes.create_string_buffer(max(needed.value, 1))
    function(*arguments, buffer, needed.value, ctypes.byref(needed))
    return buffer.raw[: needed.value]
