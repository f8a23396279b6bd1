"""Score a text, or rows: loss, exact answers, choices.

NLL is the negative natural log of the probability of each token, given those before it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from trivet.cli.adapters import AdapterOption, scaled
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
from trivet.errors import InputError

EXAMPLE = "trivet eval smollm2-135m --data held_out.jsonl --task exact --adapter orders/adapter"
TASKS = ("loss", "exact", "choice")


def eval(
    model: ModelArgument,
    text: Annotated[Path | None, typer.Option(help="A UTF-8 text file, scored as one sequence.")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Rows as for finetune: FILE, or NAME=FILE. Repeatable.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Of rows: loss, exact (the answer itself) or choice. [loss]")
    ] = None,
    window: Annotated[
        int, typer.Option(min=0, help="Of a text: tokens per window; 0 is one over all, or the context.")
    ] = 0,
    stride: Annotated[
        int, typer.Option(min=0, help="Tokens between windows; 0 is one less than a window.")
    ] = 0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of an exact answer. [256]")
    ] = None,
    adapter: AdapterOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    kv: KvOption = None,
    as_json: JsonOption = False,
) -> None:
    if (text is None) == (not data):
        raise InputError("[eval] wanted --text FILE, or --data FILE")
    if task not in (None, *TASKS):
        raise InputError(f"[eval] --task is {task!r}; known: {', '.join(TASKS)}")
    what = "--text" if text is not None else f"--task {task or 'loss'}"
    for name, value, users in (
        ("task", task, ("--task loss", "--task exact", "--task choice")),
        ("window", window, ("--text",)),
        ("stride", stride, ("--text",)),
        ("max-tokens", max_tokens, ("--task exact",)),
        ("kv", kv, ("--text", "--task exact")),
    ):
        if value and what not in users:
            raise InputError(f"[eval] --{name} is {value}, which {what} has no use for")
    from trivet.generate.model import load

    m = load(model, device, threads=threads, kv=kv, adapter=scaled(adapter))
    if text is not None:
        _text(m, text, window, stride, as_json)
    else:
        _rows(m, _named(data or []), task or "loss", max_tokens or 256, as_json)


def _text(m: Any, text: Path, window: int, stride: int, as_json: bool) -> None:
    from trivet.formats.common import read_text

    ids = m.tokenizer.encode(read_text("eval", text), add_special=True)
    if len(ids) < 2:
        raise InputError(f"[eval] {text} is {len(ids)} tokens; there is nothing to score")
    if not window and len(ids) > m.context:
        window = m.context
        stride = min(stride, window - 1)
        note(f"{len(ids)} tokens are more than the context: scored in windows of {window}")
    from trivet.cli.progress import progress

    with progress("scoring", len(ids) - 1, quiet=as_json) as advance:
        losses = m.nll(ids, window=window, stride=stride, advance=advance)
    mean = float(losses.mean())
    result = {
        "mean_nll": mean,
        "perplexity": math.exp(mean) if mean < 700 else None,
        "tokens": len(ids),
        "scored": len(losses),
        "window": window or len(ids),
    }
    if as_json:
        emit_json(result)
    else:
        print(f"mean NLL {mean:.5f}  perplexity {math.exp(min(mean, 700)):.4f}  over {len(losses)} tokens")


def _named(data: list[str]) -> dict[str, Path]:
    """Files by name; a file without a name has its own."""
    found: dict[str, Path] = {}
    for item in data:
        name, _, path = item.rpartition("=")
        path = path if not Path(item).exists() else item
        name = name if path != item and name else Path(path).stem
        if name in found:
            raise InputError(f"[eval] two of --data are called {name!r}; give NAME=FILE")
        found[name] = Path(path)
    return found


def _rows(m: Any, files: dict[str, Path], task: str, max_tokens: int, as_json: bool) -> None:
    from trivet.cli.progress import waiting
    from trivet.train import evaluate

    results: dict[str, dict[str, Any]] = {}
    for name, path in files.items():
        with waiting(f"measuring {name}"):
            if task == "loss":
                results[name] = _loss(m, path)
            elif task == "exact":
                results[name] = _answers(evaluate.exact(m, path, max_tokens=max_tokens))
            else:
                results[name] = _answers(evaluate.choice(m, path))
    if as_json:
        emit_json({"task": task, "splits": results})
        return
    columns = ("tokens", "mean NLL", "perplexity") if task == "loss" else ("rows", "right", "share")
    shown = [
        [name, *(_cell(r[c.replace(" ", "_").lower()], c) for c in columns)] for name, r in results.items()
    ]
    table(("data", *columns), shown)
    for result in results.values():
        for line, wanted, given in result.get("wrong", [])[:3]:
            print(f"line {line}: wanted {wanted[:100]!r}, got {given[:100]!r}")


def _cell(value: float | None, column: str) -> str:
    """A number as --text has it."""
    if value is None:
        return "-"
    return (
        f"{value:.5f}" if column == "mean NLL" else f"{value:.4f}" if isinstance(value, float) else str(value)
    )


def _loss(m: Any, path: Path) -> dict[str, Any]:
    from trivet.train import evaluate
    from trivet.train.data import Renderer, load

    data = load(path, Renderer(m), splits={"test": 1.0}).splits["test"]
    found = evaluate.loss(m, data)
    perplexity = round(found.perplexity, 4) if math.isfinite(found.perplexity) else None
    return {
        "examples": found.examples,
        "tokens": found.targets,
        "mean_nll": found.mean,
        "perplexity": perplexity,
    }


def _answers(found: Any) -> dict[str, Any]:
    return {"rows": found.rows, "right": found.right, "share": round(found.share, 4), "wrong": found.wrong}
