"""One trainer in a process of its own: whole optimiser steps of SmolLM2-135M's shape on tokens made up.

Reads tasks from standard input: "step" answers with a step's seconds, "memory" with the most bytes so far.

    python benchmarks/trainers.py trivet|torch full|lora|qlora|nf4|gpt f32|bf16 TOKENS THREADS [FILE]
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np

SHAPE = {"vocab": 49152, "width": 576, "layers": 30, "heads": 9, "kv_heads": 3, "hidden": 1536}
RANK, ALPHA, LR = 16, 32.0, 1e-3
GPT = {"vocab": 512, "width": 384, "layers": 6, "heads": 6, "context": 256}
Step = Callable[[], Any]


def ids(count: int, vocab: int) -> Any:
    return (7919 * np.arange(count, dtype=np.int64) + 13) % vocab


# --- trivet ---------------------------------------------------------------------------------------------


def trivet_step(method: str, dtype: str, tokens: int, file: str, again: bool = False) -> Step:
    from trivet import lora, models, runtime
    from trivet.models.checkpoint import open_checkpoint
    from trivet.optim import AdamW
    from trivet.train import base
    from trivet.train.config import COMPUTE
    from trivet.train.data import Batch
    from trivet.train.step import Method
    from trivet.train.trainer import Trainer

    whole = gpt() if method == "gpt" else open_checkpoint(Path(file))
    made_of = {"lora": base.decoded, "nf4": base.nf4}.get(method)
    checkpoint = made_of(whole, COMPUTE[dtype]) if made_of else whole
    settings = None if method in ("full", "gpt") else lora.Lora(RANK, ALPHA)
    made = Method(
        models.by_architecture(checkpoint.architecture), checkpoint, settings, COMPUTE[dtype], again
    )
    shapes = made.shapes()
    first = base.Values(checkpoint, tuple(shapes)) if settings is None else lora.initial(shapes, 0)
    trainer = Trainer(made, runtime.backend("cpu"), first, AdamW())
    vocab, context = (GPT["vocab"], GPT["context"]) if method == "gpt" else (SHAPE["vocab"], tokens)
    all_ids = ids(tokens, vocab).astype(np.int32)
    positions = np.arange(tokens, dtype=np.int32) % context
    batch = Batch(all_ids, np.roll(all_ids, -1), positions, np.arange(tokens, dtype=np.int32) - positions)
    return lambda: trainer.step([batch], LR)


def gpt() -> Any:
    """The small GPT before any training."""
    from trivet.models.scratch import Sizes, checkpoint

    sizes = Sizes(
        style="gpt2", layers=GPT["layers"], width=GPT["width"], heads=GPT["heads"], context=GPT["context"]
    )
    words = {"tokenizer.ggml.tokens": [str(i) for i in range(GPT["vocab"])]}
    return checkpoint(sizes, words, 0, Path("gpt"))


# --- PyTorch with transformers, peft and bitsandbytes -----------------------------------------------------


def torch_model(method: str, dtype: Any) -> Any:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    if method == "gpt":
        config = GPT2Config(
            vocab_size=GPT["vocab"], n_embd=GPT["width"], n_layer=GPT["layers"], n_head=GPT["heads"],
            n_positions=GPT["context"], resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        )  # fmt: skip
        return GPT2LMHeadModel(config).to(dtype)
    s = SHAPE
    shape = LlamaConfig(
        vocab_size=s["vocab"], hidden_size=s["width"], num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"], num_key_value_heads=s["kv_heads"], intermediate_size=s["hidden"],
        tie_word_embeddings=True, max_position_embeddings=8192,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(shape).to(dtype)
    if method in ("qlora", "nf4"):
        quantise(model, dtype)
    if method in ("lora", "qlora", "nf4"):
        from peft import LoraConfig, get_peft_model

        return get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear"))
    return model


def quantise(model: Any, dtype: Any) -> None:
    """Every linear of the blocks as NF4, double-quantised."""
    from bitsandbytes.nn import Linear4bit

    for block in model.model.layers:
        for owner in (block.self_attn, block.mlp):
            for name, linear in list(owner.named_children()):
                if type(linear).__name__ != "Linear":
                    continue
                packed = Linear4bit(
                    linear.in_features, linear.out_features, bias=False, compute_dtype=dtype,
                    compress_statistics=True, quant_type="nf4",
                )  # fmt: skip
                packed.load_state_dict(linear.state_dict())
                setattr(owner, name, packed.to("cpu"))


def torch_step(method: str, kind: str, tokens: int, threads: int) -> Step:
    import torch

    torch.set_num_threads(threads)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[kind]
    model = torch_model(method, dtype)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=LR, weight_decay=0.0, fused=True)
    vocab, context = (GPT["vocab"], GPT["context"]) if method == "gpt" else (SHAPE["vocab"], tokens)
    given = torch.tensor(ids(tokens, vocab)).reshape(-1, context)

    def step() -> None:
        loss = model(input_ids=given, labels=given).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def main(who: str, method: str, dtype: str, tokens: str, threads: str, file: str = "") -> None:
    if who == "trivet":
        step = trivet_step(method, dtype, int(tokens), file)
    else:
        step = torch_step(method, dtype, int(tokens), int(threads))

    def seconds(task: str) -> float:
        if task == "memory":
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
        began = time.perf_counter()
        step()
        return time.perf_counter() - began

    common.serve(seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
