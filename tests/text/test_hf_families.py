"""Every family's tokenizer.json: the ids of Hugging Face's `tokenizers`, the same text back."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import hf_texts
import pytest
from hf_families import FAMILIES
from tokenizers import Tokenizer as Oracle

from trivet.text.hf_json import from_json
from trivet.text.tokenizer import Tokenizer


def rows(whole: dict[str, Any]) -> int:
    return len(whole["model"]["vocab"]) + len(whole["added_tokens"])


def compare(whole: dict[str, Any], texts: list[str]) -> None:
    """Ids with and without special tokens, read and as plain text, and what they decode to."""
    oracle, ours = Oracle.from_str(json.dumps(whole)), Tokenizer.of(from_json(whole, rows(whole)))
    if whole["model"]["type"] == "Unigram":  # theirs finds bytes and special tokens in plain text
        texts = [t for t in texts if "<0x" not in t]
    for parse in (False, True):
        oracle.encode_special_tokens = not parse
        if not parse and whole["model"]["type"] == "Unigram":
            continue
        wanted = oracle.encode_batch(texts, add_special_tokens=parse)
        for text, theirs in zip(texts, wanted, strict=True):
            ids = ours.encode(text, add_special=parse, parse_special=parse)
            assert ids == theirs.ids, text
    added = [token["content"] for token in whole["added_tokens"]]
    for text, theirs in zip(texts, wanted, strict=True):
        # The space before what follows a token in the text is dropped here, and kept there.
        if not ours.add_space_prefix or not any(token in text for token in added):
            assert ours.decode(theirs.ids, skip_special=True) == oracle.decode(theirs.ids), text


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_ids(family: str) -> None:
    compare(FAMILIES[family](), hf_texts.some(1000))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_ids_of_many_texts(family: str) -> None:
    compare(FAMILIES[family](), hf_texts.some(25_000, seed=2))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_character(family: str) -> None:
    """The edges of all runs of a category, the first blocks whole, and a part of the rest."""
    kinds = [unicodedata.category(chr(c)) for c in range(0x110000)]
    edges = [c for c in range(1, 0x110000) if kinds[c] != kinds[c - 1]]
    points = {c + d for c in edges for d in (-1, 0)} | set(range(0x3100)) | set(range(0, 0x110000, 97))
    lines = (f"a{c}1{c}!{c} {c}Z{c}\n{c}'s{c}/{c}{c}" for c in map(chr, points - set(range(0xD800, 0xE000))))
    compare(FAMILIES[family](), list(lines))
