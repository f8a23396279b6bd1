"""Phi 3 and 4: Llama's blocks with one matrix for queries, keys and values, and one for the MLP's two inputs.

Notable: a part of each head may be rotated; long-context models have two sets of divisors of the frequencies,
one for contexts up to the original length and one for longer ones (arXiv:2402.13753). Which it is depends on
the context the model is opened with, not on how much of it is used: so a token's keys never change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import ops
from trivet.errors import ModelError
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
    split,
    windows,
)
from trivet.models.rope import Rope, divisors, hf_rope, hf_rope_config, hf_rope_metadata
from trivet.nn.attention import Attend

LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"


@dataclass(frozen=True, slots=True)
class Config(DecoderConfig):
    """Sizes, as the file's metadata gives them."""

    eps: float
    windows: tuple[int, ...]  # of each layer; 0: it sees all
    short: Rope  # of contexts up to `original`
    long: Rope
    original: int

    @staticmethod
    def from_metadata(checkpoint: Checkpoint) -> Config:
        given, metadata = sizes(checkpoint), checkpoint.metadata
        rope = Rope.from_metadata(checkpoint, given["head_dim"])
        if (LONG in checkpoint.tensors) != (SHORT in checkpoint.tensors):
            raise ModelError(f"[load] of the tensors {LONG} and {SHORT}, one is missing")
        return Config(
            **given,
            eps=number(metadata, "phi3.attention.layer_norm_rms_epsilon", least=0.0),
            windows=windows(checkpoint, given["layers"]),
            short=_scaled(rope, checkpoint, SHORT),
            long=_scaled(rope, checkpoint, LONG),
            original=positive(metadata, "phi3.rope.scaling.original_context_length", given["context"]),
        )


def _scaled(rope: Rope, checkpoint: Checkpoint, name: str) -> Rope:
    """The rotation with a tensor of divisors, if the file has it."""
    factors = divisors(checkpoint, name, len(rope.inv_freq))
    if factors is None:
        return rope
    scale = number(checkpoint.metadata, "phi3.rope.scaling.attn_factor", 1.0, least=1e-6)
    return Rope(rope.inv_freq / factors, scale)


class Block:
    """One decoder layer."""

    def __init__(self, config: Config, checkpoint: Checkpoint, index: int) -> None:
        c, name = config, f"blk.{index}"
        self.config, self.index = config, index
        self.parts = (c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim)
        self.attn_norm = RMSNorm(checkpoint, f"{name}.attn_norm", c.width, c.eps)
        self.qkv = Linear(checkpoint, f"{name}.attn_qkv", c.width, sum(self.parts))
        self.out = Linear(checkpoint, f"{name}.attn_output", c.heads * c.head_dim, c.width)
        self.ffn_norm = RMSNorm(checkpoint, f"{name}.ffn_norm", c.width, c.eps)
        self.gate_up = Linear(checkpoint, f"{name}.ffn_up", c.width, 2 * c.hidden)
        self.down = Linear(checkpoint, f"{name}.ffn_down", c.hidden, c.width)

    def __call__(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        x = ops.add(x, self._attention(self.attn_norm(x), rope, attend))
        gate, up = split(self.gate_up(self.ffn_norm(x)), self.config.hidden, self.config.hidden)
        return ops.add(x, self.down(ops.swiglu(gate, up)))

    def _attention(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        c = self.config
        q, k, v = (heads(part, c.head_dim) for part in split(self.qkv(x), *self.parts))
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
        """The table of the context the model is opened with."""
        c = self.config
        rope = c.long if c.context > c.original else c.short
        return [rope.table(positions)] * c.layers


# --- Hugging Face folders ------------------------------------------------------------------------

NAMES = hf.Names(
    hf.NORMS
    | {
        "self_attn.qkv_proj": "attn_qkv",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
)
hf_rename, hf_original, hf_arrange = NAMES.rename, NAMES.original, hf.unmoved
SCALED = ("longrope", "su", "yarn")  # what files call it


def hf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata from config.json; refuses what the keys cannot say."""
    hf.only(config, hidden_act="silu")
    metadata = hf.sizes_metadata("phi3", config)
    metadata["phi3.attention.layer_norm_rms_epsilon"] = number(config, "rms_norm_eps", 1e-5, least=0.0)
    if config.get("sliding_window") is not None:
        metadata["phi3.attention.sliding_window"] = positive(config, "sliding_window")
    known = ("default", *SCALED)
    plain = hf_rope_metadata("phi3", _plain(config), hf.head_size(config), partial=1.0, known=known)
    metadata |= plain | {"phi3.rope.scaling.original_context_length": _original(config)}
    if hf_rope(config)["rope_type"] in SCALED:
        metadata["phi3.rope.scaling.attn_factor"] = _attention_factor(config)
    return metadata


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json without its scaling; refuses one that is unknown."""
    rope = hf_rope(config)
    kind = "default" if rope["rope_type"] in SCALED else rope["rope_type"]
    return {**config, "rope_parameters": {**rope, "rope_type": kind}}


def _original(config: Mapping[str, Any]) -> int:
    """The context that a model was made for at first."""
    key = "original_max_position_embeddings"
    whole = positive(config, "max_position_embeddings")
    return positive({**config, **hf_rope(config)}, key, positive(config, key, whole))


def _attention_factor(config: Mapping[str, Any]) -> float:
    rope, original = hf_rope(config), _original(config)
    factor = number(rope, "factor", positive(config, "max_position_embeddings") / original, least=1e-6)
    paper = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    return paper if rope.get("attention_factor") is None else number(rope, "attention_factor", least=1e-6)


def hf_extra(config: Mapping[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
    """The divisors of the frequencies, which config.json holds as lists."""
    rope = hf_rope(config)
    if rope["rope_type"] not in SCALED:
        return {}
    return {name: _listed(rope, key) for name, key in ((LONG, "long_factor"), (SHORT, "short_factor"))}


def _listed(rope: Mapping[str, Any], key: str) -> npt.NDArray[np.float32]:
    values = rope.get(key)
    if not isinstance(values, list) or not all(type(v) in (int, float) and 0 < v < 1e30 for v in values):
        raise ModelError(f"[load] config.json: {key} is {values!r:.50}; wanted a list of positive numbers")
    return np.array(values, np.float32)


def hf_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """config.json from a GGUF file: the inverse of hf_metadata."""
    c, metadata = Config.from_metadata(checkpoint), checkpoint.metadata
    config = hf.sizes_config(checkpoint, "Phi3ForCausalLM", "phi3") | {
        "hidden_act": "silu",
        "rms_norm_eps": hf.short(c.eps),
        "sliding_window": max(c.windows) or None,
        "original_max_position_embeddings": c.original,
        **hf_rope_config(checkpoint, c.head_dim, partial=True),
    }
    if LONG in checkpoint.tensors:
        config["rope_parameters"] |= {
            "rope_type": "longrope",
            "long_factor": [hf.short(v) for v in checkpoint.tensors[LONG].values()],
            "short_factor": [hf.short(v) for v in checkpoint.tensors[SHORT].values()],
            "original_max_position_embeddings": c.original,
            "attention_factor": number(metadata, "phi3.rope.scaling.attn_factor", 1.0),
        }
    return config
