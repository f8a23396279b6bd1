"""StableLM 1 and 2: Llama's blocks with layer norms, and a rotation of a part of each head.

Notable: biases on queries, keys and values are optional; StableLM 2 12B norms queries and keys, each head by
weights of its own, and has no second norm in a block, for its attention and MLP read the same; rotary pairs
are halves of the rotated part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trivet import ops
from trivet.models import hf
from trivet.models.checkpoint import Checkpoint, number
from trivet.models.decoder import Decoder, DecoderConfig, GatedMLP, LayerNorm, Linear, heads, joined, sizes
from trivet.models.rope import Rope, hf_rope_config, hf_rope_metadata
from trivet.nn.attention import Attend
from trivet.ops.rules import to_dtype


@dataclass(frozen=True, slots=True)
class Config(DecoderConfig):
    """Sizes, as the file's metadata gives them."""

    eps: float
    rope: Rope
    parallel: bool
    head_norms: bool

    @staticmethod
    def from_metadata(checkpoint: Checkpoint) -> Config:
        given = sizes(checkpoint)
        return Config(
            **given,
            eps=number(checkpoint.metadata, "stablelm.attention.layer_norm_epsilon", least=0.0),
            rope=Rope.from_metadata(checkpoint, given["head_dim"]),
            # files' use_parallel_residual is not to be trusted
            parallel="blk.0.ffn_norm.weight" not in checkpoint.tensors,
            head_norms="blk.0.attn_q_norm.weight" in checkpoint.tensors,
        )


class HeadNorms:
    """A layer norm of each head, with weights of its own."""

    def __init__(self, checkpoint: Checkpoint, name: str, count: int, size: int, eps: float) -> None:
        self.weight, self.eps = checkpoint.weight(f"{name}.weight", (count, size)), eps
        self.ones, self.zeros = np.ones(size, np.float32), np.zeros(size, np.float32)

    def __call__(self, x: Any) -> Any:
        return ops.mul(ops.layer_norm(x, self.ones, self.zeros, eps=self.eps), to_dtype(self.weight, x.dtype))


class Block:
    """One decoder layer."""

    def __init__(self, config: Config, checkpoint: Checkpoint, index: int) -> None:
        c, name = config, f"blk.{index}"
        kv = c.kv_heads * c.head_dim
        self.config, self.index = config, index
        self.attn_norm = LayerNorm(checkpoint, f"{name}.attn_norm", c.width, c.eps)
        self.q = Linear(checkpoint, f"{name}.attn_q", c.width, c.heads * c.head_dim)
        self.k = Linear(checkpoint, f"{name}.attn_k", c.width, kv)
        self.v = Linear(checkpoint, f"{name}.attn_v", c.width, kv)
        if c.head_norms:
            self.q_norm = HeadNorms(checkpoint, f"{name}.attn_q_norm", c.heads, c.head_dim, c.eps)
            self.k_norm = HeadNorms(checkpoint, f"{name}.attn_k_norm", c.kv_heads, c.head_dim, c.eps)
        self.out = Linear(checkpoint, f"{name}.attn_output", c.heads * c.head_dim, c.width)
        if not c.parallel:
            self.ffn_norm = LayerNorm(checkpoint, f"{name}.ffn_norm", c.width, c.eps)
        self.mlp = GatedMLP(checkpoint, name, c.width, c.hidden)

    def __call__(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        h = self.attn_norm(x)
        x = ops.add(x, self._attention(h, rope, attend))
        return ops.add(x, self.mlp(h if self.config.parallel else self.ffn_norm(x)))

    def _attention(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        c = self.config
        q, k, v = (heads(dense(x), c.head_dim) for dense in (self.q, self.k, self.v))
        if c.head_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = ops.rope(q, *rope), ops.rope(k, *rope)
        return self.out(joined(attend(self.index, q, k, v, scale=c.head_dim**-0.5)))


class Model(Decoder):
    """The whole decoder."""

    def __init__(self, config: Config, checkpoint: Checkpoint) -> None:
        blocks = [Block(config, checkpoint, i) for i in range(config.layers)]
        norm = LayerNorm(checkpoint, "output_norm", config.width, config.eps)
        super().__init__(config, checkpoint, blocks, norm)


# --- Hugging Face folders ------------------------------------------------------------------------

HEAD_NORMS = {
    "self_attn.q_layernorm.norms.{}": "attn_q_norm",
    "self_attn.k_layernorm.norms.{}": "attn_k_norm",
}
NAMES = hf.Names(hf.NORMS | hf.ATTENTION | hf.GATED | HEAD_NORMS)
hf_rename, hf_original, hf_arrange, hf_extra = NAMES.rename, NAMES.original, hf.unmoved, hf.nothing
PARTIAL = 0.25


def hf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata from config.json; refuses what the keys cannot say."""
    hf.only(config, hidden_act="silu", use_parallel_residual=(True, False))
    metadata = hf.sizes_metadata("stablelm", config)
    metadata["stablelm.attention.layer_norm_epsilon"] = number(config, "layer_norm_eps", 1e-5, least=0.0)
    metadata["stablelm.use_parallel_residual"] = bool(config.get("use_parallel_residual"))
    known = ("default", "dynamic", "linear", "yarn")
    return metadata | hf_rope_metadata("stablelm", config, hf.head_size(config), partial=PARTIAL, known=known)


def hf_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """config.json from a GGUF file: the inverse of hf_metadata."""
    c = Config.from_metadata(checkpoint)
    return hf.sizes_config(checkpoint, "StableLmForCausalLM", "stablelm") | {
        "hidden_act": "silu",
        "layer_norm_eps": hf.short(c.eps),
        "use_qkv_bias": hf.biased(checkpoint, "attn_q", "attn_k", "attn_v"),
        "qk_layernorm": c.head_norms,
        "use_parallel_residual": c.parallel,
        **hf_rope_config(checkpoint, c.head_dim, partial=True),
    }
