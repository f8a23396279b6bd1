"""Look at training data before training on it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from trivet.cli.output import JsonOption, emit_json, table
from trivet.errors import InputError

if TYPE_CHECKING:
    from trivet.generate.model import Model
    from trivet.train.data.check import Checked
    from trivet.train.data.dataset import Loaded

EXAMPLE = "trivet data check train.jsonl --model smollm2-135m"
SHOWN = 2000  # characters of an example
LINES = 10  # refused rows and shared lines

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def data() -> None:
    pass


@app.command(epilog=f"\b\nExample: {EXAMPLE}")
def check(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="JSONL or plain text; rows shared by two are told.")
    ],
    model: Annotated[str, typer.Option("--model", "-m", help="The model to train: a file or a short name.")],
    format: Annotated[
        str, typer.Option(help="messages, completion, instruction, text, plain (a text file), or auto.")
    ] = "auto",
    column: Annotated[
        list[str] | None, typer.Option(help="The file's name of a field: prompt=question. Repeatable.")
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of an example; by default the model's context.")
    ] = None,
    train_on: Annotated[
        str, typer.Option(help="assistant (replies and completions only), or all.")
    ] = "assistant",
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help="Texts may spell control tokens; messages never may.")
    ] = False,
    show: Annotated[int, typer.Option(min=0, help="Examples to show, with what is trained.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Count tokens, show what is trained, find faults.

    Exit code 2 if rows are refused, files share rows, or nothing is left to train on."""
    from trivet.cli.progress import waiting
    from trivet.generate.model import load
    from trivet.train.data.check import check as check_files
    from trivet.train.data.check import plain
    from trivet.train.data.render import Renderer

    opened = load(model, "cpu")
    renderer = Renderer(opened, length, train_on=train_on, parse_special=parse_special)
    columns = _columns(column or [])
    with waiting("reading"):
        found = check_files(files, renderer, format=format, columns=columns)
    if as_json:
        emit_json(plain(found))
    else:
        _show(found, opened, show)
    if not found.clean:
        raise typer.Exit(2)


def _columns(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise InputError(f"[data] --column {pair!r}; wanted FIELD=COLUMN, such as prompt=question")
    return dict(pair.split("=", 1) for pair in pairs)


def _show(found: Checked, model: Model, examples: int) -> None:
    from trivet.train.data.check import counts

    names = ("min", "median", "max", "total", "trained")
    rows = []
    for loaded in found.files:
        tokens = counts(loaded.splits["train"])
        report = loaded.report
        shown = [f"{tokens[name]:,.0f}" for name in names]
        rows.append((report.path, report.format or "-", f"{report.rows:,}", f"{report.examples:,}", *shown))
    table(("file", "format", "rows", "examples", *names), rows)
    for loaded in found.files:
        _show_file(loaded, model, examples)
    for shared in found.overlaps:
        print(f"\n{shared.second} shares rows with {shared.first}:")
        print(f"  equal: {_pairs(shared.exact)}")
        print(f"  but for case, space and punctuation: {_pairs(shared.normal)}")


def _show_file(loaded: Loaded, model: Model, examples: int) -> None:
    report, dataset = loaded.report, loaded.splits["train"]
    print(f"\n{report.path}")
    for note in report.notes():
        print(f"  {note}")
    for refused in report.refusals[:LINES]:
        print(f"  line {refused.line}: {_printable(refused.reason)}")
    if report.refused > LINES:
        print(f"  and {report.refused - LINES} more")
    if report.twins:
        print(f"  the same rows: {_pairs(report.twins)}")
    if report.left_out:
        lines = ", ".join(map(str, report.left_out[:LINES]))
        print(f"  nothing to train on in lines {lines}{', ...' if report.untrained > LINES else ''}")
    for i in range(min(examples, len(dataset))):
        print(f"\n  example {i + 1}, line {dataset.lines[i]}; trained is what is {_style()}:\n")
        _show_example(loaded, model, i)


def _colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _style() -> str:
    return "green" if _colours() else "in ⟦ ⟧"


def _show_example(loaded: Loaded, model: Model, i: int) -> None:
    from rich.console import Console
    from rich.text import Text

    from trivet.train.data.check import pieces

    text, left = Text(), SHOWN
    for piece, trained in pieces(loaded.splits["train"][i], model.tokenizer):
        part = _printable(piece[:left], "\n")
        if trained and not _colours():
            part = f"⟦{part}⟧"
        text.append(part, "bold green" if trained else "dim")
        left -= len(piece)
        if left <= 0:
            text.append(" ...")
            break
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 1 << 20)
    with console.capture() as shown:
        console.print(text)
    print(shown.get(), end="")


def _pairs(pairs: list[tuple[int, int]]) -> str:
    shown = ", ".join(f"{a} = {b}" for a, b in pairs[:LINES])
    return (shown + (", ..." if len(pairs) > LINES else "")) or "none"


def _printable(text: str, kept: str = "") -> str:
    """What a file holds does not steer the terminal."""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)
