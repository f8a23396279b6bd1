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

import numpy as np
import numpy.typing as npt

from trivet import dtypes, ops
from trivet.dtypes import DType
from trivet.errors import ModelError
from trivet.models.checkpoint import Checkpoint, number, positive
from trivet.nn.attention import Attend


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes, as the file's metadata gives them."""

    vocab: int
    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int  # as many as heads
    head_dim: int
    context: int
    eps: float

    @staticmethod
    def from_metadata(checkpoint: Checkpoint) -> Config:
        metadata = checkpoint.metadata

        def at(key: str, default: int | None = None) -> int:
            return positive(metadata, f"gpt2.{key}", default)

        width, heads = at("embedding_length"), at("attention.head_count")
        if width % heads:
            raise ModelError(f"[load] embedding_length {width} does not divide by head_count {heads}")
        if at("attention.head_count_kv", heads) != heads:
            raise ModelError("[load] head_count_kv differs from head_count; a gpt2 model has one of each")
        embedding = checkpoint.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ModelError("[load] tensor 'token_embd.weight' is missing or not a matrix")
        return Config(
            vocab=embedding.shape[0],
            layers=at("block_count"),
            width=width,
            hidden=at("feed_forward_length"),
            heads=heads,
            kv_heads=heads,
            head_dim=width // heads,
            context=at("context_length"),
            eps=number(metadata, "gpt2.attention.layer_norm_epsilon", least=0.0),
        )


class Norm:
    """A LayerNorm of the file."""

    def __init__(self, config: Config, checkpoint: Checkpoint, name: str) -> None:
        self.weight = checkpoint.weight(f"{name}.weight", (config.width,))
        self.bias = checkpoint.weight(f"{name}.bias", (config.width,))
        self.eps = config.eps

    def __call__(self, x: Any) -> Any:
        return ops.layer_norm(x, self.weight, self.bias, eps=self.eps)


class Dense:
    """A linear layer of the file."""

    def __init__(self, checkpoint: Checkpoint, name: str, inputs: int, outputs: int) -> None:
        self.weight = checkpoint.weight(f"{name}.weight", (outputs, inputs))
        self.bias = checkpoint.weight(f"{name}.bias", (outputs,))

    def __call__(self, x: Any) -> Any:
        return ops.linear(x, self.weight, self.bias)


class Block:
    """One decoder layer."""

    def __init__(self, config: Config, checkpoint: Checkpoint, index: int) -> None:
        def dense(name: str, inputs: int, outputs: int) -> Dense:
            return Dense(checkpoint, f"blk.{index}.{name}", inputs, outputs)

        width, hidden = config.width, config.hidden
        self.config, self.index = config, index
        self.attn_norm = Norm(config, checkpoint, f"blk.{index}.attn_norm")
        self.qkv, self.out = dense("attn_qkv", width, 3 * width), dense("attn_output", width, width)
        self.ffn_norm = Norm(config, checkpoint, f"blk.{index}.ffn_norm")
        self.up, self.down = dense("ffn_up", width, hidden), dense("ffn_down", hidden, width)

    def __call__(self, x: Any, attend: Attend) -> Any:
        x = ops.add(x, self._attention(self.attn_norm(x), attend))
        return ops.add(x, self.down(ops.gelu_tanh(self.up(self.ffn_norm(x)))))

    def _attention(self, x: Any, attend: Attend) -> Any:
        c, lead = self.config, x.shape[:-1]
        heads = ops.reshape(self.qkv(x), (*lead, 3 * c.heads, c.head_dim))
        q, k, v = (_part(heads, i * c.heads, c.heads) for i in range(3))
        o = attend(self.index, q, k, v, scale=c.head_dim**-0.5)
        return self.out(ops.reshape(o, (*lead, c.width)))


def _part(x: Any, first: int, count: int) -> Any:
    """So many heads of x [..., H, D]."""
    starts = [0] * (x.ndim - 2)
    return ops.slice(x, [*starts, first, 0], [*x.shape[:-2], first + count, x.shape[-1]])


