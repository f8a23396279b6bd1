"""Writes the seeds of the GGUF fuzzer to native/fuzz/corpus/gguf: small, whole files of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trivet.formats.gguf import write_gguf

TARGET = Path(__file__).parent / "corpus/gguf"
BYTES = [chr(b) for b in range(33, 127)] + ["Ġ", "Ċ"]
SCALARS = [np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.float32, np.uint64, np.int64]


def gpt2(pre: str) -> dict[str, Any]:
    """Byte-level BPE with a chat format."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*BYTES, "he", "ll", "llo", "Ġw", "<|end|>"],
        "tokenizer.ggml.token_type": np.array([1] * (len(BYTES) + 4) + [3], np.int32),
        "tokenizer.ggml.merges": ["h e", "l l", "ll o", "Ġ w"],
        "tokenizer.ggml.eos_token_id": np.uint32(len(BYTES) + 4),
        "trivet.chat.user.prefix": "U:",
        "trivet.chat.user.suffix": "<|end|>",
        "trivet.chat.generation": "A:",
    }


def llama() -> dict[str, Any]:
    """SentencePiece BPE with bytes."""
    pieces = ["▁", "▁w", "ell", "el", "l", "e", "H", "o"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(pieces)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.scores": -np.arange(len(tokens), dtype=np.float32),
    }


def more() -> dict[str, dict[str, Any]]:
    """What files of Hugging Face's tokenizers have besides."""
    merged = {
        "tokenizer.ggml.merges": ["e l", "el l"],
        "trivet.tokenizer.prepend_scheme": "first",
        "trivet.tokenizer.rstrip": np.array([1], np.int32),
        "trivet.tokenizer.lstrip": np.array([2], np.int32),
        "trivet.tokenizer.end_ids": np.array([1, 2], np.int32),
    }
    normal = {"trivet.tokenizer.nfc": True, "trivet.tokenizer.ignore_merges": True}
    return {
        "llama-merges": {**llama(), **merged},
        "t5": {**llama(), "tokenizer.ggml.model": "t5", "tokenizer.ggml.add_space_prefix": True},
        "deepseek-v3": {**gpt2("deepseek-v3"), **normal},
    }


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    every = {f"k.{t.__name__}": t(1) for t in SCALARS} | {"k.bool": True, "k.text": "x", "k.ints": [1, 2]}
    tensors = {"a": np.arange(8, dtype=np.float32).reshape(2, 4), "b": np.arange(3, dtype=np.int8)}
    write_gguf(TARGET / "every", {**every, "general.alignment": np.uint32(8)}, tensors)
    for pre in ("gpt2", "smollm", "llama-bpe", "deepseek-llm", "gpt-4o"):
        write_gguf(TARGET / pre, gpt2(pre), {})
    write_gguf(TARGET / "llama", llama(), {})
    for name, metadata in more().items():
        write_gguf(TARGET / name, metadata, {})


if __name__ == "__main__":
    main()
