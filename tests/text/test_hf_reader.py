"""Folders of Hugging Face files: the tokenizer, the special tokens and the chat template they name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizer_tables as tables
from hf_families import FAMILIES
from test_hf_families import rows
from test_sentencepiece import KINDS, trained

from trivet.errors import TokenizerError
from trivet.text.hf_reader import read_folder
from trivet.text.tokenizer import Tokenizer

ROWS = 710  # of a model; the tokenizer has fewer tokens


def folder(path: Path, pre: str, **files: Any) -> Path:
    """A folder with a trained tokenizer.json and these files."""
    oracle = tables.train_bpe(pre)
    (path / "tokenizer.json").write_text(oracle.to_str(), "utf-8")
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value), "utf-8")
    return path


@pytest.mark.parametrize("pre", tables.PRE_TOKENIZERS)
def test_the_same_ids(pre: str, tmp_path: Path) -> None:
    ours = Tokenizer.of(read_folder(folder(tmp_path, pre), ROWS))
    oracle = tables.train_bpe(pre)
    for text in (*tables.corpus(), f"one{tables.SPECIAL}two<user> 12345", "", " \n\n x", "I'll WE'VE é"):
        assert ours.encode(text, parse_special=True) == oracle.encode(text).ids
        assert ours.decode(ours.encode(text)) == text
    assert ours.n_vocab == ROWS
    assert ours.token(ROWS - 1) == f"[PAD{ROWS - 1}]"


def test_special_tokens_and_template(tmp_path: Path) -> None:
    config = {"eos_token": {"content": tables.SPECIAL}, "bos_token": "a", "chat_template": "{{ x }}"}
    made = folder(tmp_path, "gpt2", tokenizer_config=config, generation_config={"eos_token_id": [5, 6, 7]})
    metadata = read_folder(made, ROWS)
    ours = Tokenizer.of(metadata)
    end = ours.find(tables.SPECIAL)
    assert (ours.eos_token, ours.bos_token, ours.add_bos) == (tables.SPECIAL, "a", False)
    assert ours.end_ids >= {end, 5, 6}
    assert metadata["tokenizer.chat_template"] == "{{ x }}"
    (tmp_path / "chat_template.jinja").write_text("{{ y }}", "utf-8")
    assert read_folder(made, ROWS)["tokenizer.chat_template"] == "{{ y }}"


def test_names_that_are_not_there(tmp_path: Path) -> None:
    made = folder(tmp_path, "gpt2", tokenizer_config={"eos_token": "<|nowhere|>"})
    with pytest.raises(TokenizerError, match=r"eos_token is '<\|nowhere\|>'"):
        read_folder(made, ROWS)
    made = folder(tmp_path, "gpt2", tokenizer_config={}, generation_config={"eos_token_id": [ROWS]})
    with pytest.raises(TokenizerError, match=rf"eos_token_id is {ROWS}; allowed: 0 to {ROWS - 1}"):
        read_folder(made, ROWS)
    assert read_folder(tmp_path / "empty", ROWS) == {}


@pytest.mark.parametrize("family", ["llama3", "smollm3", "llama2"])
def test_what_is_added_is_what_transformers_adds(family: str, tmp_path: Path) -> None:
    """The post_processor decides, whatever the configuration says."""
    from transformers import PreTrainedTokenizerFast

    whole = FAMILIES[family]()
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole), "utf-8")
    for flag in (True, False):
        config = {"add_bos_token": flag, "bos_token": "<s>" if family == "llama2" else "<|begin_of_text|>"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
        theirs = PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
        ours = Tokenizer.of(read_folder(tmp_path, rows(whole)))
        assert ours.encode("hello", add_special=True) == theirs("hello").input_ids


def test_a_sentencepiece_model(tmp_path: Path) -> None:
    data = trained(**KINDS["bpe"])
    (tmp_path / "tokenizer.model").write_bytes(data)
    (tmp_path / "added_tokens.json").write_text('{"<|im_end|>": 1000}', "utf-8")
    config = {
        "added_tokens_decoder": {"1000": {"content": "<|im_end|>", "special": True}},
        "eos_token": "<|im_end|>",
        "add_bos_token": False,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    ours = Tokenizer.of(read_folder(tmp_path, 1100))
    ids = sentencepiece.SentencePieceProcessor(model_proto=data).encode("a text")
    assert ours.encode("a text<|im_end|>", add_special=True, parse_special=True) == [*ids, 1000]
    assert (ours.eos_id, ours.n_vocab) == (1000, 1100)
