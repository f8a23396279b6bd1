"""Measure how fast a model runs here."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trivet.cli.output import (
    DeviceOption,
    JsonOption,
    KvOption,
    ModelArgument,
    ThreadsOption,
    emit_json,
    note,
    table,
)
from trivet.cli.progress import progress
from trivet.errors import InputError

if TYPE_CHECKING:
    from trivet.generate.benchmark import Rate, Share, Task
    from trivet.generate.bound import Rates
    from trivet.generate.model import Model

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
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time goes instead.")] = False,
    device: DeviceOption = "auto",
    kv: KvOption = None,
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    from trivet.generate.benchmark import benchmark, tasks
    from trivet.generate.model import load

    sizes = prefill or [512], decode or [128], depth
    if profile:
        return _profile(lambda: load(model, device, threads=threads, kv=kv), sizes, as_json)
    m = load(model, device, threads=threads, kv=kv)
    work = tasks(m, *sizes)
    with progress("measuring", (rounds + 1) * len(work), quiet=as_json) as advance:
        found = benchmark(m, work, rounds, advance)
    machine = _machine(m)
    if as_json:
        results = [_plain(r, m, machine) for r in found]
        emit_json({"device": m.device, "machine": _rates(machine), "results": results})
        return
    columns = ["tokens/s", "median", "lowest", "highest", *(["bound", "share"] if machine else [])]
    table(columns, [_row(r, m, machine) for r in found])
    if machine:
        note(
            f"bound: {machine.read_bytes / 1e9:.1f} GB/s read; GOP/s: {machine.i8 / 1e9:.0f} in int8,"
            f" {machine.bf16 / 1e9:.0f} in bf16, {machine.f32 / 1e9:.0f} in float32"
        )


def _machine(m: Model) -> Rates | None:
    """What the processor can do; the reference is not held against it."""
    if m.device != "cpu":
        return None
    from trivet.backends.native import cpu_rates

    rates: Rates = cpu_rates(m.threads)
    return rates


def _rates(machine: Rates | None) -> dict[str, float] | None:
    names = ("read_bytes", "f32", "bf16", "i8")
    return {name: getattr(machine, name) for name in names} if machine else None


def _plain(rate: Rate, m: Model, machine: Rates | None) -> dict[str, Any]:
    bound = rate.task.bound(m, machine) if machine else None
    found = {"name": rate.task.name, "tokens": rate.task.tokens, "median": rate.median, "rates": rate.rates}
    return found | {"bound": bound}


def _row(rate: Rate, m: Model, machine: Rates | None) -> list[str]:
    cells = [rate.task.name, *(f"{x:.1f}" for x in (rate.median, min(rate.rates), max(rate.rates)))]
    if machine:
        bound = rate.task.bound(m, machine)
        cells += [f"{bound:.1f}", f"{100 * rate.median / bound:.0f} %"]
    return cells


def _profile(opened: Any, sizes: tuple[list[int], list[int], int], as_json: bool) -> None:
    """Where the time of one run of each task goes, by the core's own trace."""
    from trivet.generate.benchmark import profile, tasks

    with tempfile.TemporaryDirectory() as folder:
        trace = Path(os.environ.setdefault("TRIVET_TRACE", str(Path(folder) / "trace.json")))
        m = opened()
        if m.device != "cpu":
            raise InputError(f"[bench] --profile reads the trace of the core, which runs cpu, not {m.device}")
        found = [(task, *profile(m, task, trace)) for task in tasks(m, *sizes)]
    if as_json:
        return emit_json({"device": m.device, "profiles": [_profile_plain(*f) for f in found]})
    for task, seconds, shares in found:
        rest = seconds - sum(s.seconds for s in shares)
        rows = [_share_row(f"{s.op} {s.made}", s.calls, s.seconds, task, seconds) for s in shares]
        table(
            [task.name, "calls/token", "µs/token", "share"],
            [*rows, _share_row("between runs", 0, rest, task, seconds)],
        )
        print()


def _share_row(name: str, calls: int, taken: float, task: Task, seconds: float) -> list[str]:
    share = f"{100 * taken / seconds:.1f} %"
    return [name, f"{calls / task.tokens:.3g}", f"{1e6 * taken / task.tokens:.1f}", share]


def _profile_plain(task: Task, seconds: float, shares: list[Share]) -> dict[str, Any]:
    ops = [{"op": s.op, "made": s.made, "calls": s.calls, "seconds": s.seconds} for s in shares]
    return {"name": task.name, "tokens": task.tokens, "seconds": seconds, "ops": ops}
