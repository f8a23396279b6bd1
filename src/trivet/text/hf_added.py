"""The added_tokens of tokenizer.json: cut out of a text before anything else; see hf_reader.

A token marked `normalized` is looked for in normalised text, and after those that are not. It is taken where
that comes to the same: where normalising neither makes nor breaks it, and no other overlaps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trivet.errors import UnsupportedError
from trivet.text.vocabulary import CONTROL, USER_DEFINED, Vocabulary

LSTRIP, RSTRIP = "trivet.tokenizer.lstrip", "trivet.tokenizer.rstrip"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
#: what NFC makes of nothing else and joins to nothing
_NFC_PROOF = frozenset(" \t\n\r!\"#$%&'()*+,-./0123456789:?@[\\]^_{|}~")
_MOST_COMPARED = 1 << 24  # characters of one times characters of the other, of all pairs together


def add_tokens(whole: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """Adds them, and gives the metadata that says which take white space. Raises TokenizerError, or
    UnsupportedError for a token whose flags ask for what is not known."""
    listed = whole.get("added_tokens") or []
    if not isinstance(listed, list):
        raise vocabulary.wrong("added_tokens", f"is a {type(listed).__name__}; wanted a list")
    flagged: dict[str, list[str]] = {flag: [] for flag in _FLAGS}
    contents: list[str] = []
    for i, token in enumerate(listed):
        field = f"added_tokens[{i}]"
        if not isinstance(token, dict) or not all(isinstance(token.get(f, False), bool) for f in _FLAGS):
            raise vocabulary.wrong(field, "is not an object with flags that are true or false")
        kind = CONTROL if token.get("special") else USER_DEFINED
        vocabulary.add(token.get("content"), token.get("id"), kind, field)
        contents.append(token["content"])
        for flag in _FLAGS:
            if token.get(flag):
                flagged[flag].append(token["content"])
    if flagged["single_word"]:
        raise _unsupported(flagged["single_word"][0], "is single_word")
    _check_normalized(flagged["normalized"], contents, whole.get("normalizer"))
    strips = {*flagged["lstrip"], *flagged["rstrip"]}
    spaced = [t for t in contents if t[0].isspace() or t[-1].isspace()]
    if strips and spaced:
        raise _unsupported(spaced[0], "has white space at its ends, which others take")
    return {
        key: np.array(sorted(vocabulary.ids[t] for t in flagged[flag]), np.int32)
        for key, flag in ((LSTRIP, "lstrip"), (RSTRIP, "rstrip"))
        if flagged[flag]
    }


def _check_normalized(normalized: list[str], contents: list[str], normalizer: Any) -> None:
    marked = set(normalized)
    for token in normalized:
        if normalizer is not None and not set(token) <= _NFC_PROOF:
            raise _unsupported(token, "is normalized, and the normalizer could change it or its surroundings")
        if normalizer not in (None, {"type": "NFC"}) and " " in token:
            raise _unsupported(token, "is normalized, and the normalizer replaces spaces")
    letters = {c for token in normalized for c in token}
    others = [t for t in contents if t not in marked and not letters.isdisjoint(t)]
    if sum(map(len, others)) * sum(map(len, normalized)) > _MOST_COMPARED:
        raise _unsupported(others[0], "is one of too many that normalized tokens could overlap")
    for token in normalized:
        for other in others:
            if _overlap(token, other):
                raise _unsupported(token, f"is normalized, and overlaps {other!r}, which is not")


def _overlap(a: str, b: str) -> bool:
    """Whether some text holds both with a character in common."""
    ends = any(a.endswith(b[:n]) or b.endswith(a[:n]) for n in range(1, min(len(a), len(b)) + 1))
    return ends or a in b or b in a


def _unsupported(token: str, problem: str) -> UnsupportedError:
    return UnsupportedError(f"[tokenizer] tokenizer.json: the added token {token!r:.60} {problem}")
