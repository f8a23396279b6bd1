"""The tokenizer of a GGUF file as Hugging Face's tokenizer.json and tokenizer_config.json; byte-level BPE."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trivet.errors import TokenizerError, UnsupportedError

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}


def _split(digits: str) -> list[dict[str, Any]]:
    pattern = {"Regex": _WORDS % digits}
    return [
        {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False},
        {**_BYTES, "use_regex": False},
    ]


#: tokenizer.ggml.pre -> how a text is cut before the merges
_STEPS = {
    "default": [_BYTES],
    "gpt-2": [_BYTES],
    "gpt2": [_BYTES],
    "llama-bpe": _split("{1,3}"),
    "llama3": _split("{1,3}"),
    "qwen2": _split(""),
    "smollm": [_DIGITS, _BYTES],
    "starcoder": [_DIGITS, _BYTES],
}
_WHOLE = ("llama-bpe", "llama3")  # a word that is a token is not merged
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the two files by name.

    Raises UnsupportedError for a tokenizer that is no byte-level BPE of a known kind, TokenizerError for
    tables that are missing."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or pre not in _STEPS:
        raise UnsupportedError(
            f"[merge] the tokenizer ({kind}, {pre}) is not written for Hugging Face: take the base's own"
        )
    tokens, merges = (_strings(metadata, f"tokenizer.ggml.{name}") for name in ("tokens", "merges"))
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": pre in _WHOLE,
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": [merge.split(" ", 1) for merge in merges],
    }
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(metadata, tokens),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _STEPS[pre]},
        "post_processor": _post(metadata, tokens),
        "decoder": _BYTES,
        "model": model,
    }
    return {
        "tokenizer.json": json.dumps(whole, ensure_ascii=False),
        "tokenizer_config.json": json.dumps(_config(metadata, tokens), ensure_ascii=False, indent=2) + "\n",
    }


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise TokenizerError(f"[merge] metadata {key} is not a list of strings")
    return value


def _added(metadata: Mapping[str, Any], tokens: list[str]) -> list[dict[str, Any]]:
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    return [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": int(kind) == _CONTROL,
        }
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if int(kind) in (_CONTROL, _USER_DEFINED)
    ]


def _token(metadata: Mapping[str, Any], tokens: list[str], name: str) -> str | None:
    """The token of an id that the metadata gives, bos say."""
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return tokens[value] if isinstance(value, int) and 0 <= value < len(tokens) else None


def _post(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    bos = _token(metadata, tokens, "bos")
    if bos is None or not metadata.get("tokenizer.ggml.add_bos_token"):
        return {**_BYTES, "add_prefix_space": True}
    special = {"id": bos, "ids": [tokens.index(bos)], "tokens": [bos]}
    first, text = {"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: special},
    }


def _config(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    for theirs, ours in _SPECIAL.items():
        if (token := _token(metadata, tokens, ours)) is not None:
            config[theirs] = token
    if isinstance(metadata.get("tokenizer.chat_template"), str):
        config["chat_template"] = metadata["tokenizer.chat_template"]
    return config
