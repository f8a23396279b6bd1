"""Tokenizers with each model family's exact structure, over small vocabularies made here.

The vocabularies are made to show differences. Byte-level merges are learnt from text that was not cut, so
that they cross every place where a family cuts; and the last byte of any character merges with the first of
any other, so that a cut between two characters, or none, always shows.
"""

from __future__ import annotations

import functools
import json
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
from tokenizer_tables import CORPUS
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from trivet.text import families

SPACE = "\u2581"
LEADS = [*range(0xC2, 0xF5)]
TRAILS = [*range(0x80, 0xC0)]
SPOKEN = [ord(c) for c in "aZ1!' \n\r/\t$"]  # one of each kind in ASCII


@functools.cache
def code() -> str:
    """Text with words, numbers, indentation: part of the standard library."""
    folder = Path(sysconfig.get_path("stdlib"))
    return "".join((folder / name).read_text("utf-8") for name in ("ast.py", "calendar.py", "textwrap.py"))


@functools.cache
def lines() -> list[str]:
    return [*(code() + CORPUS * 4).splitlines(keepends=True)]


@functools.cache
def byte_model() -> dict[str, Any]:
    """The vocabulary and merges of a BPE model over bytes; see the top."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    joined = ["".join(lines()[i : i + 4]) for i in range(0, len(lines()), 4)]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=1200, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(joined, trainer)
    model: dict[str, Any] = json.loads(made.to_str())["model"]
    spelled = dict(zip(_bytes_in_order(), _spelling(), strict=True))
    ends, begins = [*SPOKEN, *TRAILS], [*SPOKEN, *LEADS]
    merges = {tuple(pair): None for pair in model["merges"]}
    merges |= {(spelled[a], spelled[b]): None for a in ends for b in begins}
    for left, right in merges:
        model["vocab"].setdefault(left + right, len(model["vocab"]))
    for word in ("Zebra", "\u0120Zebra", "8642"):  # no merges make them: for ignore_merges
        model["vocab"].setdefault(word, len(model["vocab"]))
    return {"vocab": model["vocab"], "merges": [list(pair) for pair in merges]}


def _bytes_in_order() -> list[int]:
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [*printed, *(b for b in range(256) if b not in printed)]


def _spelling() -> list[str]:
    printed = _bytes_in_order()[:188]
    return [*map(chr, printed), *(chr(256 + i) for i in range(68))]


@functools.cache
def character_model() -> dict[str, Any]:
    """A BPE model over characters with U+2581 for spaces, unknown token, ends and bytes first."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.Replace(" ", SPACE)
    made.train_from_iterator(lines(), trainers.BpeTrainer(vocab_size=1500, show_progress=False))
    learnt = json.loads(made.to_str())["model"]
    first = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    tokens = [*first, *learnt["vocab"]]
    # Pairs that make what other pairs make too, and runs: where ranks and scores alone would differ.
    more = [["e", "e"], ["ee", "e"], ["e", "ee"], [SPACE, SPACE], [SPACE * 2, SPACE], [SPACE, SPACE * 2]]
    tokens += ["".join(pair) for pair in more]
    tokens = list(dict.fromkeys(tokens))
    merges = {tuple(pair): list(pair) for pair in [*learnt["merges"], *more]}
    return {"vocab": {t: i for i, t in enumerate(tokens)}, "merges": list(merges.values())}


@functools.cache
def unigram_model() -> list[list[Any]]:
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Replace(" ", SPACE)
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    trainer = trainers.UnigramTrainer(
        vocab_size=900, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>"
    )
    made.train_from_iterator(lines(), trainer)
    learnt = json.loads(made.to_str())["model"]["vocab"]
    bytes_ = [[f"<0x{b:02X}>", 0.0] for b in range(256)]
    # SentencePiece has float32 scores.
    rounded = [[t, float(np.float32(s))] for t, s in learnt]
    return [*rounded[:3], *bytes_, *rounded[3:]]


