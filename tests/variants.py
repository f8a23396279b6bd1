"""Tiny random transformers models of every architecture and variant, as folders and as GGUF files of the same
tensors, and the logits transformers gives."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import tiny_model
from trivet.formats.gguf import TensorSource, write_gguf
from trivet.models.checkpoint import Checkpoint, open_checkpoint

VOCAB = len(tiny_model.TOKENS)
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
WIDE = {"head_dim": 10, "hidden_size": 50, "num_attention_heads": 5, "num_key_value_heads": 5}
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}
PARTIAL = {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.75}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [1.0, 2.0, 5.0, 9.0],
    "original_max_position_embeddings": 64,
}
GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "logits_scaling": 1.5,
}
STABLE = {"layer_norm_eps": 1e-5, "head_dim": 16, "num_attention_heads": 3, "num_key_value_heads": 1}
NEOX = {"layer_norm_eps": 1e-5, "num_key_value_heads": None}
GEMMA = {
    "head_dim": 14,
    "num_hidden_layers": 4,
    "query_pre_attn_scalar": 11,
    "sliding_window": 19,
    "tie_word_embeddings": True,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
DEEP = {"num_hidden_layers": 7, "layer_types": None, "query_pre_attn_scalar": 14, "num_key_value_heads": 1}
CAPPED = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}
UNCAPPED = {"attn_logit_softcapping": None, "final_logit_softcapping": None, "tie_word_embeddings": False}
SPARSE = {
    "head_dim": 10,
    "moe_intermediate_size": 40,
    "num_experts": 11,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
}
NEAR = {"rope_type": "default", "rope_theta": 700.0}
BOTH = {"full_attention": LINEAR, "sliding_attention": NEAR}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-multi-query": ("Llama", {"num_key_value_heads": 1}),
    "llama-no-grouping": ("Llama", {"num_key_value_heads": 6}),
    "llama-odd-head": ("Llama", WIDE),
    "llama-bias": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear-rope": ("Llama", {"rope_parameters": LINEAR}),
    "llama-dynamic-rope": ("Llama", {"rope_parameters": DYNAMIC}),
    "llama-llama3-rope": ("Llama", {"rope_parameters": LLAMA3, "head_dim": 16}),
    "llama-yarn-rope": ("Llama", {"rope_parameters": YARN}),
    "llama-yarn-factor": ("Llama", {"rope_parameters": YARN | {"attention_factor": 1.3, "beta_fast": 20.0}}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 7}),
    "mistral-long-window": ("Mistral", {"sliding_window": 70}),
    "llama-bf16": ("Llama", {"dtype": "bfloat16", "attention_bias": True}),
    "llama-f16": ("Llama", {"dtype": "float16", "attention_bias": True, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 10}),
    "qwen3-tied": ("Qwen3", {"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5, "tie_word_embeddings": True}),
    "smollm3-window": (
        "SmolLM3",
        {
            "num_hidden_layers": 4,
            "attention_bias": True,
            "mlp_bias": True,
            "use_sliding_window": True,
            "sliding_window": 9,
            "rope_parameters": YARN | {"rope_theta": 5e5},
        },
    ),
    "granite": ("Granite", GRANITE),
    "granite-tied": (
        "Granite",
        GRANITE
        | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3}
        | {"head_dim": 16},
    ),
    "olmo2": ("Olmo2", {}),
    "olmo2-bias": ("Olmo2", {"attention_bias": True, "tie_word_embeddings": True, "rope_parameters": LINEAR}),
    "olmo3": (
        "Olmo3",
        {
            "num_hidden_layers": 4,
            "sliding_window": 9,
            "rope_parameters": {"full_attention": YARN, "sliding_attention": DEFAULT},
        },
    ),
    "phi3": ("Phi3", {"sliding_window": 11}),
    "phi3-partial": ("Phi3", {"tie_word_embeddings": True, "rope_parameters": PARTIAL}),
    "phi3-long": ("Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64}),
    "stablelm": ("StableLm", STABLE),
    "stablelm-bias": (
        "StableLm",
        STABLE | {"use_qkv_bias": True, "rope_parameters": PARTIAL, "tie_word_embeddings": True},
    ),
    "stablelm-parallel": (
        "StableLm",
        STABLE | {"use_parallel_residual": True, "qk_layernorm": True},
    ),
    "gptneox": ("GPTNeoX", NEOX),
    "gptneox-sequential": (
        "GPTNeoX",
        NEOX | {"use_parallel_residual": False, "rotary_pct": 0.5, "rotary_emb_base": 5000.0},
    ),
    "gptneox-tied": ("GPTNeoX", NEOX | {"tie_word_embeddings": True, "attention_bias": False}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral-window": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 3, "sliding_window": 9}),
    "qwen3moe": ("Qwen3Moe", SPARSE),
    "qwen3moe-mixed": ("Qwen3Moe", SPARSE | {"mlp_only_layers": [1], "norm_topk_prob": False}),
    "gemma2": ("Gemma2", GEMMA | CAPPED),
    "gemma2-deep": ("Gemma2", GEMMA | DEEP | CAPPED),
    "gemma2-uncapped": ("Gemma2", GEMMA | UNCAPPED),
    "gemma3": ("Gemma3", GEMMA),
    "gemma3-deep": ("Gemma3", GEMMA | DEEP),
    "gemma3-scaled": ("Gemma3", GEMMA | {"rope_parameters": BOTH}),
    "gemma3-bf16": ("Gemma3", GEMMA | {"dtype": "bfloat16"}),
}
#: what transformers calls a family's config where it is not FAMILYConfig
CONFIGS = {"Gemma3": "Gemma3TextConfig"}
#: what others take in as well
SLOW = {
    "llama", "llama-multi-query", "llama-no-grouping", "llama-linear-rope", "llama-yarn-rope", "mistral",
    "mistral-long-window", "llama-f16", "qwen2", "qwen3-tied", "granite", "olmo2-bias", "stablelm-bias",
    "gptneox-tied", "gemma2", "gemma3",
}  # fmt: skip
#: what llama.cpp computes, too: it wants some tensors that others may leave out, and has not every window
IN_LLAMA_CPP = [
    "llama-bias", "llama-llama3-rope", "llama-yarn-factor", "qwen2-tied", "qwen3",
    "smollm3", "granite-tied", "olmo2", "olmo3", "phi3-partial", "phi3-long", "stablelm",
    "stablelm-parallel", "gptneox", "gptneox-sequential", "gemma2-deep", "gemma3-deep", "mixtral", "qwen3moe",
]  # fmt: skip
LENGTH = 150  # over two pages of the cache, and past every window and original context


@dataclass(frozen=True)
class Case:
    """A folder, a GGUF file of its tensors, ids, and transformers' logits and last hidden states."""

    folder: Path
    file: Path
    ids: list[int]
    logits: np.ndarray
    hidden: np.ndarray


