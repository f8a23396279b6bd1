"""What is in a model file, as plain data: for `trivet inspect`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from trivet import models
from trivet.errors import TrivetError
from trivet.generate.engine import CHUNK, PAGE, kv_dtype
from trivet.models.checkpoint import Checkpoint, open_checkpoint, resolve

SHOWN = 3  # elements of an array that are shown


def describe(model: str | Path, context: int | None = None, kv: str | None = None) -> dict[str, Any]:
    """Metadata, tensors, parameter count and memory of a model, whose keys and values are kept in `kv`, by
    default f16. A file whose architecture trivet does not
    know is described all the same: then `memory` is None and `problem` says why."""
    checkpoint = open_checkpoint(resolve(model))
    tensors: list[dict[str, Any]] = [
        {"name": name, "dtype": e.dtype.name, "shape": list(e.shape), "bytes": e.nbytes}
        for name, e in checkpoint.tensors.items()
    ]
    if checkpoint.gguf is not None:
        tensors += [
            {
                "name": name,
                "dtype": f"{t.type_name} (not supported)",
                "shape": list(t.shape),
                "bytes": t.nbytes,
            }
            for name, t in checkpoint.gguf.unsupported.items()
        ]
    memory, problem = _memory(checkpoint, context, "f16" if kv is None else kv)
    return {
        "path": str(checkpoint.path),
        "metadata": {key: plain(value) for key, value in checkpoint.metadata.items()},
        "tensors": tensors,
        "parameters": sum(math.prod(t["shape"]) for t in tensors),
        "memory": memory,
        "problem": problem,
    }


def _memory(checkpoint: Checkpoint, context: int | None, kv: str) -> tuple[dict[str, Any] | None, str | None]:
    """Bytes of weights, of one full sequence's keys and values, and of what a run works in."""
    kv_dtype(kv, 0)  # an unknown name is a mistake of the caller, not the file's
    try:
        config = models.build(checkpoint, context).config
        dtype = kv_dtype(kv, config.head_dim)
    except TrivetError as error:
        return None, str(error)
    pages = -(-config.context // PAGE)
    cache = 2 * config.layers * config.kv_heads * PAGE * pages * dtype.row_bytes(config.head_dim)
    tokens = min(CHUNK, config.context)
    temporaries = 4 * tokens * (4 * config.width + 3 * config.hidden) + 4 * config.vocab
    weights = sum(e.nbytes for e in checkpoint.tensors.values())
    return {
        "context": config.context,
        "kv": kv,
        "weights": weights,
        "cache": cache,
        "temporaries": temporaries,
    }, None


def plain(value: Any) -> Any:
    """A metadata value as JSON has it; long arrays as their type, length and first elements."""
    if isinstance(value, np.ndarray | list):
        first = [plain(v) for v in value[:SHOWN]]
        kind = (
            value.dtype.name
            if isinstance(value, np.ndarray)
            else type(value[0]).__name__
            if value
            else "empty"
        )
        return first if len(value) <= SHOWN else {"array": kind, "length": len(value), "first": first}
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
