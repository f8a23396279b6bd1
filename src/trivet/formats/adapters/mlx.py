"""MLX folders, as `mlx_lm.lora` writes and `mlx_lm` loads them.

  adapter_config.json    fine_tune_type "lora", num_layers, and lora_parameters: rank, scale, dropout, keys
                         (the adapted modules, as named within a layer)
  adapters.safetensors   <module>.lora_a [K, rank] and <module>.lora_b [rank, N]

An adapted layer gives x @ W.T + scale * (x @ lora_a) @ lora_b. There is one scale for all.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from trivet.formats.adapters.stored import (
    CONFIG,
    F32,
    MAX_ALPHA,
    MAX_RANK,
    Pair,
    Stored,
    bad,
    dropout,
    floats,
    folded,
    integer,
    paired,
    read_config,
    real,
    text,
    unsupported,
)
from trivet.formats.common import quoted, written_aside
from trivet.formats.safetensors import SafetensorsFile
from trivet.formats.safetensors_save import write_safetensors

WEIGHTS = "adapters.safetensors"
ENDS = (".lora_a", ".lora_b")
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


def is_folder(path: Path) -> bool:
    """Whether this is the format of an adapter's folder."""
    return (path / WEIGHTS).exists()


def read(path: Path) -> Stored:
    """The adapter in a folder. Raises FileError, or UnsupportedError for DoRA and tuned weights."""
    where = path / CONFIG
    config = read_config(where)
    kind = config.get("fine_tune_type", "lora")
    if kind != "lora":
        raise unsupported(where, f"fine_tune_type is {quoted(str(kind))}")
    settings = config.get("lora_parameters")
    if not isinstance(settings, dict):
        raise bad(where, "lora_parameters", "is not an object")
    rank = integer(where, "lora_parameters.rank", settings.get("rank"))
    scale = real(where, "lora_parameters.scale", settings.get("scale"), most=MAX_ALPHA / MAX_RANK)
    file = SafetensorsFile.open(path / WEIGHTS)
    arrays = floats(path / WEIGHTS, {**file.tensors, **file.unsupported}, file.array)
    found = paired(path / WEIGHTS, arrays, *ENDS, turned=True)
    return Stored(
        {module: Pair(a, b, scale * a.shape[0]) for module, (a, b) in found.items()},
        rank,
        scale * rank,
        dropout=dropout(where, "lora_parameters.dropout", settings.get("dropout", 0.0)),
        base=text(where, "model", config.get("model") or ""),
        facts={k: v for k, v in file.metadata.items() if k != "format"},
    )


def write(path: Path, stored: Stored) -> None:
    """Writes the folder; the configuration comes last."""
    arrays: dict[str, F32] = {}
    for module, pair in sorted(folded(stored, lambda _: stored.scale).items()):
        arrays |= {
            f"{module}{end}": np.ascontiguousarray(x.T) for end, x in zip(ENDS, (pair.a, pair.b), strict=True)
        }
    write_safetensors(path / WEIGHTS, arrays, {"format": "mlx", **stored.facts})
    config = {
        "fine_tune_type": "lora",
        "model": stored.base,
        "num_layers": -1,  # all; what is not in the file stays as it was
        "lora_parameters": {
            "rank": stored.rank,
            "scale": stored.scale,
            "dropout": stored.dropout,
            "keys": sorted({_key(module) for module in stored.pairs}),
        },
    }
    with written_aside(path / CONFIG, "adapter") as file:
        file.write((json.dumps(config, indent=2, sort_keys=True) + "\n").encode())


def _key(module: str) -> str:
    match = _LAYER.fullmatch(module)
    return match[2] if match else module
