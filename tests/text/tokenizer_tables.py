"""Tokenizers made with Hugging Face `tokenizers`, and the same tables as GGUF files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from trivet.formats.gguf import write_gguf
from trivet.text.tokenizer import Tokenizer as Ours

CONTROL, USER_DEFINED, BYTE = 3, 4, 6
SPECIAL = "<|end|>"
USER = "<user>"

# As the tokenizers' own files have them.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def byte_level(use_regex: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(use_regex=False)]
    )


PRE_TOKENIZERS = {
    "gpt2": byte_level(use_regex=True),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)]
    ),
    "llama-bpe": split(LLAMA3),
    "qwen2": split(QWEN2),
}

CORPUS = """The quick brown fox jumps over the lazy dog. It's what they'll say: "We'VE seen 1234 of 5678!"
def f(x):\n\tif x > 0:\n\t\treturn x ** 2  # square\r\n\n\nfor (int i = 0; i < 10; ++i) { a[i] += 3.14; }
Où est l'été à Zürich? Ça coûte déjà trop cher. 今日は世界！机器学习很有趣。안녕하세요 세계 Привет мир 🦙.cpp
    indented    text     with      runs       of        spaces\t\t\ttabs 77777777 + 3333 = aaaaaaaaaaaa"""


def corpus() -> list[str]:
    """Lines and shuffled words of the text above."""
    rng = random.Random(3)
    words = CORPUS.split(" ")
    return [*CORPUS.splitlines(), *(" ".join(rng.choices(words, k=12)) for _ in range(200))]


def train_bpe(pre: str, vocab_size: int = 700) -> Tokenizer:
    """A byte-level BPE tokenizer."""
    oracle = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        oracle.normalizer = normalizers.NFC()
    oracle.pre_tokenizer = PRE_TOKENIZERS[pre]
    oracle.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    oracle.train_from_iterator(corpus(), trainer)
    oracle.add_special_tokens([SPECIAL])
    oracle.add_tokens([AddedToken(USER, normalized=False)])
    return oracle


def vocabulary(oracle: Tokenizer) -> list[str]:
    return [t for t, _ in sorted(oracle.get_vocab().items(), key=lambda item: item[1])]


def bpe_metadata(oracle: Tokenizer, pre: str) -> dict[str, Any]:
    """The GGUF metadata of a byte-level tokenizer."""
    tokens = vocabulary(oracle)
    kinds = {SPECIAL: CONTROL, USER: USER_DEFINED}
    merges = json.loads(oracle.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([kinds.get(t, 1) for t in tokens], np.int32),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.eos_token_id": np.uint32(tokens.index(SPECIAL)),
        "tokenizer.ggml.add_bos_token": False,
    }


def spm_pieces(vocab_size: int = 500) -> list[tuple[str, tuple[str, str] | None]]:
    """Pieces with the one pair of shorter pieces that makes each, best first.

    Pieces that two pairs make are left out: SentencePiece gives such pairs one score, Hugging Face two
    ranks, and only where there is one pair do both define the same tokenizer."""
    oracle = Tokenizer(models.BPE())
    oracle.normalizer = normalizers.Replace(" ", "▁")
    oracle.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False))
    known: set[str] = set()
    pieces: list[tuple[str, tuple[str, str] | None]] = []
    for token in vocabulary(oracle):
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        made = [p for p in pairs if p[0] in known and p[1] in known]
        if len(token) == 1 or len(made) == 1:
            known.add(token)
            pieces.append((token, made[0] if made else None))
    return pieces


def build_spm(space_prefix: bool) -> tuple[Tokenizer, dict[str, Any]]:
    """A SentencePiece-style tokenizer with byte fallback, and its GGUF metadata."""
    pieces = spm_pieces()
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *(p for p, _ in pieces)]
    merges = [pair for _, pair in pieces if pair]
    oracle = Tokenizer(
        models.BPE({t: i for i, t in enumerate(tokens)}, merges, unk_token="<unk>", byte_fallback=True)
    )
    steps = [normalizers.Prepend("▁")] if space_prefix else []
    oracle.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    oracle.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<s>", "</s>")])
    oracle.add_tokens([AddedToken(USER, normalized=False)])
    tokens.append(USER)
    kinds = [2, CONTROL, CONTROL] + [BYTE] * 256 + [1] * len(pieces) + [USER_DEFINED]
    return oracle, {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.scores": -np.arange(len(tokens), dtype=np.float32),
        "tokenizer.ggml.add_space_prefix": space_prefix,
    }


def open_tables(folder: Path, metadata: dict[str, Any]) -> Ours:
    """The tokenizer of a GGUF file with this metadata and no tensors."""
    path = folder / "tables.gguf"
    write_gguf(path, metadata, {})
    return Ours.open(path)
