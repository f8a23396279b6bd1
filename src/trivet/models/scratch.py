"""Models from scratch: sizes to a checkpoint of first values, in the style of GPT-2 or of Llama.

Matrices are normal with a deviation of 0.02, the two of each block that write to the residual stream with
that over sqrt(2 * layers) (Radford et al. 2019); norms are 1, biases 0; the output matrix is the embedding. A
tensor's numbers depend on the seed, its name and shape, and on nothing else.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import arguments
from trivet.dtypes import f32
from trivet.errors import InputError
from trivet.models.checkpoint import Checkpoint, Entry

STYLES = ("gpt2", "llama")
DEVIATION = 0.02
EPS = {"gpt2": "attention.layer_norm_epsilon", "llama": "attention.layer_norm_rms_epsilon"}

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a model. kv_heads 0: as many as heads. hidden 0: 4 times the width for gpt2; for llama, whose
    MLP has three matrices, 8/3 of it, rounded up to a multiple of 32."""

    style: str
    layers: int
    width: int
    heads: int
    kv_heads: int = 0
    hidden: int = 0
    context: int

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise InputError(f"[scratch] style is {self.style!r}; known: {', '.join(STYLES)}")
        for name, low, high in (
            ("layers", 1, 1024), ("width", 1, 2**16), ("heads", 1, 1024), ("kv_heads", 0, 1024),
            ("hidden", 0, 2**20), ("context", 2, 2**24),
        ):  # fmt: skip
            arguments.integer(getattr(self, name), f"[scratch] {name}", low, high)
        even = 2 if self.style == "llama" else 1  # rotary pairs
        if self.width % (self.heads * even):
            raise InputError(
                f"[scratch] width {self.width} does not divide into {self.heads} heads"
                + (" of an even size" if even == 2 else "")
            )
        if self.kv_heads and self.heads % self.kv_heads:
            raise InputError(f"[scratch] {self.heads} heads do not divide by {self.kv_heads} kv_heads")
        if self.style == "gpt2" and self.kv_heads not in (0, self.heads):
            raise InputError(f"[scratch] kv_heads is {self.kv_heads}; a gpt2 model has as many as heads")

    @property
    def mlp(self) -> int:
        """The hidden size."""
        if self.hidden:
            return self.hidden
        return 4 * self.width if self.style == "gpt2" else -(-8 * self.width // 3 // 32) * 32

    def metadata(self) -> dict[str, Any]:
        """The sizes as GGUF metadata."""
        sizes = {
            "block_count": self.layers,
            "context_length": self.context,
            "embedding_length": self.width,
            "feed_forward_length": self.mlp,
            "attention.head_count": self.heads,
        }
        if self.style == "llama":
            sizes["attention.head_count_kv"] = self.kv_heads or self.heads
            sizes["rope.dimension_count"] = self.width // self.heads
        made: dict[str, Any] = {"general.architecture": self.style}
        made |= {f"{self.style}.{key}": np.uint32(value) for key, value in sizes.items()}
        made[f"{self.style}.{EPS[self.style]}"] = np.float32(1e-5)
        return made

    def shapes(self, vocab: int) -> dict[str, Shape]:
        """Every tensor's shape, by GGUF's names."""
        block = self._gpt2_block() if self.style == "gpt2" else self._llama_block()
        shapes: dict[str, Shape] = {"token_embd.weight": (vocab, self.width)}
        if self.style == "gpt2":
            shapes["position_embd.weight"] = (self.context, self.width)
        for i in range(self.layers):
            shapes |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
        shapes["output_norm.weight"] = (self.width,)
        if self.style == "gpt2":
            shapes["output_norm.bias"] = (self.width,)
        return shapes

    def _gpt2_block(self) -> dict[str, Shape]:
        width, shapes = self.width, dict[str, Shape]()
        for name, outputs, inputs in (
            ("attn_norm", width, 0), ("attn_qkv", 3 * width, width), ("attn_output", width, width),
            ("ffn_norm", width, 0), ("ffn_up", self.mlp, width), ("ffn_down", width, self.mlp),
        ):  # fmt: skip
            shapes[f"{name}.weight"] = (outputs, inputs) if inputs else (outputs,)
            shapes[f"{name}.bias"] = (outputs,)
        return shapes

    def _llama_block(self) -> dict[str, Shape]:
        width, kv = self.width, self.width // self.heads * (self.kv_heads or self.heads)
        return {
            "attn_norm.weight": (width,), "attn_q.weight": (width, width), "attn_k.weight": (kv, width),
            "attn_v.weight": (kv, width), "attn_output.weight": (width, width), "ffn_norm.weight": (width,),
            "ffn_gate.weight": (self.mlp, width), "ffn_up.weight": (self.mlp, width),
            "ffn_down.weight": (width, self.mlp),
        }  # fmt: skip


def initial(name: str, shape: Shape, layers: int, seed: int) -> npt.NDArray[np.float32]:
    """First values of a tensor."""
    if len(shape) == 1:
        return (np.zeros if name.endswith(".bias") else np.ones)(shape, np.float32)
    added = name.endswith(("attn_output.weight", "ffn_down.weight"))
    deviation = DEVIATION / math.sqrt(2 * layers) if added else DEVIATION
    rng = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(name.encode())]))
    return rng.standard_normal(shape, np.float32) * np.float32(deviation)


def checkpoint(sizes: Sizes, words: Mapping[str, Any], seed: int, path: Path) -> Checkpoint:
    """A model of these sizes for a tokenizer, which is GGUF metadata, before any training. `path` is what to
    call it. Values are drawn when they are loaded."""
    shapes = sizes.shapes(len(words["tokenizer.ggml.tokens"]))
    entries = {
        name: Entry(f32, shape, partial(initial, name, shape, sizes.layers, seed))
        for name, shape in shapes.items()
    }
    return Checkpoint(path, {**sizes.metadata(), **words}, entries)
