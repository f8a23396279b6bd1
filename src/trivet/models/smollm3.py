"""SmolLM 3: Llama's blocks, of which every fourth rotates nothing.

Notable: GGUF has no key for which layers rotate (NoPE, arXiv:2501.18795), so a folder that says otherwise is
refused; rotary pairs are interleaved, as in Llama's GGUF files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trivet import ops
from trivet.errors import ModelError
from trivet.models import hf
from trivet.models.checkpoint import Checkpoint, number, positive
from trivet.models.decoder import (
    Decoder,
    DecoderConfig,
    GatedMLP,
    Linear,
    RMSNorm,
    heads,
    joined,
    sizes,
    windows,
)
from trivet.models.rope import Rope, hf_rope_config, hf_rope_metadata
from trivet.nn.attention import Attend

STEP = 4  # one layer in so many does not rotate: the last


@dataclass(frozen=True, slots=True)
class Config(DecoderConfig):
    """Sizes, as the file's metadata gives them."""

    eps: float
    windows: tuple[int, ...]  # of each layer; 0: it sees all
    rope: Rope

    @staticmethod
    def from_metadata(checkpoint: Checkpoint) -> Config:
        given = sizes(checkpoint)
        return Config(
            **given,
            eps=number(checkpoint.metadata, "smollm3.attention.layer_norm_rms_epsilon", least=0.0),
            windows=windows(checkpoint, given["layers"]),
            rope=Rope.from_metadata(checkpoint, given["head_dim"]),
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
        x = ops.add(x, self._attention(self.attn_norm(x), rope, attend))
        return ops.add(x, self.mlp(self.ffn_norm(x)))

    def _attention(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        c = self.config
        q, k, v = (heads(dense(x), c.head_dim) for dense in (self.q, self.k, self.v))
        if rotates(self.index):
            q, k = ops.rope(q, *rope, interleaved=True), ops.rope(k, *rope, interleaved=True)
        o = attend(self.index, q, k, v, scale=c.head_dim**-0.5, window=c.windows[self.index])
        return self.out(joined(o))


def rotates(layer: int) -> bool:
    """Whether a layer rotates its queries and keys."""
    return (layer + 1) % STEP != 0


class Model(Decoder):
    """The whole decoder."""

    def __init__(self, config: Config, checkpoint: Checkpoint) -> None:
        blocks = [Block(config, checkpoint, i) for i in range(config.layers)]
        norm = RMSNorm(checkpoint, "output_norm", config.width, config.eps)
        super().__init__(config, checkpoint, blocks, norm)


# --- Hugging Face folders ------------------------------------------------------------------------

THETA = 2000000.0
NAMES = hf.Names(hf.NORMS | hf.ATTENTION | hf.GATED)
hf_rename, hf_original, hf_arrange, hf_extra = NAMES.rename, NAMES.original, hf.paired, hf.nothing


def hf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata from config.json; refuses what the keys cannot say."""
    hf.only(config, hidden_act="silu")
    metadata = hf.sizes_metadata("smollm3", config)
    metadata["smollm3.attention.layer_norm_rms_epsilon"] = number(config, "rms_norm_eps", 1e-6, least=0.0)
    rotating = [rotates(i) for i in range(metadata["smollm3.block_count"])]
    _check_rotating(config, rotating)
    if config.get("use_sliding_window"):
        metadata |= hf.windows_metadata("smollm3", config, [not r for r in rotating])
    known = ("default", "dynamic", "linear", "yarn")
    return metadata | hf_rope_metadata("smollm3", config, hf.head_size(config), THETA, known=known)


def _check_rotating(config: Mapping[str, Any], rotating: list[bool]) -> None:
    said = config.get("no_rope_layers")  # 1 where a layer rotates
    if said is None:
        step = positive(config, "no_rope_layer_interval", STEP)
        said = [(i + 1) % step != 0 for i in range(len(rotating))]
    if not isinstance(said, list) or said[: len(rotating)] != rotating:
        raise ModelError(
            f"[load] config.json: no_rope_layers is {said!r:.60}; wanted every {STEP}th layer not to rotate"
        )


def hf_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """config.json from a GGUF file: the inverse of hf_metadata."""
    config = hf.sizes_config(checkpoint, "SmolLM3ForCausalLM", "smollm3")
    return config | {
        "hidden_act": "silu",
        "rms_norm_eps": hf.short(number(checkpoint.metadata, "smollm3.attention.layer_norm_rms_epsilon")),
        "no_rope_layers": [int(rotates(i)) for i in range(config["num_hidden_layers"])],
        "attention_bias": hf.biased(checkpoint, *hf.ATTENTION.values()),
        "mlp_bias": hf.biased(checkpoint, *hf.GATED.values()),
        **hf.windows_config(checkpoint),
        **hf_rope_config(checkpoint, hf.head_dim(checkpoint)),
    }
