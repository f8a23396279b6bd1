"""A vocabulary as a file states it, token by token, checked, and as GGUF metadata."""

from __future__ import annotations

from typing import Any

import numpy as np

from trivet.errors import TokenizerError

#: tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


class Vocabulary:
    """Tokens of a model that has `n_vocab` rows; `source` is the file that messages name."""

    def __init__(self, n_vocab: int, source: str) -> None:
        self.n_vocab = n_vocab
        self.source = source
        self.ids: dict[str, int] = {}
        self.tokens: dict[int, str] = {}
        self.kinds: dict[int, int] = {}

    def add(self, token: Any, id: Any, kind: int, field: str) -> int:
        """Adds a token, or gives one that is there another kind. Raises TokenizerError."""
        if not isinstance(token, str) or not token:
            raise self.wrong(field, f"is the token {token!r:.60}; wanted a string that is not empty")
        if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < self.n_vocab:
            raise self.wrong(field, f"{token!r:.60} has the id {id!r:.40}; allowed: 0 to {self.n_vocab - 1}")
        if self.tokens.setdefault(id, token) != token:
            raise self.wrong(field, f"{token!r:.60} and {self.tokens[id]!r:.60} both have the id {id}")
        if self.ids.setdefault(token, id) != id:
            raise self.wrong(field, f"{token!r:.60} has the ids {self.ids[token]} and {id}")
        self.kinds[id] = kind
        return id

    def find(self, token: Any, field: str) -> int:
        """The id of a token that must be there."""
        found = self.ids.get(token) if isinstance(token, str) else None
        if found is None:
            raise self.wrong(field, f"is {token!r:.60}, which is not in the vocabulary")
        return found

    def wrong(self, field: str, problem: str) -> TokenizerError:
        return TokenizerError(f"[tokenizer] {self.source}: {field}: {problem}")

    def metadata(self) -> dict[str, Any]:
        """Tokens and their kinds; ids that the file leaves out are padding, as other programs write it."""
        if not self.tokens:
            raise self.wrong("vocab", "has no tokens")
        tokens = [self.tokens.get(i, f"[PAD{i}]") for i in range(self.n_vocab)]
        if len(self.ids) + (self.n_vocab - len(self.tokens)) != len(set(tokens)):
            raise self.wrong("vocab", "has a token that is spelled like padding, [PAD…]")
        try:
            "".join(tokens).encode()
        except UnicodeEncodeError as error:
            raise self.wrong("vocab", f"a token has no UTF-8 form: {error.reason}") from None
        kinds = [self.kinds.get(i, UNUSED) for i in range(self.n_vocab)]
        return {
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        }
