"""Damaged and unknown tokenizer.json files: a typed error that names the field."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hf_families import FAMILIES, NFC, token
from test_hf_families import rows

from trivet.errors import FileError, TokenizerError, UnsupportedError
from trivet.text.hf_json import from_json
from trivet.text.hf_reader import read_folder

Change = Callable[[dict[str, Any]], Any]
AT = "tokenizer.json: "


def put(*path: Any, value: Any) -> Change:
    """Sets a part."""

    def change(whole: dict[str, Any]) -> None:
        for key in path[:-1]:
            whole = whole[key]
        whole[path[-1]] = value

    return change


def more(*path: Any, value: Any) -> Change:
    """Appends to a list."""

    def change(whole: dict[str, Any]) -> None:
        for key in path:
            whole = whole[key]
        whole.append(value)

    return change


WRONG: dict[str, tuple[str, Change, str]] = {
    "no model": ("gpt2", put("model", value=None), "model: is null; wanted an object"),
    "no vocab": ("gpt2", put("model", "vocab", value=[]), r"model\.vocab: is \[\]; wanted an object"),
    "id too large": ("gpt2", put("model", "vocab", "x1", value=2**40), f"'x1' has the id {2**40}"),
    "negative id": ("gpt2", put("model", "vocab", "x1", value=-1), "'x1' has the id -1"),
    "id no number": ("gpt2", put("model", "vocab", "x1", value="7"), "'x1' has the id '7'"),
    "id true": ("gpt2", put("model", "vocab", "x1", value=True), "'x1' has the id True"),
    "id twice": ("gpt2", put("model", "vocab", "x1", value=0), "'x1' and '!' both have the id 0"),
    "empty token": ("gpt2", put("model", "vocab", "", value=300), "is the token ''"),
    "surrogate": ("gpt2", put("model", "vocab", "\ud800", value=9000), "has no UTF-8 form"),
    "spelled as padding": ("gpt2", put("model", "vocab", "[PAD9001]", value=9000), "spelled like padding"),
    "merges no list": ("gpt2", put("model", "merges", value={}), r"model\.merges: is {}"),
    "merge of one": ("gpt2", more("model", "merges", value=["a"]), r"model\.merges\[\d+\]: is \[\"a\"\]"),
    "merge of three": ("gpt2", more("model", "merges", value="a b c"), 'is "a b c"; wanted two tokens'),
    "merge of nothing": ("gpt2", more("model", "merges", value=["", "a"]), "wanted two tokens"),
    "unknown merge": ("gpt2", more("model", "merges", value=["a", "日"]), "names '日', which is no token"),
    "merge in a cycle": ("gpt2", more("model", "merges", value=["a" * 9, "a"]), "which is no token to merge"),
    "merge again": (
        "gpt2",
        lambda w: w["model"]["merges"].append(w["model"]["merges"][5]),
        "is merge 5 already",
    ),
    "added no list": ("gpt2", put("added_tokens", value={"a": 1}), "added_tokens: is a dict"),
    "added no object": ("gpt2", more("added_tokens", value=7), r"added_tokens\[1\]: is not an object"),
    "added elsewhere": ("gpt2", put("added_tokens", 0, "id", value=0), "both have the id 0"),
    "added flag": ("gpt2", put("added_tokens", 0, "lstrip", value="no"), "flags that are true or false"),
    "special unknown": (
        "llama3",
        put("post_processor", "processors", 1, "special_tokens", value={}),
        "does not have one id",
    ),
    "special far": (
        "llama2",
        put("post_processor", "special_tokens", "<s>", "ids", value=[10**6]),
        "has the id 1000000",
    ),
    "unigram no list": ("unigram", put("model", "vocab", value={}), "is not a list"),
    "score no number": ("unigram", put("model", "vocab", 9, 1, value="x"), r"model\.vocab\[9\]: is"),
    "score NaN": ("unigram", put("model", "vocab", 9, 1, value=float("nan")), "has the score nan"),
    "score beyond float": (
        "unigram",
        put("model", "vocab", 9, 1, value=10**400),
        r"has the score 10{40}.*; wanted a number of float32",
    ),
    "score infinite": ("unigram", put("model", "vocab", 9, 1, value=1e39), "has the score 1e.39"),
    "unk a list": ("unigram", put("model", "unk_id", value=[]), r"unk_id: is \[\], which is no id"),
    "unk true": ("unigram", put("model", "unk_id", value=True), "unk_id: is true, which is no id"),
    "special a float": (
        "llama2",
        put("post_processor", "special_tokens", "<s>", "ids", value=[1.0]),
        r"has the id 1\.0",
    ),
    "unk far": ("unigram", put("model", "unk_id", value=10**7), "unk_id: is 10000000"),
    "unk not there": ("llama2", put("model", "unk_token", value="<nothing>"), "unk_token: is '<nothing>'"),
}

UNKNOWN: dict[str, tuple[str, Change, str]] = {
    "WordPiece": ("gpt2", put("model", "type", value="WordPiece"), r'model\.type is "WordPiece"; known'),
    "dropout": ("gpt2", put("model", "dropout", value=0.1), r"model\.dropout .*: 0\.1"),
    "subword prefix": ("gpt2", put("model", "continuing_subword_prefix", value="##"), "continuing_subword"),
    "NFKC": ("gpt2", put("normalizer", value={"type": "NFKC"}), 'normalizer .*: {"type": "NFKC"}'),
    "lower case": ("llama2", put("normalizer", value={"type": "Lowercase"}), "normalizer .*Lowercase"),
    "NFC and more": (
        "qwen2",
        put("normalizer", value={"type": "Sequence", "normalizers": [NFC, {"type": "StripAccents"}]}),
        "StripAccents",
    ),
    "another expression": (
        "qwen2",
        put("pre_tokenizer", "pretokenizers", 0, "pattern", "Regex", value=r"\w+"),
        r"pre_tokenizer .*w\+",
    ),
    "another order": (
        "smollm2",
        lambda w: w["pre_tokenizer"]["pretokenizers"].reverse(),
        "pre_tokenizer is not one that trivet knows",
    ),
    "prefix space": ("gpt2", put("pre_tokenizer", "add_prefix_space", value=True), "pre_tokenizer"),
    "behaviour": (
        "qwen2",
        put("pre_tokenizer", "pretokenizers", 0, "behavior", value="MergedWithNext"),
        "MergedWithNext",
    ),
    "split at spaces": ("mistral-v3", put("pre_tokenizer", "split", value=True), "pre_tokenizer .*Metaspace"),
    "decoder": ("gpt2", put("decoder", value={"type": "WordPiece"}), "decoder .*WordPiece"),
    "decoder of characters": ("gemma", put("decoder", value=None), "decoder .*: null"),
    "BERT's ends": ("gpt2", put("post_processor", value={"type": "BertProcessing"}), "BertProcessing"),
    "processor a list": ("gpt2", put("post_processor", value=[1]), r"post_processor .*: \[1\]"),
    "long and normalized": (
        "gpt2",
        lambda w: w["added_tokens"].extend(
            [
                {**token("x" + "a" * 300_000 + "x"), "id": 9000, "normalized": True},
                {**token("y" + "a" * 300_000 + "y"), "id": 9001},
            ]
        ),
        "one of too many that normalized tokens could overlap",
    ),
    "single word": (
        "gpt2",
        put("added_tokens", 0, "single_word", value=True),
        "'<|endoftext|>' is single_word",
    ),
    "normalized letters": ("gpt-neox", put("added_tokens", 0, "normalized", value=True), "is normalized"),
    "normalized and not": (
        "gpt2",
        more("added_tokens", value={**token("t|>x"), "id": 9000}),
        r"overlaps 't\|>x', which is not",
    ),
    "strips over spaces": (
        "phi3",
        more("added_tokens", value={**token("  ", special=False), "id": 9000}),
        "has white space at its ends",
    ),
    "score of float64": ("unigram-unk", put("model", "vocab", 5, 1, value=-1.1), "float32 cannot hold"),
    "bytes for nothing": ("llama2", put("model", "byte_fallback", value=False), "no byte_fallback"),
}


def changed(family: str, change: Change) -> dict[str, Any]:
    whole = copy.deepcopy(FAMILIES[family]())
    change(whole)
    return whole


@pytest.mark.parametrize("case", WRONG)
def test_wrong(case: str) -> None:
    family, change, problem = WRONG[case]
    with pytest.raises(TokenizerError, match=problem) as error:
        from_json(changed(family, change), 10_000)
    assert AT in str(error.value)


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown(case: str) -> None:
    family, change, problem = UNKNOWN[case]
    with pytest.raises(UnsupportedError, match=problem) as error:
        from_json(changed(family, change), 10_000)
    assert AT in str(error.value)


def test_more_tokens_than_rows() -> None:
    whole = FAMILIES["gpt2"]()
    with pytest.raises(TokenizerError, match=f"allowed: 0 to {rows(whole) - 2}"):
        from_json(whole, rows(whole) - 1)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("tokenizer.json", "{", "tokenizer.json is not JSON"),
        ("tokenizer.json", "[" * 100_000, "tokenizer.json is not JSON"),
        ("tokenizer.json", "[]", "tokenizer.json is a list, not an object"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 0, "a": 1}}}', "'a' appears twice"),
        (
            "tokenizer.json",
            '{"model": {"type": "BPE", "vocab": {"\\ud800": 0}, "merges": []}}',
            "surrogates",
        ),
        ("tokenizer_config.json", '{"chat_template": 7}', "chat_template is 7"),
        (
            "tokenizer_config.json",
            '{"chat_template": [{"name": []}, {"name": "default", "template": 7}]}',
            "chat_template is 7",
        ),
        ("tokenizer_config.json", '{"bos_token": ["a"]}', "bos_token is"),
        ("generation_config.json", '{"eos_token_id": [-1]}', "eos_token_id is -1"),
        ("generation_config.json", '{"eos_token_id": "2"}', "eos_token_id is '2'"),
        ("special_tokens_map.json", "7", "special_tokens_map.json is a int"),
    ],
)
def test_files_of_a_folder(name: str, text: str, problem: str, tmp_path: Path) -> None:
    whole = FAMILIES["gpt2"]()
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole), "utf-8")
    (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises((TokenizerError, UnsupportedError), match=problem):
        read_folder(tmp_path, rows(whole))


@pytest.mark.parametrize(
    "field", ["normalizer", "pre_tokenizer", "decoder", "post_processor", "added_tokens"]
)
def test_any_depth(field: str, tmp_path: Path) -> None:
    """Whatever depth the parser just takes, whoever looks at it later may have less room."""
    whole = FAMILIES["gpt2"]()
    for depth in range(900, 1001, 2):
        value: Any = []
        for _ in range(depth):
            value = [value]
        try:
            (tmp_path / "tokenizer.json").write_text(json.dumps({**whole, field: value}), "utf-8")
        except RecursionError:
            return
        with pytest.raises((TokenizerError, UnsupportedError)):
            read_folder(tmp_path, rows(whole))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model", "chat_template.jinja"])
def test_a_pipe_in_a_folder(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(FileError, match=f"{name}: is not a regular file"):
        read_folder(tmp_path, 300)


@pytest.mark.parametrize("field", [b"\x0a\x00", b"\x40\x00"])
def test_a_tokenizer_model_of_very_many_fields(field: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(field * 1_000_000)
    with pytest.raises(TokenizerError, match="more than 2000 fields for a model of 999 tokens"):
        read_folder(tmp_path, 999)