def saved(folder: Path, name: str, **more: Any) -> Any:
    """A model of that case, saved, whose biases and norms are not 0 and 1; for the oracle it is float32."""
    family, changes = CASES[name]
    stored = getattr(torch, changes.get("dtype", "float32"))
    torch.manual_seed(3)
    config = getattr(transformers, CONFIGS.get(family, f"{family}Config"))(
        **(BASE | changes | more | {"dtype": "float32"})
    )
    model = (
        getattr(transformers, f"{family}ForCausalLM")._from_config(config, attn_implementation="eager").eval()
    )
    with torch.no_grad():
        for key, p in model.named_parameters():
            if key.endswith("bias") or "norm" in key:
                p.add_(torch.randn_like(p) * 0.2)
            p.copy_(p.to(stored))
    copy.deepcopy(model).to(stored).save_pretrained(folder)
    return model


def make(folder: Path, name: str, length: int = LENGTH) -> Case:
    model = saved(folder, name)
    ids = np.random.default_rng(5).integers(0, VOCAB, length)
    with torch.no_grad():
        out = model(torch.tensor(ids)[None], output_hidden_states=True)
    file = as_gguf(open_checkpoint(folder), folder / "model.gguf")
    return Case(folder, file, ids.tolist(), out.logits[0].numpy(), out.hidden_states[-1][0].numpy())


def as_gguf(checkpoint: Checkpoint, path: Path) -> Path:
    """A folder's tensors under GGUF's names, with the tokenizer of the tiny model."""
    words = {k: v for k, v in tiny_model.metadata().items() if k.startswith("tokenizer.")}
    words["tokenizer.ggml.pre"] = "gpt-2"  # as llama.cpp spells it
    sizes = {k: np.float32(v) if isinstance(v, float) else v for k, v in checkpoint.metadata.items()}
    tensors = {
        name: TensorSource(entry.dtype, entry.shape, entry.load) for name, entry in checkpoint.tensors.items()
    }
    write_gguf(path, {**sizes, **words}, tensors)
    return path


def near(got: np.ndarray, want: np.ndarray, bound: float = 2e-4) -> bool:
    return got.shape == want.shape and np.abs(got - want).max() < bound * max(1.0, np.abs(want).max())
