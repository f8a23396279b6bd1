"""Measure how fast a model runs here."""

from __future__ import annotations

from typing import Annotated

import typer

from trivet.cli.output import (
    DeviceOption,
    JsonOption,
    KvOption,
    ModelArgument,
    ThreadsOption,
    emit_json,
    table,
)
from trivet.cli.progress import progress

EXAMPLE = "trivet bench smollm2-135m --prefill 512 --decode 128"


def bench(
    model: ModelArgument,
    prefill: Annotated[
        list[int] | None, typer.Option(min=1, help="Prompt tokens; may be given again. [512]")
    ] = None,
    decode: Annotated[
        list[int] | None, typer.Option(min=1, help="Reply tokens; may be given again. [128]")
    ] = None,
    depth: Annotated[int, typer.Option(min=0, help="Tokens already in the context when decode begins.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count, after one that does not.")] = 5,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    kv: KvOption = None,
    as_json: JsonOption = False,
) -> None:
    from trivet.generate.benchmark import benchmark
    from trivet.generate.model import load

    sizes = prefill or [512], decode or [128]
    m = load(model, device, threads=threads, kv=kv)
    with progress("measuring", (rounds + 1) * (len(sizes[0]) + len(sizes[1])), quiet=as_json) as advance:
        found = benchmark(m, *sizes, depth=depth, rounds=rounds, advance=advance)
    if as_json:
        emit_json(
            {
                "device": m.device,
                "results": [
                    {"name": r.name, "tokens": r.tokens, "median": r.median, "rates": r.rates} for r in found
                ],
            }
        )
        return
    rows = [(r.name, f"{r.median:.1f}", f"{min(r.rates):.1f}", f"{max(r.rates):.1f}") for r in found]
    table(("tokens/s", "median", "lowest", "highest"), rows)
