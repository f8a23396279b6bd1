"""GPT-NeoX, Pythia, Dolly: layer norms, one matrix for queries, keys and values, and a plain MLP with GELU.

Notable: in most of these models attention and MLP read the same stream and are added together; a part of each
head is rotated, its pairs are two halves; folders interleave the rows of queries, keys and values head by
head, GGUF files have one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import ops
from trivet.errors import ModelError
from trivet.models import hf
from trivet.models.checkpoint import Checkpoint, number, positive
from trivet.models.decoder import Decoder, DecoderConfig, LayerNorm, Linear, heads, joined, sizes, split
from trivet.models.rope import Rope, hf_rope_config, hf_rope_metadata
from trivet.nn.attention import Attend


@dataclass(frozen=True, slots=True)
class Config(DecoderConfig):
    """Sizes, as the file's metadata gives them."""

    eps: float
    rope: Rope
    parallel: bool

    @staticmethod
    def from_metadata(checkpoint: Checkpoint) -> Config:
        given, metadata = sizes(checkpoint), checkpoint.metadata
        if given["kv_heads"] != given["heads"] or given["head_dim"] * given["heads"] != given["width"]:
            raise ModelError("[load] a gptneox model has as many key heads as heads, which make up its width")
        parallel = metadata.get("gptneox.use_parallel_residual", True)
        if not isinstance(parallel, bool | np.bool_):
            raise ModelError(f"[load] metadata gptneox.use_parallel_residual is {parallel!r}; wanted a flag")
        return Config(
            **given,
            eps=number(metadata, "gptneox.attention.layer_norm_epsilon", least=0.0),
            rope=Rope.from_metadata(checkpoint, given["head_dim"]),
            parallel=bool(parallel),
        )


class Block:
    """One decoder layer."""

    def __init__(self, config: Config, checkpoint: Checkpoint, index: int) -> None:
        c, name = config, f"blk.{index}"
        self.config, self.index = config, index
        self.attn_norm = LayerNorm(checkpoint, f"{name}.attn_norm", c.width, c.eps)
        self.qkv = Linear(checkpoint, f"{name}.attn_qkv", c.width, 3 * c.width)
        self.out = Linear(checkpoint, f"{name}.attn_output", c.width, c.width)
        self.ffn_norm = LayerNorm(checkpoint, f"{name}.ffn_norm", c.width, c.eps)
        self.up = Linear(checkpoint, f"{name}.ffn_up", c.width, c.hidden, biased=True)
        self.down = Linear(checkpoint, f"{name}.ffn_down", c.hidden, c.width, biased=True)

    def __call__(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        y = ops.add(x, self._attention(self.attn_norm(x), rope, attend))
        h = self.ffn_norm(x if self.config.parallel else y)
        return ops.add(y, self.down(ops.gelu_erf(self.up(h))))

    def _attention(self, x: Any, rope: tuple[Any, Any], attend: Attend) -> Any:
        c = self.config
        q, k, v = (heads(part, c.head_dim) for part in split(self.qkv(x), c.width, c.width, c.width))
        q, k = ops.rope(q, *rope), ops.rope(k, *rope)
        return self.out(joined(attend(self.index, q, k, v, scale=c.head_dim**-0.5)))


class Model(Decoder):
    """The whole decoder."""

    def __init__(self, config: Config, checkpoint: Checkpoint) -> None:
        blocks = [Block(config, checkpoint, i) for i in range(config.layers)]
        norm = LayerNorm(checkpoint, "output_norm", config.width, config.eps)
        super().__init__(config, checkpoint, blocks, norm)


# --- Hugging Face folders ------------------------------------------------------------------------

NAMES = hf.Names(
    {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "attention.query_key_value": "attn_qkv",
        "attention.dense": "attn_output",
        "mlp.dense_h_to_4h": "ffn_up",
        "mlp.dense_4h_to_h": "ffn_down",
    },
    {
        "gpt_neox.embed_in": "token_embd",
        "gpt_neox.final_layer_norm": "output_norm",
        "embed_out": "output",
        "lm_head": "output",
    },
    "gpt_neox.layers",
    buffers=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
)
hf_rename, hf_original, hf_extra = NAMES.rename, NAMES.original, hf.nothing
PARTIAL = 0.25


def hf_arrange(name: str, array: npt.NDArray[Any], metadata: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Rows of each head's query, key and value, to those of all queries, all keys, all values."""
    if re.fullmatch(r"blk\.\d+\.attn_qkv\.(weight|bias)", name) is None:
        return array
    count = positive(metadata, "gptneox.attention.head_count")
    if not array.ndim or array.shape[0] % (3 * count):
        raise ModelError(
            f"[load] tensor {name} has the shape {array.shape}; wanted three parts of {count} heads"
        )
    by_head = array.reshape(count, 3, array.shape[0] // count // 3, *array.shape[1:])
    return np.ascontiguousarray(by_head.swapaxes(0, 1)).reshape(array.shape)


def _named(config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json with the names that others have for the rotation."""
    names = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}
    return {names.get(key, key): value for key, value in config.items()}


def hf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata from config.json; refuses what the keys cannot say, such as another GELU."""
    hf.only(config, hidden_act="gelu", use_parallel_residual=(True, False))
    metadata = hf.sizes_metadata("gptneox", config)
    metadata["gptneox.attention.layer_norm_epsilon"] = number(config, "layer_norm_eps", 1e-5, least=0.0)
    metadata["gptneox.use_parallel_residual"] = config.get("use_parallel_residual") is not False
    known = ("default", "dynamic", "linear", "yarn")
    size = hf.head_size(config)
    return metadata | hf_rope_metadata("gptneox", _named(config), size, partial=PARTIAL, known=known)


def hf_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """config.json from a GGUF file: the inverse of hf_metadata."""
    c = Config.from_metadata(checkpoint)
    rope = hf_rope_config(checkpoint, c.head_dim, partial=True)
    return hf.sizes_config(checkpoint, "GPTNeoXForCausalLM", "gpt_neox") | {
        "hidden_act": "gelu",
        "layer_norm_eps": hf.short(c.eps),
        "use_parallel_residual": c.parallel,
        "attention_bias": hf.biased(checkpoint, "attn_qkv", "attn_output"),
        "rotary_emb_base": rope["rope_theta"],
        "rotary_pct": rope["partial_rotary_factor"],
        "rope_parameters": rope["rope_parameters"],
    }
