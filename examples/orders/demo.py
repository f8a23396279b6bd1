"""Fine-tunes a model on the order sentences beside this file, and shows it before and after.

python examples/orders/demo.py [MODEL] [OUT]
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

import trivet as tv
from trivet.cli.training import watching
from trivet.generate.model import Model
from trivet.train import evaluate

HERE = Path(__file__).parent
HELD_OUT = HERE / "held_out.jsonl"
SHOWN = 3  # held-out rows that the table shows


def main(model: str = "smollm2-135m", out: str = "build/demo") -> None:
    began = time.perf_counter()
    shutil.rmtree(out, ignore_errors=True)
    console = Console(highlight=False)
    console.print(f"[bold]1[/]  {model} reads orders it was never taught to read, as JSON")
    base = tv.load(model)
    before = _answers(base, console)
    console.print(f"   exactly right: {before.right} of {before.rows}")
    console.print("[bold]2[/]  QLoRA on 300 examples, straight on the quantised file")
    with watching(quiet=False) as watch:
        run = tv.finetune(model, HERE / "train.jsonl", out=out, rows=6, lr=1e-3, warmup=5, watch=watch)
    console.print(f"   {run.steps} steps in {run.seconds:.0f} s")
    console.print("[bold]3[/]  the same orders again: names, places and sentences that no example had")
    assert run.result is not None
    base.adapt(run.result)
    after = _answers(base, console)
    console.print(_table(before, after))
    console.print(
        f"\nadapter: {run.result}   curve: {run.curve}   total: {time.perf_counter() - began:.0f} s"
    )
    console.print(f"next:    .venv/bin/trivet chat {model} --adapter {run.result}")


def _answers(model: Model, console: Console) -> evaluate.Answers:
    """What the model makes of the held-out orders, with a bar while it does."""
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("   answering", total=len(_orders()))
        return evaluate.exact(model, HELD_OUT, max_tokens=64, advance=lambda n: progress.advance(task, n))


def _orders() -> list[str]:
    lines = HELD_OUT.read_text("utf-8").splitlines()
    return [json.loads(line)["messages"][0]["content"] for line in lines]


def _table(before: evaluate.Answers, after: evaluate.Answers) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("order", "before", "after"):
        table.add_column(name, overflow="fold")
    table.add_row("exactly right", f"{before.share:.0%}", f"[bold]{after.share:.0%}[/]")
    wrong, orders = {line: given for line, _, given in after.wrong}, _orders()
    for line, wanted, given in before.wrong[:SHOWN]:
        cells = orders[line - 1], _short(given), wrong.get(line, wanted)
        table.add_row(*map(escape, cells))
    return table


def _short(text: str) -> str:
    return text if len(text) <= 160 else text[:160] + "…"


if __name__ == "__main__":
    main(*sys.argv[1:])
