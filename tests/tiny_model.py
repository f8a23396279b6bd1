"""A tiny random llama model as a GGUF file, with one table changed at a time."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from trivet.formats.gguf import write_gguf

WIDTH, HIDDEN, CONTEXT = 64, 96, 128
END = "<|end|>"
LETTERS = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))] + [
    chr(256 + n)
    for n in range(68)  # what stands for the other 68 bytes
]
TOKENS = [*LETTERS, "he", "ll", "hell", END, "<|start|>"]
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def metadata() -> dict[str, Any]:
    kinds = np.array([3 if t.startswith("<|") else 1 for t in TOKENS], np.int32)
    return {
        "general.architecture": "llama",
        "llama.block_count": np.uint32(2),
        "llama.context_length": np.uint32(CONTEXT),
        "llama.embedding_length": np.uint32(WIDTH),
        "llama.feed_forward_length": np.uint32(HIDDEN),
        "llama.attention.head_count": np.uint32(4),
        "llama.attention.head_count_kv": np.uint32(2),
        "llama.attention.layer_norm_rms_epsilon": np.float32(1e-5),
        "llama.rope.dimension_count": np.uint32(16),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["h e", "l l", "he ll"],
        "tokenizer.ggml.eos_token_id": np.uint32(TOKENS.index(END)),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


@cache
def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def random(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.2).astype(np.float32)

    made = {"token_embd.weight": random(len(TOKENS), WIDTH), "output_norm.weight": 1 + random(WIDTH)}
    for i in range(2):
        shapes = {
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (32, WIDTH),
            "attn_v": (32, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_gate": (HIDDEN, WIDTH),
            "ffn_up": (HIDDEN, WIDTH),
            "ffn_down": (WIDTH, HIDDEN),
        }
        made |= {f"blk.{i}.{name}.weight": random(*shape) for name, shape in shapes.items()}
        made |= {f"blk.{i}.{name}.weight": 1 + random(WIDTH) for name in ("attn_norm", "ffn_norm")}
    return made


#: what makes its heads of 32 elements, not 16, with the same tensors
WIDE_HEADS = {"llama.attention.head_count": np.uint32(2), "llama.attention.head_count_kv": np.uint32(1)}


def write(path: Path, changed: dict[str, Any] | None = None, weights: dict[str, Any] | None = None) -> Path:
    """Writes the model with some metadata and tensors changed, or left out where they are None."""
    keys = {k: v for k, v in (metadata() | (changed or {})).items() if v is not None}
    arrays = {k: v for k, v in (tensors() | (weights or {})).items() if v is not None}
    write_gguf(path, keys, arrays)
    return path
