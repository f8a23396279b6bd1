"""Small files to tune on, and a packed model to tune."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import tiny_model
from trivet import dtypes
from trivet.blocks import quantize
from trivet.formats.gguf import TensorSource


def rows(path: Path, count: int, start: int = 0) -> Path:
    """Chats of about forty tokens, each of another length and content."""
    lines = []
    for i in range(start, start + count):
        asked = {"role": "user", "content": f"hello {i} " + "x" * (i * 7 % 23)}
        lines.append({"messages": [asked, {"role": "assistant", "content": f"hell {i * 3}"}]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


@cache
def _blocks() -> dict[str, TensorSource]:
    return {
        name: TensorSource(dtypes.q8_0, array.shape, quantize(array, dtypes.q8_0))
        for name, array in tiny_model.tensors().items()
        if array.ndim == 2 and name.startswith("blk")
    }


def packed_model(path: Path) -> Path:
    """The tiny model with its matrices in q8_0."""
    return tiny_model.write(path, weights=_blocks())


def arrays(folder: Path) -> dict[str, bytes]:
    """What a finished run left, as bytes: its adapter, and parameters and moments."""
    last = max(folder.glob("step-*"))
    found = [last / "tensors.safetensors", folder / "adapter" / "adapter_model.safetensors"]
    return {path.name: path.read_bytes() for path in found}


def same_end(one: Path, other: Path) -> None:
    assert max(one.glob("step-*")).name == max(other.glob("step-*")).name
    assert arrays(one) == arrays(other)
