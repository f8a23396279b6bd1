"""GGUF adapter files, as llama.cpp's `--lora` takes them.

  general.type             "adapter"
  adapter.type             "lora"
  general.architecture     of the base model
  adapter.lora.alpha       f32; an update is scaled by alpha / rank, or not at all if it is 0 or missing

  <weight>.lora_a          [rank, K] in rows
  <weight>.lora_b          [N, rank]

Weights have GGUF's names, and the rows of queries and keys GGUF's order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trivet.formats.adapters.stored import (
    F32,
    MAX_ALPHA,
    Pair,
    Stored,
    bad,
    floats,
    folded,
    paired,
    unsupported,
)
from trivet.formats.common import quoted
from trivet.formats.gguf import GGUFFile, write_gguf

ENDS = (".lora_a", ".lora_b")
FACTS = "trivet."


def read(path: Path) -> tuple[Stored, str]:
    """The adapter in a file, and the architecture it is for.

    Raises FileError, or UnsupportedError for an adapter of another kind."""
    file = GGUFFile.open(path)
    if (kind := file.metadata.get("general.type")) != "adapter":
        raise bad(path, "general.type", f"is {quoted(str(kind))}; an adapter's is 'adapter'")
    if (kind := file.metadata.get("adapter.type")) != "lora":
        raise unsupported(path, f"adapter.type is {quoted(str(kind))}")
    for key in file.metadata:
        if key.startswith("adapter.") and key not in ("adapter.type", "adapter.lora.alpha"):
            raise unsupported(path, f"{quoted(key)[1:-1]} is set")
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise bad(path, "general.architecture", "is not text")
    alpha = _alpha(path, file.metadata.get("adapter.lora.alpha", 0.0))
    arrays = floats(path, {**file.tensors, **file.unsupported}, file.array)
    pairs = {
        name: Pair(a, b, alpha or float(a.shape[0])) for name, (a, b) in paired(path, arrays, *ENDS).items()
    }
    rank = max(pair.rank for pair in pairs.values())
    strings = {k: v for k, v in file.metadata.items() if k.startswith(FACTS) and isinstance(v, str)}
    base = strings.pop("trivet.base", "")
    return Stored(pairs, rank, alpha or float(rank), base=base, facts=strings), architecture


def _alpha(path: Path, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_ALPHA:
        raise bad(
            path,
            "adapter.lora.alpha",
            f"is {quoted(str(value))}; wanted a number from 0, below {MAX_ALPHA:g}",
        )
    return float(value)


def write(path: Path, stored: Stored, architecture: str, name: str = "") -> None:
    """Writes the file. What its one alpha cannot say goes into b."""
    alpha = stored.scale * stored.rank
    metadata: dict[str, Any] = {
        "general.architecture": architecture,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": np.float32(alpha),
        "trivet.base": stored.base,
        **({"general.name": name} if name else {}),
        **stored.facts,
    }
    arrays: dict[str, F32] = {}
    for weight, pair in sorted(folded(stored, lambda pair: alpha / pair.rank).items()):
        arrays |= {f"{weight}{end}": x for end, x in zip(ENDS, (pair.a, pair.b), strict=True)}
    write_gguf(path, metadata, arrays)
