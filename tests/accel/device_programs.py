"""What is lowered and compiled for devices that are not here: models, and the graphs of their use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import small_model

from trivet import dtypes, graph, models, ops
from trivet.dtypes import DType, bf16, f32, i32
from trivet.generate.engine import serving_graph
from trivet.graph import Graph
from trivet.lora import Lora, initial
from trivet.models.checkpoint import Checkpoint, Entry, open_checkpoint
from trivet.optim import AdamW
from trivet.train import base
from trivet.train.step import Method

TOKENS = 128  # of a prompt, and of a training step
PAGES = {"B": 1, "P": 8, "N": 16}
VOCAB = 256


class DeviceProgram(NamedTuple):
    """A graph with its sizes, and where its weights and first states come from."""

    graph: Graph
    sizes: Mapping[str, int]
    checkpoint: Checkpoint
    state: Mapping[str, np.ndarray]


#: name -> (method, compute)
STEPS = {
    "full step f32": ("full", f32), "full step bf16": ("full", bf16),
    "LoRA step f32": ("lora", f32), "LoRA step bf16": ("lora", bf16),
    "QLoRA step f32": ("qlora", f32), "QLoRA step bf16": ("qlora", bf16),
}  # fmt: skip
NAMES = ["forward", "decode step", *STEPS]


def small(folder: Path) -> Checkpoint:
    """Two layers whose products are large enough for matrix units."""
    path = folder / "small.gguf"
    if not path.exists():
        small_model.write(path, vocab=VOCAB, width=128, hidden=256, layers=2)
    return open_checkpoint(path)


@cache
def smollm2() -> Checkpoint:
    """SmolLM2-135M's shape, with no numbers in it."""
    width, hidden, kv, layers, vocab = 576, 1536, 192, 30, 49152
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": layers,
        "llama.context_length": 8192,
        "llama.embedding_length": width,
        "llama.feed_forward_length": hidden,
        "llama.attention.head_count": 9,
        "llama.attention.head_count_kv": 3,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 100000.0,
    }
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, width), "output_norm.weight": (width,)}
    for i in range(layers):
        shapes |= {f"blk.{i}.{n}.weight": (width,) for n in ("attn_norm", "ffn_norm")}
        shapes |= {f"blk.{i}.{n}.weight": (width, width) for n in ("attn_q", "attn_output")}
        shapes |= {f"blk.{i}.{n}.weight": (kv, width) for n in ("attn_k", "attn_v")}
        shapes |= {f"blk.{i}.{n}.weight": (hidden, width) for n in ("ffn_gate", "ffn_up")}
        shapes[f"blk.{i}.ffn_down.weight"] = (width, hidden)
    tensors = {n: Entry(_kind(n, s), s, lambda: np.zeros(0)) for n, s in shapes.items()}
    return Checkpoint(Path("smollm2-135m"), metadata, tensors)


def _kind(name: str, shape: tuple[int, ...]) -> DType:
    """As the packaged file has them."""
    return f32 if len(shape) < 2 else dtypes.q8_0 if name == "token_embd.weight" else dtypes.q4_1


def build(name: str, checkpoint: Checkpoint) -> DeviceProgram:
    """One of NAMES for a model."""
    if name not in STEPS:
        tokens = TOKENS if name == "forward" else 1
        graph = serving_graph(models.build(checkpoint), bf16)
        return DeviceProgram(graph, {"T": tokens, "R": 1} | PAGES, checkpoint, {})
    method, compute = STEPS[name]
    if method == "qlora":
        checkpoint = base.nf4(checkpoint, compute, 64)
    elif method == "lora":
        checkpoint = base.decoded(checkpoint, compute)
    lora = None if method == "full" else Lora(rank=16)
    made = Method(models.by_architecture("llama"), checkpoint, lora, compute)
    graph = made.training(AdamW(decay=0.1), accumulate=False)
    return DeviceProgram(graph, {"T": TOKENS}, checkpoint, {})


#: rows alone, at the sizes of a model of 8 billion parameters
ROWS = {
    "one token x q8_0": ("linear", dtypes.q8_0),
    "one token x q4_1": ("linear", dtypes.q4_1),
    "one token x q4_k": ("linear", dtypes.q4_k),
    "a row of q8_0": ("embedding", dtypes.q8_0),
    "attention of 2048 tokens": ("attention", bf16),
    "one token over 4096 in pages": ("paged", bf16),
}


def row(name: str) -> DeviceProgram:
    """One of ROWS as a program. Its products are of [14336, 4096], its attention has 32 heads, 8 of keys;
    its table is too large for a TPU's fast memory."""
    kind, dtype = ROWS[name]
    if kind == "linear":
        x, w = graph.input("x", (1, 4096), f32), graph.weight("w", (14336, 4096), dtype)
        made = ops.linear(x, w)
    elif kind == "embedding":
        made = ops.embedding(graph.input("ids", (1,), i32), graph.weight("w", (49152, 4096), dtype))
    elif kind == "attention":
        q, k, v = (graph.input(n, (1, 2048, h, 128), dtype) for n, h in (("q", 32), ("k", 8), ("v", 8)))
        made = ops.attention(q, k, v, causal=True)
    else:
        q = graph.input("q", (1, 32, 128), f32)
        k, v = (graph.state(n, s, dtype) for n, s in (("k", (64, 8, 128, 64)), ("v", (64, 8, 64, 128))))
        at, sequence, pages = (
            graph.input(n, s, i32) for n, s in (("at", (1,)), ("seq", (1,)), ("p", (1, 64)))
        )
        made = ops.paged_attention(q, k, v, at, sequence, pages)
    outputs = made if isinstance(made, tuple) else (made,)
    whole = Graph({str(i): n for i, n in enumerate(outputs)})
    return DeviceProgram(whole, {}, Checkpoint(Path(name), {}, {}), {})


def first_state(program: DeviceProgram, seed: int = 0) -> dict[str, np.ndarray]:
    """Random first values of all that is trained; moments and caches begin as zeros."""
    states = {n.attrs["name"]: n.shape for n in program.graph.nodes() if n.op == "state"}
    shapes = {n: s for n, s in states.items() if not n.startswith(("m.", "v.", "kv."))}
    if any(n.endswith(".lora_a") for n in shapes):
        return {n: a + np.float32(0.01) for n, a in initial(shapes, seed + 1).items()}
    return {n: program.checkpoint.load(n) for n in shapes}


def inputs(program: DeviceProgram, seed: int = 0) -> dict[str, Any]:
    """Random tokens, in two sequences where it is a training step."""
    rng, tokens = np.random.default_rng(seed), program.sizes["T"]
    ids = rng.integers(0, VOCAB, tokens).astype(np.int32)
    at = np.arange(tokens, dtype=np.int32)
    if "R" in program.sizes:
        return {
            "ids": ids, "positions": at, "sequences": np.zeros_like(at),
            "rows": np.array([tokens - 1], np.int32), "pages": np.arange(8, dtype=np.int32)[None],
        }  # fmt: skip
    starts = np.where(at < tokens // 3, 0, tokens // 3).astype(np.int32)
    targets = np.where(rng.random(tokens) < 0.8, rng.integers(0, VOCAB, tokens), -100).astype(np.int32)
    trained = np.float32((targets != -100).sum())
    return {
        "ids": ids, "positions": at - starts, "starts": starts, "targets": targets,
        "tokens": trained, "rates": AdamW().rates(1e-4, 1),
    }  # fmt: skip
