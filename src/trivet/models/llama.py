"""Llama 1 to 3, Mistral, Mixtral, SmolLM 1 and 2, DeepSeek's dense models: pre-norm decoder blocks of
grouped-query attention and a gated SiLU MLP, or in Mixtral a mixture of such.

Notable: rotary pairs are interleaved, as GGUF files hold them (Hugging Face's halves are re-ordered on
loading); every matrix may have a bias; the frequencies of Llama 3 come with the file as `rope_freqs.weight`;
Mistral's sliding window is metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import ops
from trivet.models import hf
from trivet.models.checkpoint import Checkpoint, number, positive
from trivet.models.decoder import (
    Decoder,
    DecoderConfig,
    Linear,
    RMSNorm,
    heads,
    joined,
    sizes,
    windows,
)
from trivet.models.mixture import Mixture, experts_metadata, mlp
from trivet.models.rope import Rope, hf_llama3, hf_rope_config, hf_rope_metadata
from trivet.nn.attention import Attend


@dataclass(frozen=True, slots=True)
class Config(DecoderConfig):
    """Sizes, as the file's metadata gives them."""

    eps: float
    windows: tuple[int, ...]  # of each layer; 0: it sees all
    rope: Rope
    mixture: Mixture | None

    @staticmethod
    def from_metadata(checkpoint: Checkpoint) -> Config:
        given = sizes(checkpoint)
        return Config(
            **given,
            eps=number(checkpoint.metadata, "llama.attention.layer_norm_rms_epsilon", least=0.0),
            windows=windows(checkpoint, given["layers"]),
            rope=Rope.from_metadata(checkpoint, given["head_dim"]),
            mixture=Mixture.from_metadata(checkpoint),
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
        self.mlp = mlp(checkpoint, name, c.width, c.hidden, c.mixture)

    def __call__(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        x = ops.add(x, self._attention(self.attn_norm(x), rope, attend))
        return ops.add(x, self.mlp(self.ffn_norm(x)))

    def _attention(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        c = self.config
        q, k, v = (heads(dense(x), c.head_dim) for dense in (self.q, self.k, self.v))
        q, k = ops.rope(q, *rope, interleaved=True), ops.rope(k, *rope, interleaved=True)
        o = attend(self.index, q, k, v, scale=c.head_dim**-0.5, window=c.windows[self.index])
        return self.out(joined(o))


class Model(Decoder):
    """The whole decoder."""

    def __init__(self, config: Config, checkpoint: Checkpoint) -> None:
        blocks = [Block(config, checkpoint, i) for i in range(config.layers)]
        norm = RMSNorm(checkpoint, "output_norm", config.width, config.eps)
        super().__init__(config, checkpoint, blocks, norm)


# --- Hugging Face folders ------------------------------------------------------------------------

EXPERTS = {
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.experts.{}.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.{}.w2": "ffn_down_exps",
    "block_sparse_moe.experts.{}.w3": "ffn_up_exps",
}
NAMES = hf.Names(hf.NORMS | hf.ATTENTION | hf.GATED | EXPERTS)
hf_rename, hf_original, hf_arrange = NAMES.rename, NAMES.original, hf.paired


def hf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata from config.json; refuses what the keys cannot say."""
    hf.only(config, hidden_act="silu")
    window = config.get("sliding_window")
    metadata = hf.sizes_metadata("llama", {"max_position_embeddings": 2048} | dict(config))
    metadata["llama.attention.layer_norm_rms_epsilon"] = number(config, "rms_norm_eps", 1e-6, least=0.0)
    if window is not None:
        metadata["llama.attention.sliding_window"] = positive(config, "sliding_window")
    if config["model_type"] == "mixtral":
        metadata |= experts_metadata("llama", config)
    return metadata | hf_rope_metadata("llama", config, hf.head_size(config))


def hf_extra(config: Mapping[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
    """The frequency factors of Llama 3."""
    return hf_llama3(config, hf.head_size(config))


def hf_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """config.json from a GGUF file: the inverse of hf_metadata."""
    metadata = checkpoint.metadata
    window = metadata.get("llama.attention.sliding_window", 0)
    kind, architecture = ("mistral", "MistralForCausalLM") if window else ("llama", "LlamaForCausalLM")
    config = hf.sizes_config(checkpoint, architecture, kind) | {
        "hidden_act": "silu",
        "rms_norm_eps": hf.short(number(metadata, "llama.attention.layer_norm_rms_epsilon")),
        **hf_rope_config(checkpoint, hf.head_dim(checkpoint)),
    }
    if window:
        config["sliding_window"] = window
    if (mixture := Mixture.from_metadata(checkpoint)) is not None:
        return config | {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": mixture.count,
            "num_experts_per_tok": mixture.used,
        }
    if window:
        return config
    return config | {
        "attention_bias": hf.biased(checkpoint, *hf.ATTENTION.values()),
        "mlp_bias": hf.biased(checkpoint, *hf.GATED.values()),
    }