class Model:
    """The whole decoder: token ids to logits."""

    def __init__(self, config: Config, checkpoint: Checkpoint) -> None:
        self.config = config
        self.embedding = checkpoint.weight("token_embd.weight", (config.vocab, config.width))
        self.position = checkpoint.weight("position_embd.weight", (config.context, config.width))
        self.blocks = [Block(config, checkpoint, i) for i in range(config.layers)]
        self.norm = Norm(config, checkpoint, "output_norm")
        head = checkpoint.find("output.weight", (config.vocab, config.width))
        self.head = self.embedding if head is None else head

    def __call__(
        self, ids: Any, positions: Any, attend: Attend, rows: Any = None, dtype: DType = dtypes.f32
    ) -> Any:
        """ids and positions [..., T] i32 -> logits [..., T, vocab]; with `rows` i32 [R] (and ids [T]), only
        those tokens' logits, [R, vocab]. Activations are of `dtype`, whatever the file holds."""
        tables = (ops.embedding(ids, self.embedding), ops.embedding(positions, self.position))
        x = ops.add(*(h if h.dtype is dtype else ops.cast(h, dtype) for h in tables))
        for block in self.blocks:
            x = block(x, attend)
        if rows is not None:
            x = ops.take(x, rows, axis=0)
        return ops.linear(self.norm(x), self.head)


# --- Hugging Face folders ---------------------------------------------------------------------------------

_HF_BLOCK = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_HF_TOP = {
    "transformer.wte.weight": "token_embd.weight",
    "transformer.wpe.weight": "position_embd.weight",
    "transformer.ln_f.weight": "output_norm.weight",
    "transformer.ln_f.bias": "output_norm.bias",
    "lm_head.weight": "output.weight",
}
_HF_ONLY = {  # what config.json may not say otherwise
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
_HF_GELU = ("gelu_new", "gelu_pytorch_tanh")


def hf_rename(name: str) -> str | None:
    """GGUF's name for a Hugging Face tensor, "" for a causal mask, which is none of the model's weights, or
    None if a gpt2 model has no such tensor. Early files lack the prefix."""
    name = name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"
    if name in _HF_TOP:
        return _HF_TOP[name]
    match = re.fullmatch(r"transformer\.h\.(\d+)\.(.+)\.(weight|bias|masked_bias)", name)
    if match is None:
        return None
    if match[2] == "attn":
        return None if match[3] == "weight" else ""
    if match[2] not in _HF_BLOCK or match[3] == "masked_bias":
        return None
    return f"blk.{match[1]}.{_HF_BLOCK[match[2]]}.{match[3]}"


def hf_original(name: str) -> str | None:
    """Hugging Face's name of a GGUF tensor: the inverse of hf_rename."""
    for theirs, ours in _HF_TOP.items():
        if name == ours:
            return theirs
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    theirs_of = {ours: theirs for theirs, ours in _HF_BLOCK.items()}
    if match is None or match[2] not in theirs_of:
        return None
    return f"transformer.h.{match[1]}.{theirs_of[match[2]]}.{match[3]}"


def hf_transposed(name: str) -> bool:
    """Whether a folder holds this matrix as [inputs, outputs]."""
    return re.fullmatch(r"blk\.\d+\.(attn|ffn)_(qkv|output|up|down)\.weight", name) is not None


def hf_arrange(name: str, array: npt.NDArray[Any], metadata: Mapping[str, Any]) -> npt.NDArray[Any]:
    """The rows stand as they are."""
    return array


def hf_extra(config: Mapping[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
    """Nothing besides the folder's own."""
    return {}


def hf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata from config.json; refuses what the keys cannot say."""
    for key, wanted in _HF_ONLY.items():
        if config.get(key, wanted) != wanted:
            raise ModelError(f"[load] config.json: {key} is {config[key]!r}; wanted {wanted}")
    if config.get("activation_function", "gelu_new") not in _HF_GELU:
        raise ModelError(
            f"[load] config.json: activation_function is {config['activation_function']!r};"
            f" known: {', '.join(_HF_GELU)}"
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


def hf_config(metadata: Mapping[str, Any], vocab: int, tied: bool) -> dict[str, Any]:
    """config.json from GGUF metadata: the inverse of hf_metadata."""

    def at(key: str) -> int:
        return positive(metadata, f"gpt2.{key}")

    config: dict[str, Any] = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_embd": at("embedding_length"),
        "n_inner": at("feed_forward_length"),
        "n_layer": at("block_count"),
        "n_head": at("attention.head_count"),
        "n_positions": at("context_length"),
        "layer_norm_epsilon": float(str(np.float32(number(metadata, "gpt2.attention.layer_norm_epsilon")))),
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
    }
    for key in ("bos_token_id", "eos_token_id"):
        if f"tokenizer.ggml.{key}" in metadata:
            config[key] = int(number(metadata, f"tokenizer.ggml.{key}", least=0))
    return config
