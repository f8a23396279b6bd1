"""Text to ids, with the place of every token in the text's bytes.

Where a reply begins the ids begin anew, as they do when the model is given what stands before and writes the
rest: "\\n" that ends a prompt and "\\n" that begins a reply never become one token. (SentencePiece tokenizers
that put a space before each text are the exception: there the whole is encoded at once, and a token that
reaches over the border belongs to the reply.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trivet.errors import TokenizerError
from trivet.text.tokenizer import Tokenizer

Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Ids, and where each one's bytes end in the text."""

    ids: list[int]
    ends: list[int]


class Encoder:
    """Encodes for one tokenizer; remembers the size of its tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._bytes: dict[int, bytes] = {}

    def encode(
        self, text: bytes, breaks: Sequence[int] = (), literal: Spans = (), parse_special: bool = False
    ) -> Encoded:
        """`breaks`: bytes where the ids begin anew, rising. `literal`: spans that stay plain text."""
        cuts = [] if self.tokenizer.add_space_prefix else [at for at in breaks if 0 < at < len(text)]
        ids: list[int] = []
        for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            inside = _clip(literal, begin, end)
            part = text[begin:end].decode("utf-8", "surrogatepass")
            ids += self.tokenizer.encode(part, parse_special=parse_special, literal=inside)
        return Encoded(ids, self._ends(ids, text))

    def _ends(self, ids: list[int], text: bytes) -> list[int]:
        """Raises TokenizerError if the tokens are not the text: what it cannot spell has no place."""
        at, ends = 0, []
        for id in ids:
            data = self._bytes.get(id)
            if data is None:
                data = self._bytes[id] = self.tokenizer.token_bytes(id)
            if not text.startswith(data, at) and self.tokenizer.add_space_prefix:
                data = data.removeprefix(b" ")
            if not text.startswith(data, at):
                break
            at += len(data)
            ends.append(at)
        if at != len(text) or len(ends) != len(ids):
            near = text[at : at + 12].decode("utf-8", "replace")
            raise TokenizerError(f"[data] the tokenizer has no token for {near!r} at byte {at} of the text")
        return ends


def _clip(spans: Spans, begin: int, end: int) -> list[tuple[int, int]]:
    return [(max(a, begin) - begin, min(b, end) - begin) for a, b in spans if a < end and b > begin]
