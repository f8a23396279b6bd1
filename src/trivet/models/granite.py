"""Granite 3: Llama's blocks with a multiplier on embeddings, residuals, attention and logits.

Notable: the logits' multiplier is a divisor; rotary pairs are interleaved, as in Llama's GGUF files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import ops
from trivet.dtypes import DType
from trivet.models import hf
from trivet.models.checkpoint import Checkpoint, number
from trivet.models.decoder import Decoder, DecoderConfig, GatedMLP, Linear, RMSNorm, heads, joined, sizes
from trivet.models.rope import Rope, hf_llama3, hf_rope_config, hf_rope_metadata
from trivet.nn.attention import Attend


@dataclass(frozen=True, slots=True)
class Config(DecoderConfig):
    """Sizes, as the file's metadata gives them."""

    eps: float
    rope: Rope
    embedding_scale: float
    residual_scale: float
    attention_scale: float
    logit_scale: float

    @staticmethod
    def from_metadata(checkpoint: Checkpoint) -> Config:
        given = sizes(checkpoint)

        def real(key: str, default: float | None = None) -> float:
            return number(checkpoint.metadata, f"granite.{key}", default, least=0.0)

        return Config(
            **given,
            eps=real("attention.layer_norm_rms_epsilon"),
            rope=Rope.from_metadata(checkpoint, given["head_dim"]),
            embedding_scale=real("embedding_scale", 1.0) or 1.0,  # 0, as files may say, is no scale
            residual_scale=real("residual_scale", 1.0) or 1.0,
            attention_scale=real("attention.scale", 0.0) or given["head_dim"] ** -0.5,
            logit_scale=real("logit_scale", 1.0) or 1.0,
        )


class Block:
    """One decoder layer."""

    def __init__(self, config: Config, checkpoint: Checkpoint, index: int) -> None:
        c, name = config, f"blk.{index}"
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.config, self.index = config, index
        self.attn_norm = RMSNorm(checkpoint, f"{name}.attn_norm", c.width, c.eps)
        self.q = Linear(checkpoint, f"{name}.attn_q", c.width, q)
        self.k = Linear(checkpoint, f"{name}.attn_k", c.width, kv)
        self.v = Linear(checkpoint, f"{name}.attn_v", c.width, kv)
        self.out = Linear(checkpoint, f"{name}.attn_output", q, c.width)
        self.ffn_norm = RMSNorm(checkpoint, f"{name}.ffn_norm", c.width, c.eps)
        self.mlp = GatedMLP(checkpoint, name, c.width, c.hidden)

    def __call__(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        scale = self.config.residual_scale
        x = ops.add(x, ops.mul(self._attention(self.attn_norm(x), rope, attend), scale))
        return ops.add(x, ops.mul(self.mlp(self.ffn_norm(x)), scale))

    def _attention(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        c = self.config
        q, k, v = (heads(dense(x), c.head_dim) for dense in (self.q, self.k, self.v))
        q, k = ops.rope(q, *rope, interleaved=True), ops.rope(k, *rope, interleaved=True)
        return self.out(joined(attend(self.index, q, k, v, scale=c.attention_scale)))


class Model(Decoder):
    """The whole decoder."""

    def __init__(self, config: Config, checkpoint: Checkpoint) -> None:
        blocks = [Block(config, checkpoint, i) for i in range(config.layers)]
        norm = RMSNorm(checkpoint, "output_norm", config.width, config.eps)
        super().__init__(config, checkpoint, blocks, norm)

    def embed(self, ids: Any, positions: Any, dtype: DType) -> Any:
        """Embeddings, scaled."""
        return ops.mul(super().embed(ids, positions, dtype), self.config.embedding_scale)

    def logits(self, x: Any) -> Any:
        """Scaled before the output matrix, so that a loss may be fused with it."""
        return super().logits(ops.mul(x, 1 / self.config.logit_scale))


# --- Hugging Face folders ------------------------------------------------------------------------

#: GGUF's keys -> config.json's
SCALES = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}
NAMES = hf.Names(hf.NORMS | hf.ATTENTION | hf.GATED)
hf_rename, hf_original, hf_arrange = NAMES.rename, NAMES.original, hf.paired


def hf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata from config.json; refuses what the keys cannot say."""
    hf.only(config, hidden_act="silu")
    metadata = hf.sizes_metadata("granite", config)
    metadata["granite.attention.layer_norm_rms_epsilon"] = number(config, "rms_norm_eps", 1e-6, least=0.0)
    for ours, theirs in SCALES.items():
        metadata[f"granite.{ours}"] = number(config, theirs, 1.0, least=1e-6)
    return metadata | hf_rope_metadata("granite", config, hf.head_size(config))


def hf_extra(config: Mapping[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
    """Frequency factors, if config.json has Llama 3's scaling."""
    return hf_llama3(config, hf.head_size(config))


def hf_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """config.json from a GGUF file: the inverse of hf_metadata."""
    c = Config.from_metadata(checkpoint)
    scales = (c.embedding_scale, c.residual_scale, c.attention_scale, c.logit_scale)
    return hf.sizes_config(checkpoint, "GraniteForCausalLM", "granite") | {
        "hidden_act": "silu",
        "rms_norm_eps": hf.short(c.eps),
        "attention_bias": hf.biased(checkpoint, *hf.ATTENTION.values()),
        "mlp_bias": hf.biased(checkpoint, *hf.GATED.values()),
        **{theirs: hf.short(scale) for theirs, scale in zip(SCALES.values(), scales, strict=True)},
        **hf_rope_config(checkpoint, c.head_dim),
    }
