"""A random LoRA of the tiny model, and of any other, large enough to matter."""

from __future__ import annotations

from typing import Any

import numpy as np

from trivet.adapter import Adapter
from trivet.lora import Lora
from trivet.models.checkpoint import Checkpoint


def make(base: Checkpoint, *, rank: int = 4, seed: int = 0, name: str = "orders", **settings: Any) -> Adapter:
    """An adapter of every matrix that `settings` (of Lora) take; by default all of the blocks."""
    lora = Lora(rank=rank, **{"alpha": 2.0, **settings})
    rng = np.random.default_rng(seed)
    arrays = {}
    for weight, entry in base.tensors.items():
        if len(entry.shape) == 2 and weight != "token_embd.weight" and lora.takes(weight):
            n, k = entry.shape
            arrays[f"{weight}.lora_a"] = (rng.standard_normal((rank, k)) * 0.2).astype(np.float32)
            arrays[f"{weight}.lora_b"] = (rng.standard_normal((n, rank)) * 0.2).astype(np.float32)
    return Adapter.of(lora, arrays, base, name, data="orders.jsonl, 300 rows")
