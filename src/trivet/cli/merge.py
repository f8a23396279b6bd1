"""Merge adapters into a model's weights.

OUT that ends in .gguf is a GGUF file with only the changed tensors packed anew; any other is a Hugging Face
folder of floats.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from trivet.cli.adapters import AdapterOption, scaled
from trivet.cli.output import JsonOption, ModelArgument, emit_json, note, table
from trivet.cli.progress import progress

if TYPE_CHECKING:
    from trivet.merging import Merged

EXAMPLE = "trivet merge smollm2-135m orders/adapter orders.gguf"
SHOWN = 5  # tensors with the largest error
LITTLE = 0.8  # of the change


def merge(
    model: ModelArgument,
    adapter: Annotated[
        str, typer.Argument(metavar="ADAPTER[=SCALE]", help="A PEFT or MLX folder, or a GGUF adapter file.")
    ],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The file.gguf or the folder to write.")],
    type: Annotated[
        str,
        typer.Option(
            help="What changed tensors become: keep (each as it was), f32, f16, bf16, q8_0, q6_k, q5_k, q5_1,"
            " q5_0, q4_k, q4_1, q4_0, iq4_nl, q3_k or q2_k."
        ),
    ] = "keep",
    more: AdapterOption = None,
    as_json: JsonOption = False,
) -> None:
    from trivet.merging import merge as merge_into
    from trivet.models.checkpoint import open_checkpoint, resolve

    given = scaled([adapter, *(more or ())]) or []
    total = len(open_checkpoint(resolve(model)).tensors)
    with progress("merging", total, quiet=as_json) as advance:
        done = merge_into(model, given, out, type=type, advance=advance)
    if as_json:
        changed = [asdict(change) for change in done.changed]
        numbers = {"error": done.error, "kept": done.kept, "copied": done.copied, "dithered": done.dithered}
        emit_json({"path": str(done.path), **numbers, "notes": done.notes, "changed": changed})
        return
    _show(done)


def _show(done: Merged) -> None:
    worst = sorted(done.changed, key=lambda change: -change.error)[:SHOWN]
    rows = [(c.name, c.before, c.after, f"{100 * c.error:.3f} %", f"{100 * c.kept:.1f} %") for c in worst]
    table(("largest errors", "was", "is", "error", "change kept"), rows)
    print(
        f"\nwrote {done.path}: {len(done.changed)} tensors changed, {done.copied} as they were; packing cost"
        f" {100 * done.error:.3f} % of the weights and kept {100 * done.kept:.1f} % of the change"
    )
    if done.dithered:
        note(
            f"{done.dithered} tensors are rounded by chance, for to the nearest their change would have been"
            " lost between steps; --type q8_0 or f16 errs less"
        )
    if done.kept < LITTLE:
        note("much of the change was lost in packing; --type q8_0 or f16 keeps more of it")
    for text in done.notes:
        note(text)
