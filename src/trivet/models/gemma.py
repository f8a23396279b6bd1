"""Gemma 2 and 3: blocks whose attention and MLP are normed before and after, most with a short window.

Notable: embeddings are scaled by the root of the width; the gate is GELU by its tanh approximation; norms
hold 1 + w, as GGUF files do (Hugging Face's hold w); rotary pairs are a head's two halves. Gemma 2 caps
attention scores and logits softly, and every second layer sees all; Gemma 3 norms each head's queries and
keys, every sixth layer sees all, and the others rotate by a base of their own. Files may leave out all that
is the same for every model of the architecture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trivet import ops
from trivet.dtypes import DType
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
from trivet.models.qwen import HEAD_NORMS
from trivet.models.rope import Rope, hf_rope, hf_rope_config, hf_rope_metadata
from trivet.nn.attention import Attend


@dataclass(frozen=True, slots=True)
class Family:
    """What a file leaves out that says no more than its architecture."""

    period: int  # of the layers that see all
    window: int
    softcap: float
    final_softcap: float
    theta: float
    largest: int  # layers of the one size whose scores are scaled by the width's share, not by the head's


FAMILIES = {"gemma2": Family(2, 4096, 50.0, 30.0, 1e4, 46), "gemma3": Family(6, 0, 0.0, 0.0, 1e6, 62)}


@dataclass(frozen=True, slots=True)
class Config(DecoderConfig):
    """Sizes, as the file's metadata gives them."""

    eps: float
    scale: float
    softcap: float
    final_softcap: float
    windows: tuple[int, ...]  # of each layer; 0: it sees all
    rope: Rope
    local_theta: float  # of the layers with a window
    local_rope: Rope
    head_norms: bool

    @staticmethod
    def from_metadata(checkpoint: Checkpoint) -> Config:
        given, name = sizes(checkpoint), checkpoint.architecture
        family, layers, head_dim = FAMILIES[name], given["layers"], given["head_dim"]

        def real(key: str, default: float | None = None) -> float:
            return number(checkpoint.metadata, f"{name}.{key}", default, least=0.0)

        share = given["width"] / given["heads"] if layers == family.largest else head_dim
        rope = Rope.from_metadata(checkpoint, head_dim, family.theta)
        local_theta = real("rope.freq_base_swa", 10000.0)
        local, _ = ops.rope_frequencies(head_dim, local_theta, None)
        return Config(
            **given,
            eps=real("attention.layer_norm_rms_epsilon"),
            scale=number(checkpoint.metadata, f"{name}.attention.scale", share**-0.5, least=1e-6),
            softcap=real("attn_logit_softcapping", family.softcap),
            final_softcap=real("final_logit_softcapping", family.final_softcap),
            windows=windows(checkpoint, layers, family.period, family.window),
            rope=rope,
            local_theta=local_theta,
            local_rope=Rope(local, 1.0) if name == "gemma3" else rope,
            head_norms=name == "gemma3",
        )