def token(content: str, special: bool = True, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": content, **plain, **flags, "special": special}


def template(before: str | None, after: str | None = None) -> dict[str, Any]:
    """Adds BOS and EOS."""
    single: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    if before:
        single.insert(0, {"SpecialToken": {"id": before, "type_id": 0}})
    if after:
        single.append({"SpecialToken": {"id": after, "type_id": 0}})
    return {"type": "TemplateProcessing", "single": single, "names": [t for t in (before, after) if t]}


def whole(parts: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json of a model, tokens added to it, and the other parts."""
    vocab = parts["model"]["vocab"]
    known = dict(vocab) if isinstance(vocab, dict) else {t: i for i, (t, _) in enumerate(vocab)}
    added = [{"id": known.setdefault(t["content"], len(known)), **t} for t in parts.get("added", [])]
    post = parts.get("post_processor")
    for step in post["processors"] if post and "processors" in post else [post]:
        if step and "names" in step:
            names = step.pop("names")
            step["pair"] = step["single"]
            step["special_tokens"] = {n: {"id": n, "ids": [known[n]], "tokens": [n]} for n in names}
    kept = {"normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None}
    kept |= {k: v for k, v in parts.items() if k != "added"}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **kept}


def split(regex: str, removed: bool = False) -> dict[str, Any]:
    behavior = (
        {"behavior": "Removed", "invert": True} if removed else {"behavior": "Isolated", "invert": False}
    )
    return {"type": "Split", "pattern": {"Regex": regex}, **behavior}


def byte_level(*steps: dict[str, Any], regex: bool = False, **parts: Any) -> dict[str, Any]:
    """A byte-level tokenizer.json; `whole_pieces` for ignore_merges."""
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False}
    model |= {"ignore_merges": parts.pop("whole_pieces", False), **byte_model()}
    parts.setdefault("added", [token("<|endoftext|>"), token("<user>", special=False)])
    parts.setdefault("post_processor", {**bytes_, "trim_offsets": False})
    pre = {"type": "Sequence", "pretokenizers": [*steps, bytes_]} if steps else bytes_
    return whole({"model": model, "pre_tokenizer": pre, "decoder": bytes_, **parts})


FUSED = [
    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
PREPEND = {"type": "Prepend", "prepend": SPACE}
SPM_TOKENS = [token("<unk>"), token("<s>"), token("</s>"), token("<user>", special=False)]


def spaced(model: dict[str, Any] | None = None, strip: bool = False, **parts: Any) -> dict[str, Any]:
    """A tokenizer.json over characters."""
    bpe = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None}
    bpe |= {"end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False}
    decoder = {"type": "Sequence", "decoders": [*FUSED, *([STRIP] if strip else [])]}
    parts = {"added": SPM_TOKENS, "post_processor": template("<s>"), "decoder": decoder, **parts}
    return whole({"model": model or {**bpe, **character_model()}, **parts})


def _metaspace(scheme: str, split: bool = False) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": split}


DIGITS = {"type": "Digits", "individual_digits": True}
NFC = {"type": "NFC"}
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
BOS = token("<|begin_of_text|>")


def _splits(name: str) -> list[dict[str, Any]]:
    return [DIGITS if e == families.DIGIT else split(e) for e in families.FAMILIES[name].chain]


def _llama3(bos: bool) -> dict[str, Any]:
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    post = {"type": "Sequence", "processors": [level, template(BOS["content"])]} if bos else level
    added = [BOS, token("<|eot_id|>"), token("<|x|>", special=False)]
    return byte_level(*_splits("llama-bpe"), whole_pieces=True, added=added, post_processor=post)


def _neox() -> dict[str, Any]:
    runs = [token(" " * n, special=False, normalized=True) for n in (8, 4, 3, 2)]
    return byte_level(regex=True, normalizer=NFC, added=[token("<|endoftext|>"), *runs])


def _phi3() -> dict[str, Any]:
    turns = [token(t, rstrip=True) for t in ("<|end|>", "<|user|>")]
    mask = token("<mask>", lstrip=True)
    prefixed = {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}
    return spaced(normalizer=prefixed, strip=True, added=[*SPM_TOKENS[:3], *turns, mask])


def _deepseek(name: str) -> dict[str, Any]:
    added = [token("<\uff5cbegin\u2581of\u2581sentence\uff5c>"), token("<|EOT|>", special=False)]
    empty = {"type": "Sequence", "normalizers": []}
    first = template(added[0]["content"])
    return byte_level(*_splits(name), normalizer=empty, added=added, post_processor=first)


def _unigram(byte_fallback: bool) -> dict[str, Any]:
    vocab = [t for t in unigram_model() if byte_fallback or not t[0].startswith("<0x")]
    return {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": byte_fallback}


_NO_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
_LEGACY = {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}

#: family -> its tokenizer.json
FAMILIES = {
    "gpt2": lambda: byte_level(regex=True, added=[token("<|endoftext|>", normalized=True)]),
    "gpt-neox": _neox,
    "smollm2": lambda: byte_level(DIGITS, regex=True),
    "granite": lambda: byte_level(DIGITS, regex=True, added=[token("<|end_of_text|>"), token("<fim>")]),
    "llama3": lambda: _llama3(bos=True),
    "smollm3": lambda: _llama3(bos=False),
    "olmo2": lambda: byte_level(split(CL100K)),
    "phi4": lambda: byte_level(split(families.WORDS3[0], removed=True)),
    "phi4-mini": lambda: byte_level(*_splits("gpt-4o")),
    "qwen2": lambda: byte_level(*_splits("qwen2"), normalizer=NFC),
    "qwen3.5": lambda: byte_level(*_splits("qwen35")),
    "stablelm2": lambda: byte_level(*_splits("stablelm2")),
    "mistral-nemo": lambda: byte_level(
        *_splits("tekken"), whole_pieces=True, post_processor=template("<|endoftext|>")
    ),
    "deepseek-llm": lambda: _deepseek("deepseek-llm"),
    "deepseek-coder": lambda: _deepseek("deepseek-coder"),
    "deepseek-v3": lambda: _deepseek("deepseek-v3"),
    "gemma": lambda: spaced(normalizer=REPLACE, pre_tokenizer=_NO_SPLIT),
    "llama2": lambda: spaced(normalizer=_LEGACY, strip=True),
    "phi3": _phi3,
    "mistral-v3": lambda: spaced(pre_tokenizer=_metaspace("first"), strip=True),
    "metaspace": lambda: spaced(pre_tokenizer=_metaspace("always"), strip=True),
    "unigram": lambda: spaced(_unigram(True), normalizer=_LEGACY, strip=True),
    "unigram-split": lambda: spaced(_unigram(True), pre_tokenizer=_metaspace("first", True), strip=True),
    "unigram-unk": lambda: spaced(
        _unigram(False), normalizer=REPLACE, post_processor=template(None, "</s>"), added=SPM_TOKENS[:3]
    ),
}
