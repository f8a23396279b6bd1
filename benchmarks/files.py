"""SmolLM2-135M in the types people have, made by llama.cpp's own quantiser out of the shipped Q4_1 file, so
that every engine reads the same file. They lie in benchmarks/files/, which git ignores.

    python benchmarks/files.py
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from trivet.models.checkpoint import resolve

FOLDER = Path(__file__).parent / "files"
TYPES = ("Q4_1", "Q4_0", "Q4_K_M", "Q8_0", "F16", "BF16", "F32")


def file(kind: str) -> Path:
    """The file of one type, made if it is not there; or any other file, by its path."""
    if kind not in TYPES:
        return Path(kind)
    shipped = Path(str(resolve("smollm2-135m")))
    if kind == "Q4_1":
        return shipped
    path = FOLDER / f"smollm2-135m-{kind}.gguf"
    if not path.exists():
        FOLDER.mkdir(exist_ok=True)
        _quantise(shipped, path, kind)
    return path


def _quantise(source: Path, target: Path, kind: str) -> None:
    import llama_cpp

    named = "ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{named}")
    options.allow_requantize = True
    partial = target.with_suffix(".partial")
    status = llama_cpp.llama_model_quantize(
        str(source).encode(), str(partial).encode(), ctypes.byref(options)
    )
    if status != 0:
        raise SystemExit(f"llama.cpp could not make {target.name}")
    partial.rename(target)


if __name__ == "__main__":
    for kind in TYPES:
        print(file(kind))
