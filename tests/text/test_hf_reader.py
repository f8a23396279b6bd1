"""Folders of Hugging Face files: the tokenizer, the special tokens and the chat template they name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizer_tables as tables

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
