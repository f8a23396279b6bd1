"""Llama, Mistral, SmolLM2: pre-norm decoder blocks of grouped-query attention and a gated SiLU MLP.

Notable: rotary pairs are interleaved, as GGUF files hold them (Hugging Face's halves are re-ordered on
loading); the output matrix may be the embedding; the frequencies of Llama 3 come with the file as
`rope_freqs.weight`; Mistral's sliding window is metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import dtypes, ops
from trivet.errors import ModelError
from trivet.models.checkpoint import Checkpoint, number, positive
from trivet.nn.attention import Attend


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes, as the file's metadata gives them."""

    vocab: int
    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_dim: int
    context: int
    eps: float
    theta: float
    window: int
    scaling: Mapping[str, Any] | None

    @staticmethod
    def from_metadata(checkpoint: Checkpoint) -> Config:
        metadata = checkpoint.metadata

        def at(key: str, default: int | None = None) -> int:
            return positive(metadata, f"llama.{key}", default)

        width, heads = at("embedding_length"), at("attention.head_count")
        if width % heads and "llama.attention.key_length" not in metadata:
            raise ModelError(f"[load] embedding_length {width} does not divide by head_count {heads}")
        kv_heads = at("attention.head_count_kv", heads)
        if heads % kv_heads:
            raise ModelError(f"[load] head_count {heads} does not divide by head_count_kv {kv_heads}")
        head_dim = at("attention.key_length", width // heads)
        rope_dim = at("rope.dimension_count", head_dim)
        if rope_dim % 2 or rope_dim > head_dim:
            raise ModelError(f"[load] rope.dimension_count {rope_dim} is odd, or over the head's {head_dim}")
        if at("attention.value_length", head_dim) != head_dim:
            raise ModelError(
                "[load] attention.value_length differs from key_length; a llama model has one head size"
            )
        embedding = checkpoint.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ModelError("[load] tensor 'token_embd.weight' is missing or not a matrix")
        return Config(
            vocab=embedding.shape[0],
            layers=at("block_count"),
            width=width,
            hidden=at("feed_forward_length"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            rope_dim=rope_dim,
            context=at("context_length"),
            eps=number(metadata, "llama.attention.layer_norm_rms_epsilon", least=0.0),
            theta=number(metadata, "llama.rope.freq_base", 10000.0),
            window=0 if _windowless(metadata) else at("attention.sliding_window"),
            scaling=_scaling(metadata),
        )


def _windowless(metadata: Mapping[str, Any]) -> bool:
    """Files say 0, or nothing, where all earlier tokens are seen."""
    value = metadata.get("llama.attention.sliding_window", 0)
    return isinstance(value, int) and value == 0


def _scaling(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """GGUF's rope.scaling.* keys as the scaling argument of ops.rope_frequencies."""
    kind = metadata.get("llama.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise ModelError(f"[load] llama.rope.scaling.type is {kind!r}; known: none, linear, yarn")
    scaling: dict[str, Any] = {"type": kind, "factor": number(metadata, "llama.rope.scaling.factor", 1.0)}
    if kind == "yarn":
        scaling["original_context"] = positive(metadata, "llama.rope.scaling.original_context_length")
        for key in ("beta_fast", "beta_slow"):
            if f"llama.rope.scaling.yarn_{key}" in metadata:
                scaling[key] = number(metadata, f"llama.rope.scaling.yarn_{key}")
        if "llama.rope.scaling.attn_factor" in metadata:
            scaling["attention_factor"] = number(metadata, "llama.rope.scaling.attn_factor")
    return scaling


class Block:
    """One decoder layer."""

    def __init__(self, config: Config, checkpoint: Checkpoint, index: int) -> None:
        c = config
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim

        def weight(name: str, *shape: int) -> Any:
            return checkpoint.weight(f"blk.{index}.{name}.weight", shape)

        def bias(name: str, size: int) -> Any:
            return checkpoint.find(f"blk.{index}.{name}.bias", (size,))

        self.config, self.index = config, index
        self.attn_norm, self.ffn_norm = weight("attn_norm", c.width), weight("ffn_norm", c.width)
        self.q, self.q_bias = weight("attn_q", q, c.width), bias("attn_q", q)
        self.k, self.k_bias = weight("attn_k", kv, c.width), bias("attn_k", kv)
        self.v, self.v_bias = weight("attn_v", kv, c.width), bias("attn_v", kv)
        self.out, self.out_bias = weight("attn_output", c.width, q), bias("attn_output", c.width)
        self.gate, self.up = weight("ffn_gate", c.hidden, c.width), weight("ffn_up", c.hidden, c.width)
        self.down = weight("ffn_down", c.width, c.hidden)

    def __call__(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        h = ops.rms_norm(x, self.attn_norm, eps=self.config.eps)
        x = ops.add(x, self._attention(h, rope, attend))
        h = ops.rms_norm(x, self.ffn_norm, eps=self.config.eps)
        gated = ops.swiglu(ops.linear(h, self.gate), ops.linear(h, self.up))
        return ops.add(x, ops.linear(gated, self.down))

    def _attention(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        c = self.config
        lead = x.shape[:-1]
        q = ops.reshape(ops.linear(x, self.q, self.q_bias), (*lead, c.heads, c.head_dim))
        k = ops.reshape(ops.linear(x, self.k, self.k_bias), (*lead, c.kv_heads, c.head_dim))
        v = ops.reshape(ops.linear(x, self.v, self.v_bias), (*lead, c.kv_heads, c.head_dim))
        q, k = ops.rope(q, *rope, interleaved=True), ops.rope(k, *rope, interleaved=True)
        o = attend(self.index, q, k, v, scale=c.head_dim**-0.5, window=c.window)
        return ops.linear(ops.reshape(o, (*lead, c.heads * c.head_dim)), self.out, self.out_bias)


class Model:
    """The whole decoder: token ids to logits."""

    def __init__(self, config: Config, checkpoint: Checkpoint) -> None:
        self.config = config
        self.embedding = checkpoint.weight("token_embd.weight", (config.vocab, config.width))
        self.blocks = [Block(config, checkpoint, i) for i in range(config.layers)]
        self.norm = checkpoint.weight("output_norm.weight", (config.width,))
        head = checkpoint.find("output.weight", (config.vocab, config.width))
        self.head = self.embedding if head is None else head
        self.inv_freq, self.rope_scale = ops.rope_frequencies(config.rope_dim, config.theta, config.scaling)
        if checkpoint.find("rope_freqs.weight", (config.rope_dim // 2,)) is not None:
            self.inv_freq = self.inv_freq / checkpoint.load("rope_freqs.weight").astype(np.float64)

    def __call__(self, ids: Any, positions: Any, attend: Attend, rows: Any = None) -> Any:
        """ids and positions [..., T] i32 -> logits [..., T, vocab]; with `rows` i32 [R] (and ids [T]), only
        those tokens' logits, [R, vocab]."""
        x = ops.embedding(ids, self.embedding)
        if x.dtype in (dtypes.f16, dtypes.bf16):  # activations are f32 whatever the file holds
            x = ops.cast(x, dtypes.f32)
        rope = ops.rope_table(positions, self.inv_freq, scale=self.rope_scale)
        for block in self.blocks:
            x = block(x, rope, attend)
        if rows is not None:
            x = ops.take(x, rows, axis=0)
        return ops.linear(ops.rms_norm(x, self.norm, eps=self.config.eps), self.head)


# --- Hugging Face folders ---------------------------------------------------------------------------------

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
    heads = metadata["llama.attention.head_count" if match[1] == "q" else "llama.attention.head_count_kv"]
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