class Block:
    """One decoder layer."""

    def __init__(self, config: Config, checkpoint: Checkpoint, index: int) -> None:
        c, block = config, f"blk.{index}"
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim

        def norm(name: str, width: int) -> RMSNorm:
            return RMSNorm(checkpoint, f"{block}.{name}", width, c.eps)

        def dense(name: str, inputs: int, outputs: int) -> Linear:
            return Linear(checkpoint, f"{block}.{name}", inputs, outputs)

        self.config, self.index = config, index
        self.attn_norm, self.post_attn = norm("attn_norm", c.width), norm("post_attention_norm", c.width)
        self.ffn_norm, self.post_ffn = norm("ffn_norm", c.width), norm("post_ffw_norm", c.width)
        self.q, self.out = dense("attn_q", c.width, q), dense("attn_output", q, c.width)
        self.k, self.v = dense("attn_k", c.width, kv), dense("attn_v", c.width, kv)
        if c.head_norms:
            self.q_norm, self.k_norm = norm("attn_q_norm", c.head_dim), norm("attn_k_norm", c.head_dim)
        self.gate, self.up = dense("ffn_gate", c.width, c.hidden), dense("ffn_up", c.width, c.hidden)
        self.down = dense("ffn_down", c.hidden, c.width)

    def __call__(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        h = self._attention(self.attn_norm(x), rope, attend)
        x = ops.add(x, self.post_attn(h))
        h = self.ffn_norm(x)
        gated = ops.geglu(self.gate(h), self.up(h), approximate=True)
        return ops.add(x, self.post_ffn(self.down(gated)))

    def _attention(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        c = self.config
        q, k, v = (heads(dense(x), c.head_dim) for dense in (self.q, self.k, self.v))
        if c.head_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = ops.rope(q, *rope), ops.rope(k, *rope)
        window = c.windows[self.index]
        return self.out(joined(attend(self.index, q, k, v, scale=c.scale, window=window, softcap=c.softcap)))


class Model(Decoder):
    """The whole decoder."""

    def __init__(self, config: Config, checkpoint: Checkpoint) -> None:
        blocks = [Block(config, checkpoint, i) for i in range(config.layers)]
        norm = RMSNorm(checkpoint, "output_norm", config.width, config.eps)
        super().__init__(config, checkpoint, blocks, norm)

    def embed(self, ids: Any, positions: Any, dtype: DType) -> Any:
        return ops.mul(super().embed(ids, positions, dtype), math.sqrt(self.config.width))

    def tables(self, positions: Any) -> Sequence[Any]:
        far, near = self.config.rope.table(positions), self.config.local_rope.table(positions)
        return [near if window else far for window in self.config.windows]

    def logits(self, x: Any) -> Any:
        logits, cap = super().logits(x), self.config.final_softcap
        return ops.mul(ops.tanh(ops.mul(logits, 1 / cap)), cap) if cap else logits


# --- Hugging Face folders ------------------------------------------------------------------------

NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
NAMES = hf.Names(NORMS | hf.ATTENTION | hf.GATED | HEAD_NORMS)
hf_rename, hf_original, hf_arrange, hf_extra = NAMES.rename, NAMES.original, hf.unmoved, hf.nothing
MODEL_TYPES = {"gemma2": "gemma2", "gemma3_text": "gemma3"}
CAPS = ("attn_logit_softcapping", "final_logit_softcapping")


def hf_offset(name: str) -> float:
    """What a folder's tensor lacks of the file's: norms are w there."""
    return 1.0 if name.endswith("norm.weight") else 0.0


def hf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata from config.json; refuses what the keys cannot say."""
    hf.only(config, hidden_activation="gelu_pytorch_tanh", use_bidirectional_attention=False)
    name = MODEL_TYPES[config["model_type"]]
    config = {"head_dim": 256, "max_position_embeddings": 8192} | dict(config)
    metadata, period = hf.sizes_metadata(name, config), FAMILIES[name].period
    metadata[f"{name}.attention.layer_norm_rms_epsilon"] = number(config, "rms_norm_eps", 1e-6, least=0.0)
    scalar = number(config, "query_pre_attn_scalar", 256, least=1e-6)
    metadata[f"{name}.attention.scale"] = scalar**-0.5
    for cap in CAPS:
        metadata[f"{name}.{cap}"] = number(config, cap, least=0.0) if config.get(cap) is not None else 0.0
    every = positive(config, "sliding_window_pattern", period)
    slides = [i % every != every - 1 for i in range(metadata[f"{name}.block_count"])]
    metadata |= hf.windows_metadata(name, {"sliding_window": 4096} | config, slides)
    return metadata | _hf_rope_metadata(name, config)


def _hf_rope_metadata(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Gemma 3 has a rotation for each kind of layer: two mappings in new files, two bases in older ones."""
    both = config.get("rope_parameters")
    both = both if isinstance(both, Mapping) else {}
    far = {**config, "rope_parameters": both["full_attention"]} if "full_attention" in both else config
    metadata = hf_rope_metadata(
        name, far, config["head_dim"], FAMILIES[name].theta, known=("default", "linear")
    )
    if name == "gemma3":
        theta = config.get("rope_local_base_freq") or 10000.0
        near = hf_rope({"rope_theta": theta, "rope_parameters": both.get("sliding_attention")})
        hf.only(near, rope_type="default")
        metadata[f"{name}.rope.freq_base_swa"] = number(near, "rope_theta", least=1e-6)
    return metadata


def hf_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """config.json from a GGUF file: the inverse of hf_metadata."""
    c, name = Config.from_metadata(checkpoint), checkpoint.architecture
    rope = hf_rope_config(checkpoint, c.head_dim, FAMILIES[name].theta)["rope_parameters"]
    near = {"rope_type": "default", "rope_theta": c.local_theta}
    return hf.sizes_config(checkpoint, f"{name.capitalize()}ForCausalLM", _model_type(name)) | {
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": hf.short(c.eps),
        "query_pre_attn_scalar": round(c.scale**-2),
        "attn_logit_softcapping": c.softcap or None,
        "final_logit_softcapping": c.final_softcap or None,
        "sliding_window": max(c.windows) or c.context,
        "layer_types": ["sliding_attention" if window else "full_attention" for window in c.windows],
        "rope_parameters": rope if name == "gemma2" else {"full_attention": rope, "sliding_attention": near},
    }


def _model_type(architecture: str) -> str:
    return next(theirs for theirs, ours in MODEL_TYPES.items() if ours == architecture)
