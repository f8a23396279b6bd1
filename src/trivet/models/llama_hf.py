"""Llama, Mistral, SmolLM2 as Hugging Face folders: names, order of rows and config.json, both ways."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import ops
from trivet.errors import ModelError, UnsupportedError
from trivet.models.checkpoint import number, positive

_HF_BLOCK = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_HF_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def hf_rename(name: str) -> str | None:
    """GGUF's name for a Hugging Face tensor, or None if a llama model has no such tensor."""
    if name in _HF_TOP:
        return _HF_TOP[name]
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
    if match is None or match[2] not in _HF_BLOCK:
        return None
    return f"blk.{match[1]}.{_HF_BLOCK[match[2]]}.{match[3]}"


def hf_original(name: str) -> str | None:
    """Hugging Face's name of a GGUF tensor: the inverse of hf_rename."""
    for theirs, ours in _HF_TOP.items():
        if name == ours:
            return theirs
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    theirs_of = {ours: theirs for theirs, ours in _HF_BLOCK.items()}
    if match is None or match[2] not in theirs_of:
        return None
    return f"model.layers.{match[1]}.{theirs_of[match[2]]}.{match[3]}"


def hf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata from config.json; refuses what the keys cannot say."""
    if config.get("hidden_act", "silu") != "silu" or config.get("mlp_bias"):
        raise ModelError("[load] config.json: a llama model has hidden_act silu and no mlp_bias")
    heads = positive(config, "num_attention_heads")
    head_dim = config.get("head_dim") or positive(config, "hidden_size") // heads
    rope = _hf_rope(config)
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": positive(config, "num_hidden_layers"),
        "llama.context_length": positive(config, "max_position_embeddings", 2048),
        "llama.embedding_length": positive(config, "hidden_size"),
        "llama.feed_forward_length": positive(config, "intermediate_size"),
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": config.get("num_key_value_heads") or heads,
        "llama.attention.key_length": head_dim,
        "llama.attention.value_length": head_dim,
        "llama.rope.dimension_count": head_dim,
        "llama.attention.layer_norm_rms_epsilon": number(config, "rms_norm_eps", 1e-6),
        "llama.rope.freq_base": number(rope, "rope_theta", 10000.0),
        "llama.vocab_size": positive(config, "vocab_size"),
    }
    if config.get("sliding_window"):
        metadata["llama.attention.sliding_window"] = positive(config, "sliding_window")
    return metadata | _hf_scaling(rope)


def _hf_rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rope parameters: one mapping in new files, `rope_theta` and `rope_scaling` in older ones."""
    inner = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return {"rope_theta": config.get("rope_theta", 10000.0), **inner}


def _hf_scaling(rope: Mapping[str, Any]) -> dict[str, Any]:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("default", "llama3"):  # llama3's factors become a tensor: see hf_extra
        return {}
    if kind not in ("linear", "yarn"):
        raise ModelError(f"[load] config.json: rope_type is {kind!r}; known: default, linear, yarn, llama3")
    out: dict[str, Any] = {
        "llama.rope.scaling.type": kind,
        "llama.rope.scaling.factor": number(rope, "factor"),
    }
    if kind == "yarn":
        out["llama.rope.scaling.original_context_length"] = positive(rope, "original_max_position_embeddings")
        for key in ("beta_fast", "beta_slow"):
            if key in rope:
                out[f"llama.rope.scaling.yarn_{key}"] = number(rope, key)
        if rope.get("attention_factor") is not None:
            out["llama.rope.scaling.attn_factor"] = number(rope, "attention_factor")
    return out


def hf_extra(config: Mapping[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
    """Tensors a GGUF file of this model has besides the folder's own: Llama 3's frequency factors."""
    rope = _hf_rope(config)
    if rope.get("rope_type", rope.get("type")) != "llama3":
        return {}
    dim = int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    theta = number(rope, "rope_theta")
    scaling = {
        "type": "llama3",
        "factor": number(rope, "factor"),
        "low_freq_factor": number(rope, "low_freq_factor"),
        "high_freq_factor": number(rope, "high_freq_factor"),
        "original_context": positive(rope, "original_max_position_embeddings"),
    }
    plain, _ = ops.rope_frequencies(dim, theta, None)
    scaled, _ = ops.rope_frequencies(dim, theta, scaling)
    return {"rope_freqs.weight": (plain / scaled).astype(np.float32)}


def hf_arrange(name: str, array: npt.NDArray[Any], metadata: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Rows of the query and key projections, from two halves per head to interleaved pairs."""
    match = re.fullmatch(r"blk\.\d+\.attn_([qk])\.(weight|bias)", name)
    if match is None:
        return array
    heads = positive(metadata, "llama.attention.head_count")
    if match[1] == "k":
        heads = positive(metadata, "llama.attention.head_count_kv", heads)
    if array.shape[0] % (2 * heads):
        raise ModelError(f"[load] tensor {name} has {array.shape[0]} rows; wanted pairs for {heads} heads")
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def hf_config(metadata: Mapping[str, Any], vocab: int, tied: bool) -> dict[str, Any]:
    """config.json from GGUF metadata: the inverse of hf_metadata."""

    def at(key: str, default: int | None = None) -> int:
        return positive(metadata, f"llama.{key}", default)

    heads = at("attention.head_count")
    head_dim = at("attention.key_length", at("embedding_length") // heads)
    if at("rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedError("[merge] a Hugging Face llama rotates whole heads; this model parts of them")
    theta = number(metadata, "llama.rope.freq_base", 10000.0)
    window = metadata.get("llama.attention.sliding_window", 0)
    kind = "mistral" if window else "llama"
    config: dict[str, Any] = {
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "model_type": kind,
        "hidden_act": "silu",
        "hidden_size": at("embedding_length"),
        "intermediate_size": at("feed_forward_length"),
        "num_hidden_layers": at("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": at("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": at("context_length"),
        "rms_norm_eps": _short(number(metadata, "llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": theta,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
    }
    if window:
        config["sliding_window"] = window
    if scaling := _hf_unscaled(metadata):
        config["rope_scaling"] = scaling | {"rope_theta": theta}
    for key in ("bos_token_id", "eos_token_id"):
        if f"tokenizer.ggml.{key}" in metadata:
            config[key] = int(number(metadata, f"tokenizer.ggml.{key}", least=0))
    return config


def _short(value: float) -> float:
    """A number that was float32, as people write it: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _hf_unscaled(metadata: Mapping[str, Any]) -> dict[str, Any]:
    kind = metadata.get("llama.rope.scaling.type", "none")
    if kind == "none":
        return {}
    names = {
        "factor": "factor",
        "original_context_length": "original_max_position_embeddings",
        "yarn_beta_fast": "beta_fast",
        "yarn_beta_slow": "beta_slow",
        "attn_factor": "attention_factor",
    }
    given = {theirs: metadata.get(f"llama.rope.scaling.{ours}") for ours, theirs in names.items()}
    return {"rope_type": kind} | {key: value for key, value in given.items() if value is not None}
