"""What decoders are made of: sizes and their checks, layers of a file, the way from ids to logits.

An architecture adds its own blocks: `Model` is a `Decoder` whose `__init__` says what it is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trivet import dtypes, ops
from trivet.dtypes import DType
from trivet.errors import ModelError
from trivet.models.checkpoint import Checkpoint, positive
from trivet.nn.attention import Attend


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes that every decoder has. An architecture's Config adds its own fields."""

    vocab: int
    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int


def sizes(checkpoint: Checkpoint) -> dict[str, int]:
    """The fields of `DecoderConfig` from GGUF metadata. Raises ModelError for what does not fit together."""
    metadata, architecture = checkpoint.metadata, checkpoint.architecture

    def at(key: str, default: int | None = None) -> int:
        return positive(metadata, f"{architecture}.{key}", default)

    width, heads = at("embedding_length"), at("attention.head_count")
    if width % heads and f"{architecture}.attention.key_length" not in metadata:
        raise ModelError(f"[load] embedding_length {width} does not divide by head_count {heads}")
    kv_heads = at("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise ModelError(f"[load] head_count {heads} does not divide by head_count_kv {kv_heads}")
    head_dim = at("attention.key_length", width // heads)
    value_dim = at("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise ModelError(f"[load] attention.value_length {value_dim} is not the key_length {head_dim}")
    embedding = checkpoint.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError("[load] tensor 'token_embd.weight' is missing or not a matrix")
    if embedding.shape[1] != width:
        raise ModelError(
            f"[load] embedding_length {width} is not that of token_embd.weight, {embedding.shape[1]}"
        )
    layers = at("block_count")
    if layers > len(checkpoint.tensors):  # before anything is as long
        raise ModelError(
            f"[load] block_count is {layers}; {checkpoint.path.name} has {len(checkpoint.tensors)} tensors"
        )
    return {
        "vocab": embedding.shape[0],
        "layers": layers,
        "width": width,
        "hidden": at("feed_forward_length"),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "context": at("context_length"),
    }


def windows(checkpoint: Checkpoint, layers: int, period: int = 0, window: int = 0) -> tuple[int, ...]:
    """How many tokens each layer sees, 0 for all: `attention.sliding_window`, or `window` if it is missing,
    in the layers that `sliding_window_pattern` says. That is a flag for each layer, or the period of those
    that see all, which where it is missing is `period`; 0: no layer sees all."""
    name = f"{checkpoint.architecture}.attention.sliding_window"
    value = checkpoint.metadata.get(name, window)
    if isinstance(value, int | np.integer) and value == 0:
        return (0,) * layers
    window = positive({name: value}, name)
    key = f"{name}_pattern"
    pattern = checkpoint.metadata.get(key, period)
    if isinstance(pattern, Sequence | np.ndarray) and not isinstance(pattern, str):
        if len(pattern) != layers or not all(isinstance(flag, bool | np.bool_) for flag in pattern):
            raise ModelError(f"[load] {key} has {len(pattern)} elements; wanted {layers} flags, or a period")
        return tuple(window if slides else 0 for slides in pattern)
    every = positive({key: pattern}, key) if pattern != 0 else layers + 1
    return tuple(0 if i % every == every - 1 else window for i in range(layers))


# --- layers --------------------------------------------------------------------------------------


class Linear:
    """A matrix of the file, and a bias if it has one, or must have one."""

    def __init__(
        self, checkpoint: Checkpoint, name: str, inputs: int, outputs: int, *, biased: bool = False
    ) -> None:
        self.weight = checkpoint.weight(f"{name}.weight", (outputs, inputs))
        take = checkpoint.weight if biased else checkpoint.find
        self.bias = take(f"{name}.bias", (outputs,))

    def __call__(self, x: Any) -> Any:
        return ops.linear(x, self.weight, self.bias)


class RMSNorm:
    """An RMS norm of the file."""

    def __init__(self, checkpoint: Checkpoint, name: str, width: int, eps: float) -> None:
        self.weight, self.eps = checkpoint.weight(f"{name}.weight", (width,)), eps

    def __call__(self, x: Any) -> Any:
        return ops.rms_norm(x, self.weight, eps=self.eps)


class LayerNorm:
    """A layer norm of the file, with weight and bias."""

    def __init__(self, checkpoint: Checkpoint, name: str, width: int, eps: float) -> None:
        self.weight = checkpoint.weight(f"{name}.weight", (width,))
        self.bias, self.eps = checkpoint.weight(f"{name}.bias", (width,)), eps

    def __call__(self, x: Any) -> Any:
        return ops.layer_norm(x, self.weight, self.bias, eps=self.eps)


class GatedMLP:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, checkpoint: Checkpoint, block: str, width: int, hidden: int) -> None:
        self.gate = Linear(checkpoint, f"{block}.ffn_gate", width, hidden)
        self.up = Linear(checkpoint, f"{block}.ffn_up", width, hidden)
        self.down = Linear(checkpoint, f"{block}.ffn_down", hidden, width)

    def __call__(self, x: Any) -> Any:
        return self.down(ops.swiglu(self.gate(x), self.up(x)))


def split(x: Any, *counts: int) -> list[Any]:
    """x [..., sum(counts)] in parts along the last axis."""
    parts, start, lead = [], 0, x.shape[:-1]
    for count in counts:
        parts.append(ops.slice(x, [*[0] * len(lead), start], [*lead, start + count]))
        start += count
    return parts


def heads(x: Any, size: int) -> Any:
    """x [..., H * size] as [..., H, size]."""
    return ops.reshape(x, (*x.shape[:-1], x.shape[-1] // size, size))


def joined(x: Any) -> Any:
    """x [..., H, D] as [..., H * D]."""
    return ops.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))


# --- the whole -----------------------------------------------------------------------------------


class Decoder:
    """Token ids to logits: embedding, blocks, norm, output matrix, which is the embedding where the file has
    no other. `block(x, rope, attend)` takes activations [..., T, width] and its table of angles."""

    def __init__(self, config: Any, checkpoint: Checkpoint, blocks: Sequence[Any], norm: Any) -> None:
        self.config, self.blocks, self.norm = config, blocks, norm
        self.embedding = checkpoint.weight("token_embd.weight", (config.vocab, config.width))
        head = checkpoint.find("output.weight", (config.vocab, config.width))
        self.head = self.embedding if head is None else head

    def __call__(
        self, ids: Any, positions: Any, attend: Attend, rows: Any = None, dtype: DType = dtypes.f32
    ) -> Any:
        """ids and positions [..., T] i32 -> logits [..., T, vocab]; with `rows` i32 [R] (and ids [T]), only
        those tokens' logits, [R, vocab]. Activations are of `dtype`, whatever the file holds."""
        x = self.hidden(ids, positions, attend, dtype)
        if rows is not None:
            x = ops.take(x, rows, axis=0)
        return self.logits(self.norm(x))

    def hidden(self, ids: Any, positions: Any, attend: Attend, dtype: DType = dtypes.f32) -> Any:
        """What the last block gives, [..., T, width], before the norm."""
        x = self.embed(ids, positions, dtype)
        for block, table in zip(self.blocks, self.tables(positions), strict=True):
            x = block(x, table, attend)
        return x

    # what some architectures do otherwise:

    def embed(self, ids: Any, positions: Any, dtype: DType) -> Any:
        """What the first block takes."""
        x = ops.embedding(ids, self.embedding)
        return x if x.dtype is dtype else ops.cast(x, dtype)

    def tables(self, positions: Any) -> Sequence[Any]:
        """The table of angles of each block: one for all."""
        return [self.config.rope.table(positions)] * len(self.blocks)

    def logits(self, x: Any) -> Any:
        """Normed activations to logits."""
        return ops.linear(x, self.head)
