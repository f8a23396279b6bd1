"""Qwen 2, 2.5 and 3, dense and mixtures of experts: Llama's blocks, in Qwen 2 with biases on queries, keys
and values, in Qwen 3 with a norm of each head's queries and keys.

Notable: rotary pairs are a head's two halves; the output matrix of small models is the embedding; later
layers may have a sliding window, which no published model uses.
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
from trivet.models.mixture import Mixture, experts_metadata, is_dense, mlp
from trivet.models.rope import Rope, hf_llama3, hf_rope_config, hf_rope_metadata
from trivet.nn.attention import Attend


@dataclass(frozen=True, slots=True)
class Config(DecoderConfig):
    """Sizes, as the file's metadata gives them."""

    eps: float
    windows: tuple[int, ...]  # of each layer; 0: it sees all
    rope: Rope
    head_norms: bool
    mixture: Mixture | None

    @staticmethod
    def from_metadata(checkpoint: Checkpoint) -> Config:
        given, name = sizes(checkpoint), checkpoint.architecture
        return Config(
            **given,
            eps=number(checkpoint.metadata, f"{name}.attention.layer_norm_rms_epsilon", least=0.0),
            windows=windows(checkpoint, given["layers"]),
            rope=Rope.from_metadata(checkpoint, given["head_dim"]),
            head_norms=name != "qwen2",
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
        if c.head_norms:
            self.q_norm = RMSNorm(checkpoint, f"{name}.attn_q_norm", c.head_dim, c.eps)
            self.k_norm = RMSNorm(checkpoint, f"{name}.attn_k_norm", c.head_dim, c.eps)
        self.out = Linear(checkpoint, f"{name}.attn_output", q, c.width)
        self.ffn_norm = RMSNorm(checkpoint, f"{name}.ffn_norm", c.width, c.eps)
        self.mlp = mlp(checkpoint, name, c.width, c.hidden, c.mixture)

    def __call__(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        x = ops.add(x, self._attention(self.attn_norm(x), rope, attend))
        return ops.add(x, self.mlp(self.ffn_norm(x)))

    def _attention(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        c = self.config
        q, k, v = (heads(dense(x), c.head_dim) for dense in (self.q, self.k, self.v))
        if c.head_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = ops.rope(q, *rope), ops.rope(k, *rope)
        o = attend(self.index, q, k, v, scale=c.head_dim**-0.5, window=c.windows[self.index])
        return self.out(joined(o))


class Model(Decoder):
    """The whole decoder."""

    def __init__(self, config: Config, checkpoint: Checkpoint) -> None:
        blocks = [Block(config, checkpoint, i) for i in range(config.layers)]
        norm = RMSNorm(checkpoint, "output_norm", config.width, config.eps)
        super().__init__(config, checkpoint, blocks, norm)


# --- Hugging Face folders ------------------------------------------------------------------------

HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
EXPERTS = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.{}.gate_proj": "ffn_gate_exps",
    "mlp.experts.{}.up_proj": "ffn_up_exps",
    "mlp.experts.{}.down_proj": "ffn_down_exps",
}
NAMES = hf.Names(hf.NORMS | hf.ATTENTION | hf.GATED | HEAD_NORMS | EXPERTS)
#: GGUF's architecture -> config.json's model_type, and the class
MODELS = {
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "qwen3moe": ("qwen3_moe", "Qwen3MoeForCausalLM"),
}
hf_rename, hf_original, hf_arrange = NAMES.rename, NAMES.original, hf.unmoved


def hf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata from config.json; refuses what the keys cannot say."""
    hf.only(config, hidden_act="silu")
    name = next(ours for ours, (theirs, _) in MODELS.items() if theirs == config["model_type"])
    metadata = hf.sizes_metadata(name, config)
    metadata[f"{name}.attention.layer_norm_rms_epsilon"] = number(config, "rms_norm_eps", 1e-6, least=0.0)
    if name == "qwen3moe":
        hf.only(config, norm_topk_prob=(True, False))
        metadata |= experts_metadata(name, config)
        metadata[f"{name}.expert_feed_forward_length"] = positive(config, "moe_intermediate_size")
        metadata[f"{name}.expert_weights_norm"] = bool(config.get("norm_topk_prob", False))
    if config.get("use_sliding_window"):
        first = number(config, "max_window_layers", 28)
        slides = [i >= first for i in range(metadata[f"{name}.block_count"])]
        metadata |= hf.windows_metadata(name, config, slides)
    return metadata | hf_rope_metadata(name, config, hf.head_size(config))


def hf_extra(config: Mapping[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
    """Frequency factors, if config.json has Llama 3's scaling."""
    return hf_llama3(config, hf.head_size(config))


def hf_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """config.json from a GGUF file: the inverse of hf_metadata."""
    name = checkpoint.architecture
    kind, architecture = MODELS[name]
    config = hf.sizes_config(checkpoint, architecture, kind) | {
        "hidden_act": "silu",
        "rms_norm_eps": hf.short(number(checkpoint.metadata, f"{name}.attention.layer_norm_rms_epsilon")),
        **hf.windows_config(checkpoint),
        **hf_rope_config(checkpoint, hf.head_dim(checkpoint)),
    }
    if name != "qwen2":
        config["attention_bias"] = hf.biased(checkpoint, *hf.ATTENTION.values())
    if (mixture := Mixture.from_metadata(checkpoint)) is not None:
        config |= {
            "num_experts": mixture.count,
            "num_experts_per_tok": mixture.used,
            "moe_intermediate_size": mixture.hidden,
            "norm_topk_prob": mixture.normed,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [
                i for i in range(config["num_hidden_layers"]) if is_dense(checkpoint, f"blk.{i}")
            ],
        }
    return config
