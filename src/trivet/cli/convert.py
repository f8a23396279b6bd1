"""Write a model as a GGUF file, or as a Hugging Face folder.

OUT that ends in .gguf is a GGUF file; any other is a Hugging Face folder of safetensors. Tokenizer, chat
template and metadata come with it.
"""

from __future__ import annotations

import re
from typing import Annotated

import typer

from trivet.cli.output import JsonOption, ModelArgument, emit_json, human_bytes, note
from trivet.cli.progress import progress
from trivet.errors import InputError

EXAMPLE = "trivet convert ./my-model my-model.gguf --type q8_0"
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def convert(
    model: ModelArgument,
    out: Annotated[str, typer.Argument(metavar="OUT", help="The file.gguf or the folder to write.")],
    type: Annotated[
        str,
        typer.Option(
            help="keep (each tensor as it is), f32, f16 or bf16; in a GGUF file also the types of `trivet"
            " quantize`."
        ),
    ] = "keep",
    split: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Write parts of at most so many bytes: 500M, 2G, 4GiB.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    from trivet.converting import convert as write
    from trivet.models.checkpoint import open_checkpoint, resolve

    most = None if split is None else _bytes(split)
    total = len(open_checkpoint(resolve(model)).tensors)
    with progress("converting", total, quiet=as_json) as advance:
        done = write(model, out, type=type, max_bytes=most, advance=advance)
    if as_json:
        emit_json(
            {"path": str(done.path), "tensors": done.tensors, "bytes": done.nbytes, "notes": done.notes}
        )
        return
    print(f"wrote {done.path}: {done.tensors} tensors, {human_bytes(done.nbytes)}")
    for text in done.notes:
        note(text)


def _bytes(size: str) -> int:
    """A size as people write it, in bytes. Raises InputError."""
    match = re.fullmatch(r"(\d{1,15})([kmg]i?)?b?", size.strip().lower())
    if match is None or not int(match[1]):
        raise InputError(f"[convert] --split is {size!r:.40}; wanted a size such as 500M, 2G or 4GiB")
    return int(match[1]) * UNITS[match[2] or ""]
