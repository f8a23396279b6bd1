"""Llama, Mistral, SmolLM2: pre-norm decoder blocks of grouped-query attention and a gated SiLU MLP.

Notable: rotary pairs are interleaved, as GGUF files hold them (Hugging Face's halves are re-ordered on
loading); the output matrix may be the embedding; the frequencies of Llama 3 come with the file as
`rope_freqs.weight`; Mistral's sliding window is metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trivet import dtypes, ops
from trivet.dtypes import DType
from trivet.errors import ModelError
from trivet.models.checkpoint import Checkpoint, number, positive
from trivet.models.llama_hf import hf_arrange as hf_arrange
from trivet.models.llama_hf import hf_config as hf_config
from trivet.models.llama_hf import hf_extra as hf_extra
from trivet.models.llama_hf import hf_metadata as hf_metadata
from trivet.models.llama_hf import hf_original as hf_original
from trivet.models.llama_hf import hf_rename as hf_rename
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

    def __call__(
        self, ids: Any, positions: Any, attend: Attend, rows: Any = None, dtype: DType = dtypes.f32
    ) -> Any:
        """ids and positions [..., T] i32 -> logits [..., T, vocab]; with `rows` i32 [R] (and ids [T]), only
        those tokens' logits, [R, vocab]. Activations are of `dtype`, whatever the file holds."""
        x = ops.embedding(ids, self.embedding)
        if x.dtype is not dtype:
            x = ops.cast(x, dtype)
        rope = ops.rope_table(positions, self.inv_freq, scale=self.rope_scale)
        for block in self.blocks:
            x = block(x, rope, attend)
        if rows is not None:
            x = ops.take(x, rows, axis=0)
        return ops.linear(ops.rms_norm(x, self.norm, eps=self.config.eps), self.head)
