"""The tokenizer of a Hugging Face folder as GGUF metadata, which the native tokenizer reads.

tokenizer.json is read, else tokenizer.model; tokenizer_config.json and generation_config.json name special
tokens, and chat_template.jinja or tokenizer_config.json hold the chat template. What is not known exactly is
refused: a near miss would give a model text it was not trained on. Truncation and padding, which belong to a
call, and `clean_up_tokenization_spaces`, which loses spaces, are passed over.

Keys beside GGUF's own, written only where they say something:
  trivet.tokenizer.nfc             bool: text is normalised to NFC
  trivet.tokenizer.ignore_merges   bool: a piece that is a token is not merged
  trivet.tokenizer.prepend_scheme  "first" or "always": a space is put before a text, or before every part
                                   between special tokens, unless it begins with one
  trivet.tokenizer.lstrip, rstrip  int32 array: special tokens that take the white space before or after them
  trivet.tokenizer.end_ids         int32 array: tokens that end a reply, beyond the three GGUF has keys for
  tokenizer.ggml.merges            also of a SentencePiece model: pairs, the first to be merged first
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trivet.errors import TokenizerError
from trivet.formats.common import MAX_JSON, json_object, map_file
from trivet.text.hf_json import from_json

MOST_VALUES = 10_000_000  # of a JSON file; Gemma's has two million
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_END_KEYS = ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


def read_folder(folder: Path, n_vocab: int) -> dict[str, Any]:
    """Metadata of a folder's tokenizer and chat template, if it has them, for a model of `n_vocab` rows.

    Raises TokenizerError for files that are not what they claim (the field is named), UnsupportedError for a
    tokenizer of another kind, FileError for one that cannot be read."""
    try:
        return _read(folder, n_vocab)
    except RecursionError:  # of whoever compares, or shows, what the parser had just room for
        raise TokenizerError(f"[tokenizer] a file of {folder} is nested too deep") from None


def _read(folder: Path, n_vocab: int) -> dict[str, Any]:
    config = _object(folder / "tokenizer_config.json") or {}
    template = _chat_template(folder, config)
    if (whole := _object(folder / "tokenizer.json")) is not None:
        found = from_json(whole, n_vocab)
    elif (folder / "tokenizer.model").exists():
        from trivet.text.sentencepiece import from_model  # seldom needed: most folders have both

        found = from_model(_bytes(folder / "tokenizer.model"), _added(folder, config), n_vocab)
        found |= _flags(found, config)
    else:
        return template
    names = {**(_object(folder / "special_tokens_map.json") or {}), **config}
    found |= _named(found, names)
    found |= _ends(found, _object(folder / "generation_config.json") or {})
    if found["tokenizer.ggml.model"] != "gpt2":  # a key that is not there would stand for 1, 2 and 0
        none = {
            f"tokenizer.ggml.{name}_token_id": np.uint32(0xFFFFFFFF) for name in ("bos", "eos", "unknown")
        }
        found = none | found
    return found | template


def _bytes(path: Path) -> bytes:
    data = map_file(path, "tokenizer")
    if len(data) > MAX_JSON:
        raise TokenizerError(f"[tokenizer] {path.name} has {len(data)} bytes; at most {MAX_JSON} are allowed")
    return bytes(data[:])


def _object(path: Path) -> dict[str, Any] | None:
    """A JSON file's object; None if there is no such file."""
    if not path.exists():
        return None
    return json_object(_bytes(path), lambda e: TokenizerError(f"[tokenizer] {path.name} {e}"), MOST_VALUES)


def _chat_template(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return {"tokenizer.chat_template": _bytes(path).decode()}
        except UnicodeDecodeError as error:
            raise TokenizerError(f"[tokenizer] {path.name} is not UTF-8 at byte {error.start}") from None
    source = config.get("chat_template")
    if isinstance(source, list):  # several, by name
        named = [t for t in source if isinstance(t, dict) and t.get("name") == "default"]
        source = named[-1].get("template") if named else None
    if source is None:
        return {}
    if not isinstance(source, str):
        raise TokenizerError(
            f"[tokenizer] tokenizer_config.json: chat_template is {source!r:.60}; wanted a string"
        )
    return {"tokenizer.chat_template": source}


def _added(folder: Path, config: Mapping[str, Any]) -> dict[int, Any]:
    """The tokens added to a tokenizer.model, by id: of added_tokens.json and tokenizer_config.json."""
    older = _object(folder / "added_tokens.json") or {}
    listed = config.get("added_tokens_decoder", {})
    if not isinstance(listed, dict) or not all(k.isdecimal() and len(k) < 10 for k in listed):
        raise TokenizerError(
            "[tokenizer] tokenizer_config.json: added_tokens_decoder is not an object by ids"
        )
    if not all(isinstance(id, int) for id in older.values()):
        raise TokenizerError("[tokenizer] added_tokens.json is not an object of ids")
    return {id: {"content": token} for token, id in older.items()} | {int(k): v for k, v in listed.items()}


def _named(found: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The ids of the special tokens that the configuration names."""
    ids = {token: i for i, token in enumerate(found["tokenizer.ggml.tokens"])}
    said: dict[str, Any] = {}
    for theirs, ours in _SPECIAL.items():
        token = config.get(theirs)
        token = token.get("content") if isinstance(token, dict) else token
        if token is None:
            continue
        if not isinstance(token, str) or token not in ids:
            raise TokenizerError(f"[tokenizer] {theirs} is {token!r:.60}, which is not in the vocabulary")
        key = f"tokenizer.ggml.{ours}_token_id"
        if found.get(key, ids[token]) != ids[token] and found.get(f"tokenizer.ggml.add_{ours}_token"):
            raise TokenizerError(
                f"[tokenizer] {theirs} is {token!r:.60}, but the post_processor adds token {found[key]}"
            )
        said[key] = np.uint32(ids[token])
    return said


def _flags(found: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, bool]:
    """Whether a tokenizer.model's BOS and EOS are added; in tokenizer.json the post_processor says so."""
    return {
        f"tokenizer.ggml.add_{name}_token": added and f"tokenizer.ggml.{name}_token_id" in found
        for name in ("bos", "eos")
        if isinstance(added := config.get(f"add_{name}_token"), bool)
    }


def _ends(found: Mapping[str, Any], generation: Mapping[str, Any]) -> dict[str, Any]:
    """Every token that ends a reply; the tokenizer's own EOS stays the first."""
    listed = generation.get("eos_token_id")
    listed = listed if isinstance(listed, list) else [] if listed is None else [listed]
    n_vocab = len(found["tokenizer.ggml.tokens"])
    for id in listed:
        if isinstance(id, bool) or not isinstance(id, int) or not 0 <= id < n_vocab:
            raise TokenizerError(
                f"[tokenizer] generation_config.json: eos_token_id is {id!r:.40}; allowed: 0 to {n_vocab - 1}"
            )
    ends = list(dict.fromkeys(listed))
    said: dict[str, Any] = {}
    eos = found.get("tokenizer.ggml.eos_token_id")
    if eos is None and ends:
        said["tokenizer.ggml.eos_token_id"] = eos = np.uint32(ends[0])
    rest = [id for id in ends if id != eos]
    said |= {key: np.uint32(id) for key, id in zip(_END_KEYS, rest, strict=False)}
    if len(rest) > len(_END_KEYS):
        said["trivet.tokenizer.end_ids"] = np.array(rest, np.int32)
    return said
