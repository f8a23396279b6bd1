"""Pack a model's weights into fewer bits.

Writes a GGUF file. q4_k_m is the usual choice; q8_0 loses next to nothing; `--calibrate` makes types of few
bits better.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trivet.cli.output import (
    DeviceOption,
    JsonOption,
    ModelArgument,
    ThreadsOption,
    emit_json,
    human_bytes,
    note,
    table,
)
from trivet.cli.progress import progress

if TYPE_CHECKING:
    from trivet.quantizing import Quantized

EXAMPLE = "trivet quantize smollm2-f16.gguf smollm2-q4.gguf --type q4_k_m"
SHOWN = 5  # tensors with the largest error
FEW = 6  # bits a weight, under which an importance matrix is worth its while


def quantize(
    model: ModelArgument,
    out: Annotated[str, typer.Argument(metavar="OUT", help="The GGUF file to write.")],
    type: Annotated[
        str,
        typer.Option(
            help="q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s, iq4_nl, q4_1, q4_0, q3_k_l, q3_k_m,"
            " q3_k_s or q2_k; or f32, f16, bf16. q5_k, q4_k and q3_k are their _m."
        ),
    ] = "q4_k_m",
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="TEXT", help="A UTF-8 text file that shows which weights matter: run through it."
        ),
    ] = None,
    imatrix: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What was so found, as llama.cpp keeps it: written, or read."),
    ] = None,
    eval: Annotated[
        Path | None, typer.Option(metavar="TEXT", help="A UTF-8 text file to score before and after.")
    ] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    from trivet.mixes import MIXES
    from trivet.models.checkpoint import open_checkpoint, resolve
    from trivet.quantizing import Watch
    from trivet.quantizing import quantize as write

    total = len(open_checkpoint(resolve(model)).tensors)
    with progress("quantising", total, quiet=as_json) as advance:
        done = write(
            model, out, type=type, calibrate=calibrate, imatrix=imatrix, evaluate=eval, device=device,
            threads=threads, watch=Watch(written=advance),
        )  # fmt: skip
    if as_json:
        emit_json(_facts(done))
        return
    _show(done)
    base = MIXES[done.type].base
    if calibrate is None and imatrix is None and 8 * base.nbytes < FEW * base.block:
        note(f"{done.type} errs much less with --calibrate TEXT, a text such as the model will be used for")


def _facts(done: Quantized) -> dict[str, Any]:
    tensors = [
        {"name": t.name, "shape": t.shape, "before": str(t.before), "after": str(t.after), "error": t.error}
        for t in done.tensors
    ]
    return {
        "path": str(done.path),
        "type": done.type,
        "error": done.error,
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
        "bits_per_weight": done.bits_per_weight,
        "nll_before": done.nll_before,
        "nll_after": done.nll_after,
        "notes": done.notes,
        "tensors": tensors,
    }


def _show(done: Quantized) -> None:
    kinds: dict[str, list[Any]] = {}
    for tensor in done.tensors:
        kinds.setdefault(str(tensor.after), []).append(tensor)
    rows = [
        (kind, str(len(found)), human_bytes(sum(t.nbytes for t in found))) for kind, found in kinds.items()
    ]
    table(("type", "tensors", "size"), rows)
    print()
    worst = sorted(done.tensors, key=lambda tensor: -tensor.error)[:SHOWN]
    worse = [(t.name, str(t.before), str(t.after), f"{100 * t.error:.3f} %") for t in worst]
    table(("largest errors", "was", "is", "error"), worse)
    print(
        f"\nwrote {done.path}: {human_bytes(done.bytes_before)} became {human_bytes(done.bytes_after)},"
        f" {done.bits_per_weight:.2f} bits a weight; error {100 * done.error:.3f} % of the weights"
    )
    if done.nll_before is not None and done.nll_after is not None:
        change = done.nll_after - done.nll_before
        print(f"mean NLL {done.nll_before:.5f} became {done.nll_after:.5f} ({change:+.5f})")
    for text in done.notes:
        note(text)
