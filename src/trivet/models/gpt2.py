"""GPT-2: pre-norm decoder blocks with learned positions, LayerNorm, and one matrix for queries, keys, values.

Notable: every linear layer has a bias; the MLP is two layers with GELU by its tanh approximation; the output
matrix is the embedding unless the file has another; Hugging Face's matrices are [inputs, outputs], and are
turned on loading.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trivet import ops
from trivet.dtypes import DType
from trivet.errors import ModelError
from trivet.models import hf
from trivet.models.checkpoint import Checkpoint, number, positive
from trivet.models.decoder import Decoder, DecoderConfig, LayerNorm, Linear, heads, joined, sizes, split
from trivet.nn.attention import Attend


@dataclass(frozen=True, slots=True)
class Config(DecoderConfig):
    """Sizes, as the file's metadata gives them."""

    eps: float

    @staticmethod
    def from_metadata(checkpoint: Checkpoint) -> Config:
        given = sizes(checkpoint)
        if given["kv_heads"] != given["heads"] or given["head_dim"] * given["heads"] != given["width"]:
            raise ModelError("[load] a gpt2 model has as many key heads as heads, which make up its width")
        return Config(
            **given, eps=number(checkpoint.metadata, "gpt2.attention.layer_norm_epsilon", least=0.0)
        )


class Block:
    """One decoder layer."""

    def __init__(self, config: Config, checkpoint: Checkpoint, index: int) -> None:
        c, name = config, f"blk.{index}"
        self.config, self.index = config, index
        self.attn_norm = LayerNorm(checkpoint, f"{name}.attn_norm", c.width, c.eps)
        self.qkv = Linear(checkpoint, f"{name}.attn_qkv", c.width, 3 * c.width, biased=True)
        self.out = Linear(checkpoint, f"{name}.attn_output", c.width, c.width, biased=True)
        self.ffn_norm = LayerNorm(checkpoint, f"{name}.ffn_norm", c.width, c.eps)
        self.up = Linear(checkpoint, f"{name}.ffn_up", c.width, c.hidden, biased=True)
        self.down = Linear(checkpoint, f"{name}.ffn_down", c.hidden, c.width, biased=True)

    def __call__(self, x: Any, rope: None, attend: Attend) -> Any:
        x = ops.add(x, self._attention(self.attn_norm(x), attend))
        return ops.add(x, self.down(ops.gelu_tanh(self.up(self.ffn_norm(x)))))

    def _attention(self, x: Any, attend: Attend) -> Any:
        c = self.config
        q, k, v = (heads(part, c.head_dim) for part in split(self.qkv(x), c.width, c.width, c.width))
        return self.out(joined(attend(self.index, q, k, v, scale=c.head_dim**-0.5)))


class Model(Decoder):
    """The whole decoder."""

    def __init__(self, config: Config, checkpoint: Checkpoint) -> None:
        blocks = [Block(config, checkpoint, i) for i in range(config.layers)]
        norm = LayerNorm(checkpoint, "output_norm", config.width, config.eps)
        super().__init__(config, checkpoint, blocks, norm)
        trained = positive(checkpoint.metadata, "gpt2.context_length")  # `config.context` may be less
        self.position = checkpoint.weight("position_embd.weight", (trained, config.width))

    def embed(self, ids: Any, positions: Any, dtype: DType) -> Any:
        """Tokens' embeddings and their positions'."""
        tables = (ops.embedding(ids, self.embedding), ops.embedding(positions, self.position))
        return ops.add(*(h if h.dtype is dtype else ops.cast(h, dtype) for h in tables))

    def tables(self, positions: Any) -> list[None]:
        """Nothing is rotated."""
        return [None] * len(self.blocks)


# --- Hugging Face folders ---------------------------------------------------------------------------------

NAMES = hf.Names(
    {
        "ln_1": "attn_norm",
        "attn.c_attn": "attn_qkv",
        "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
    },
    {
        "transformer.wte": "token_embd",
        "transformer.wpe": "position_embd",
        "transformer.ln_f": "output_norm",
        "lm_head": "output",
    },
    "transformer.h",
    buffers=(".attn.bias", ".attn.masked_bias"),  # causal masks
)
hf_rename, hf_original, hf_arrange, hf_extra = NAMES.rename, NAMES.original, hf.unmoved, hf.nothing


def hf_transposed(name: str) -> bool:
    """Whether a folder holds this matrix as [inputs, outputs]."""
    return re.fullmatch(r"blk\.\d+\.(attn|ffn)_(qkv|output|up|down)\.weight", name) is not None


def hf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata from config.json; refuses what the keys cannot say."""
    hf.only(
        config,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
        activation_function=("gelu_new", "gelu_pytorch_tanh"),
    )
    width = positive(config, "n_embd")
    return {
        "general.architecture": "gpt2",
        "gpt2.block_count": positive(config, "n_layer"),
        "gpt2.context_length": positive(config, "n_positions", 1024),
        "gpt2.embedding_length": width,
        "gpt2.feed_forward_length": positive(config, "n_inner") if config.get("n_inner") else 4 * width,
        "gpt2.attention.head_count": positive(config, "n_head"),
        "gpt2.attention.layer_norm_epsilon": number(config, "layer_norm_epsilon", 1e-5),
        "gpt2.vocab_size": positive(config, "vocab_size"),
    }


def hf_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """config.json from a GGUF file: the inverse of hf_metadata."""
    metadata = checkpoint.metadata

    def at(key: str) -> int:
        return positive(metadata, f"gpt2.{key}")

    return hf.token_ids(metadata) | {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_embd": at("embedding_length"),
        "n_inner": at("feed_forward_length"),
        "n_layer": at("block_count"),
        "n_head": at("attention.head_count"),
        "n_positions": at("context_length"),
        "layer_norm_epsilon": hf.short(number(metadata, "gpt2.attention.layer_norm_epsilon")),
        "vocab_size": checkpoint.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in checkpoint.tensors,
    }
