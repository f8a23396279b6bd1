"""OLMo 2 and 3: blocks whose attention and MLP are normed after, not before, and whose queries and keys are
normed over all heads at once.

Notable: OLMo 3, which GGUF files call olmo2, too, has a sliding window in three layers of four, where
frequencies are never scaled; rotary pairs are a head's two halves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trivet import ops
from trivet.errors import ModelError
from trivet.models import hf
from trivet.models.checkpoint import Checkpoint, number
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

PERIOD = 4  # in OLMo 3 one layer in so many sees all: the last


@dataclass(frozen=True, slots=True)
class Config(DecoderConfig):
    """Sizes, as the file's metadata gives them."""

    eps: float
    windows: tuple[int, ...]  # of each layer; 0: it sees all
    rope: Rope
    local_rope: Rope  # of layers with a window

    @staticmethod
    def from_metadata(checkpoint: Checkpoint) -> Config:
        given, metadata = sizes(checkpoint), checkpoint.metadata
        theta = number(metadata, "olmo2.rope.freq_base", 10000.0, least=1e-6)
        theta = number(metadata, "olmo2.rope.freq_base_swa", theta, least=1e-6)
        rope = Rope.from_metadata(checkpoint, given["head_dim"])
        inv_freq, scale = ops.rope_frequencies(2 * len(rope.inv_freq), theta)
        return Config(
            **given,
            eps=number(metadata, "olmo2.attention.layer_norm_rms_epsilon", least=0.0),
            windows=windows(checkpoint, given["layers"], PERIOD),
            rope=rope,
            local_rope=Rope(inv_freq, scale),
        )


class Block:
    """One decoder layer."""

    def __init__(self, config: Config, checkpoint: Checkpoint, index: int) -> None:
        c, name = config, f"blk.{index}"
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.config, self.index = config, index
        self.q = Linear(checkpoint, f"{name}.attn_q", c.width, q)
        self.k = Linear(checkpoint, f"{name}.attn_k", c.width, kv)
        self.v = Linear(checkpoint, f"{name}.attn_v", c.width, kv)
        self.q_norm = RMSNorm(checkpoint, f"{name}.attn_q_norm", q, c.eps)
        self.k_norm = RMSNorm(checkpoint, f"{name}.attn_k_norm", kv, c.eps)
        self.out = Linear(checkpoint, f"{name}.attn_output", q, c.width)
        self.attn_norm = RMSNorm(checkpoint, f"{name}.post_attention_norm", c.width, c.eps)
        self.mlp = GatedMLP(checkpoint, name, c.width, c.hidden)
        self.ffn_norm = RMSNorm(checkpoint, f"{name}.post_ffw_norm", c.width, c.eps)

    def __call__(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        x = ops.add(x, self.attn_norm(self._attention(x, rope, attend)))
        return ops.add(x, self.ffn_norm(self.mlp(x)))

    def _attention(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        c = self.config
        normed = (self.q_norm(self.q(x)), self.k_norm(self.k(x)), self.v(x))
        q, k, v = (heads(part, c.head_dim) for part in normed)
        q, k = ops.rope(q, *rope), ops.rope(k, *rope)
        o = attend(self.index, q, k, v, scale=c.head_dim**-0.5, window=c.windows[self.index])
        return self.out(joined(o))


class Model(Decoder):
    """The whole decoder."""

    def __init__(self, config: Config, checkpoint: Checkpoint) -> None:
        blocks = [Block(config, checkpoint, i) for i in range(config.layers)]
        norm = RMSNorm(checkpoint, "output_norm", config.width, config.eps)
        super().__init__(config, checkpoint, blocks, norm)

    def tables(self, positions: Any) -> Sequence[Any]:
        """One for layers that see all, one for those with a window."""
        c = self.config
        far = c.rope.table(positions)
        near = c.local_rope.table(positions) if any(c.windows) else far
        return [near if window else far for window in c.windows]


# --- Hugging Face folders ------------------------------------------------------------------------

NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
NAMES = hf.Names(NORMS | hf.ATTENTION | hf.GATED)
hf_rename, hf_original, hf_arrange, hf_extra = NAMES.rename, NAMES.original, hf.unmoved, hf.nothing
KNOWN = ("default", "dynamic", "linear", "yarn")


def hf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata from config.json; refuses what the keys cannot say."""
    hf.only(config, hidden_act="silu")
    metadata = hf.sizes_metadata("olmo2", config)
    metadata["olmo2.attention.layer_norm_rms_epsilon"] = number(config, "rms_norm_eps", 1e-5, least=0.0)
    size = hf.head_size(config)
    if config["model_type"] == "olmo2":
        return metadata | hf_rope_metadata("olmo2", config, size, known=KNOWN)
    slides = [i % PERIOD != PERIOD - 1 for i in range(metadata["olmo2.block_count"])]
    far, near = _both_ropes(config)
    local = hf_rope_metadata("olmo2", near, size, 500000.0, known=("default",))
    return (
        metadata
        | hf.windows_metadata("olmo2", config, slides)
        | hf_rope_metadata("olmo2", far, size, 500000.0, known=KNOWN)
        | {"olmo2.rope.freq_base_swa": local["olmo2.rope.freq_base"]}
    )


def _both_ropes(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json as it is for layers that see all, and for those with a window. New files have a mapping for
    each; in older ones, scaling is of the first kind only."""
    plain = {key: value for key, value in config.items() if key not in ("rope_parameters", "rope_scaling")}
    nested = config.get("rope_parameters") or {"full_attention": config.get("rope_scaling")}
    if not isinstance(nested, Mapping) or not nested.keys() <= hf.LAYERS.keys():
        raise ModelError(
            f"[load] config.json: rope_parameters is {nested!r:.60}; wanted {', '.join(hf.LAYERS)}"
        )
    far, near = (plain | {"rope_parameters": nested.get(k)} for k in ("full_attention", "sliding_attention"))
    return far, near


def hf_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """config.json from a GGUF file: the inverse of hf_metadata."""
    c = Config.from_metadata(checkpoint)
    kind, architecture = ("olmo3", "Olmo3ForCausalLM") if any(c.windows) else ("olmo2", "Olmo2ForCausalLM")
    rope = hf_rope_config(checkpoint, c.head_dim)
    if any(c.windows):
        theta = number(checkpoint.metadata, "olmo2.rope.freq_base_swa", rope["rope_theta"])
        near = {"rope_type": "default", "rope_theta": theta}
        rope = {"rope_parameters": {"full_attention": rope["rope_parameters"], "sliding_attention": near}}
        rope |= hf.windows_config(checkpoint)
    return hf.sizes_config(checkpoint, architecture, kind) | {
        "hidden_act": "silu",
        "rms_norm_eps": hf.short(c.eps),
        "attention_bias": hf.biased(checkpoint, *hf.ATTENTION.values()),
        **rope,
    }
