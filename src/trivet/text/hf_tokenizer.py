"""GGUF metadata as Hugging Face's tokenizer.json and tokenizer_config.json: the inverse of hf_reader."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from trivet.errors import TokenizerError, UnsupportedError
from trivet.text import families
from trivet.text.hf_added import LSTRIP, RSTRIP
from trivet.text.hf_json import FUSED, PREPEND, PREPEND_SCHEME, REPLACE, SPACE, STRIP
from trivet.text.tokenizer import Tokenizer
from trivet.text.vocabulary import BYTE, CONTROL, UNKNOWN, UNUSED, USER_DEFINED

_KEYS = ("tokenizer.ggml.", "trivet.tokenizer.", "general.architecture")
_SPECIAL = {"bos_token": "bos_id", "eos_token": "eos_id", "unk_token": "unk_id", "pad_token": "pad_id"}


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the files by name: tokenizer.json, tokenizer_config.json and generation_config.json.

    A SentencePiece model without merges merges by scores. The merges written for it give the same ids but,
    maybe, where overlapping pairs make one token, as in runs of a letter: there the leftmost goes first here,
    and that of the earlier merge in Hugging Face's library.
    Raises UnsupportedError for a tokenizer of a kind that is not known, TokenizerError for tables that are
    missing or wrong."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if kind not in ("gpt2", "llama", "t5") or (kind == "gpt2" and families.family(metadata) is None):
        raise UnsupportedError(
            f"[tokenizer] the tokenizer ({kind}, {pre}) is not written for Hugging Face: take the base's own"
        )
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    if kind == "gpt2":
        _strings(metadata, "tokenizer.ggml.merges")
    known = Tokenizer.of({k: v for k, v in metadata.items() if k.startswith(_KEYS)})  # and its defaults
    kinds = [int(k) for k in metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))]
    parts = (
        _byte_level(metadata, tokens, kinds) if kind == "gpt2" else _spaced(metadata, known, tokens, kinds)
    )
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(metadata, known, tokens, kinds),
        **parts,
    }
    if known.add_bos or known.add_eos:
        whole["post_processor"] = _template(known)
    files = {
        "tokenizer.json": json.dumps(whole, ensure_ascii=False),
        "tokenizer_config.json": _page(_config(metadata, known)),
    }
    if generation := _generation(known):
        files["generation_config.json"] = _page(generation)
    return files


def _page(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _generation(known: Tokenizer) -> dict[str, Any]:
    """What generating begins and ends with: every token that ends a reply, EOS first."""
    ends = sorted(known.end_ids, key=lambda id: (id != known.eos_id, id))
    said = {"bos_token_id": known.bos_id, "eos_token_id": ends if len(ends) > 1 else next(iter(ends), None)}
    return {key: value for key, value in said.items() if value is not None}


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if isinstance(value, np.ndarray) and value.dtype.kind == "U":
        value = value.tolist()
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise TokenizerError(f"[tokenizer] metadata {key} is not a list of strings")
    return value


def _vocab(tokens: list[str], kinds: list[int]) -> dict[str, int]:
    """Ids by token, without padding."""
    padding = {f"[PAD{i}]" for i, kind in enumerate(kinds) if kind == UNUSED} | {""}
    return {token: i for i, token in enumerate(tokens) if token not in padding}


def _bpe(vocab: dict[str, int], merges: list[list[str]], **said: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {**usual, **said, "vocab": vocab, "merges": merges}


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], kinds: list[int]) -> dict[str, Any]:
    family = families.family(metadata) or families.FAMILIES["gpt-2"]
    merges = [merge.split(" ", 1) for merge in _strings(metadata, "tokenizer.ggml.merges")]
    return {
        "normalizer": {"type": "NFC"} if family.nfc else None,
        "pre_tokenizer": families.pre_tokenizer(family.chain),
        "post_processor": {**families.byte_level(), "add_prefix_space": True},
        "decoder": families.byte_level(),
        "model": _bpe(_vocab(tokens, kinds), merges, ignore_merges=family.whole),
    }


def _spaced(
    metadata: Mapping[str, Any], known: Tokenizer, tokens: list[str], kinds: list[int]
) -> dict[str, Any]:
    """SentencePiece's two models."""
    scheme = metadata.get(PREPEND_SCHEME)
    steps = [PREPEND, REPLACE] if known.add_space_prefix else [REPLACE]
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
    cuts = scheme is not None and known.add_space_prefix
    fallback = BYTE in kinds
    scores = [float(s) for s in metadata["tokenizer.ggml.scores"]]
    if known.model == "t5":
        used = max(i for i, kind in enumerate(kinds) if kind != UNUSED) + 1
        vocab = list(zip(tokens[:used], scores[:used], strict=True))
        model = {"type": "Unigram", "unk_id": known.unk_id, "vocab": vocab, "byte_fallback": fallback}
    else:
        ids = _vocab(tokens, kinds)
        unknown = None if known.unk_id is None else tokens[known.unk_id]
        merges = _merges(metadata, ids, kinds, scores)
        model = _bpe(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=fallback)
    return {
        "normalizer": None if cuts else {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": metaspace if cuts else None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [*FUSED, *([STRIP] if known.add_space_prefix else [])]},
        "model": model,
    }


def _merges(
    metadata: Mapping[str, Any], ids: dict[str, int], kinds: list[int], scores: list[float]
) -> list[list[str]]:
    """The merges of the file, or all pairs of tokens that make a token, by its score; of those that make the
    same one, that of the longest left token comes first, as Hugging Face's own conversion has it."""
    if "tokenizer.ggml.merges" in metadata:
        return [merge.split(" ", 1) for merge in _strings(metadata, "tokenizer.ggml.merges")]
    usable = {t for t, i in ids.items() if kinds[i] not in (UNKNOWN, CONTROL, BYTE) and " " not in t}
    pairs = [
        (-scores[ids[token]], -cut, token[:cut], token[cut:])
        for token in usable
        for cut in range(1, len(token))
        if token[:cut] in usable and token[cut:] in usable
    ]
    return [[left, right] for _, _, left, right in sorted(pairs)]


def _added(
    metadata: Mapping[str, Any], known: Tokenizer, tokens: list[str], kinds: list[int]
) -> list[dict[str, Any]]:
    left, right = ({int(i) for i in metadata.get(key, ())} for key in (LSTRIP, RSTRIP))
    if known.model == "llama" and metadata.get("general.architecture") == "phi3" and RSTRIP not in metadata:
        plain = ("<unk>", "<s>", "<|endoftext|>")  # as the native vocabulary has it
        right = {i for i, t in enumerate(tokens) if kinds[i] in (CONTROL, UNKNOWN) and t not in plain}
    return [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": i in left,
            "rstrip": i in right,
            "normalized": False,
            "special": kind != USER_DEFINED,
        }
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (CONTROL, USER_DEFINED, UNKNOWN) and token
    ]


def _template(known: Tokenizer) -> dict[str, Any]:
    """Adds BOS and EOS."""
    text, second = ({"Sequence": {"id": n, "type_id": t}} for t, n in enumerate("AB"))
    wanted = (known.bos_id if known.add_bos else None, known.eos_id if known.add_eos else None)
    ids = {known.token(id): id for id in wanted if id is not None}
    before, after = (
        [] if id is None else [{"SpecialToken": {"id": known.token(id), "type_id": 0}}] for id in wanted
    )
    single, pair = [*before, text, *after], [*before, text, *after, second]
    special = {token: {"id": token, "ids": [id], "tokens": [token]} for token, id in ids.items()}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


def _config(metadata: Mapping[str, Any], known: Tokenizer) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    for theirs, ours in _SPECIAL.items():
        id = getattr(known, ours)
        if id is not None:
            config[theirs] = known.token(id)
    if isinstance(metadata.get("tokenizer.chat_template"), str):
        config["chat_template"] = metadata["tokenizer.chat_template"]
    return config
