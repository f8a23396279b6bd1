"""A random llama model of any sizes as a GGUF file, and what a child without PyTorch trains it with."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trivet.formats.gguf import write_gguf


def write(path: Path, *, vocab: int, width: int, hidden: int, layers: int, heads: int = 2) -> Path:
    """Its output matrix is its embedding."""
    rng = np.random.default_rng(1)

    def random(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape, np.float32) * 0.2).astype(np.float32)

    keys = {
        "general.architecture": "llama",
        "llama.block_count": np.uint32(layers),
        "llama.context_length": np.uint32(4096),
        "llama.embedding_length": np.uint32(width),
        "llama.feed_forward_length": np.uint32(hidden),
        "llama.attention.head_count": np.uint32(heads),
        "llama.attention.layer_norm_rms_epsilon": np.float32(1e-5),
    }
    square, up, down = (width, width), (hidden, width), (width, hidden)
    tensors = {"token_embd.weight": random(vocab, width), "output_norm.weight": 1 + random(width)}
    for i in range(layers):
        shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), square)
        shapes |= {"ffn_gate": up, "ffn_up": up, "ffn_down": down}
        tensors |= {f"blk.{i}.{n}.weight": random(*s) for n, s in shapes.items()}
        tensors |= {f"blk.{i}.{n}.weight": 1 + random(width) for n in ("attn_norm", "ffn_norm")}
    write_gguf(path, keys, tensors)
    return path


#: What a child runs: its model's path is argv[1]. `method`, `first` values and `example(seed, positions)`.
CHILD = """
import sys
from pathlib import Path
import numpy as np
from trivet import models, runtime
from trivet.lora import Lora, initial
from trivet.models.checkpoint import open_checkpoint
from trivet.optim import AdamW
from trivet.train.data import Example, pack
from trivet.train.step import Method
from trivet.train.trainer import Trainer

checkpoint = open_checkpoint(Path(sys.argv[1]))
vocab = checkpoint.tensors["token_embd.weight"].shape[0]

def example(seed, positions):
    ids = np.random.default_rng(seed).integers(0, vocab, positions + 1).astype(np.int32)
    return Example(ids, np.arange(positions + 1) > 3)

def trainer(lora, **options):
    method = Method(models.by_architecture("llama"), checkpoint, lora)
    shapes = method.shapes()
    first = initial(shapes, 1) if lora else {n: checkpoint.load(n) for n in shapes}
    return Trainer(method, runtime.backend("cpu"), first, AdamW(decay=0.1), **options)
"""
