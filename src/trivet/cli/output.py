"""What every verb shares: JSON for machines, tables for people, one line for an error."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A GGUF file, a Hugging Face folder, a pulled OWNER/REPO[:QUANT], or smollm2-135m.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")]
DeviceOption = Annotated[
    str, typer.Option(help="cpu, cuda, rocm, tpu, metal, reference (NumPy: slow, exact), or auto.")
]
ThreadsOption = Annotated[int, typer.Option(min=0, max=256, help="Threads; 0 takes the physical cores.")]
ContextOption = Annotated[
    int | None,
    typer.Option(min=1, help="Most tokens of one sequence; by default what the model was trained for."),
]
KvOption = Annotated[
    str | None,
    typer.Option(help="What keys and values are kept in: f32, f16, bf16 or q8_0. [f16, reference: f32]"),
]


def read_stdin() -> str:
    """All of standard input, which must be UTF-8. Raises FileError."""
    from trivet.formats.common import decoded

    return decoded(sys.stdin.buffer, "[stdin]")


def emit_json(value: Mapping[str, Any]) -> None:
    """One JSON object on one line of stdout."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, heading: bool = True) -> None:
    """A table; columns after the first are right-aligned if all their cells are numbers."""
    from rich.console import Console
    from rich.table import Table

    out = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=heading)
    for i, name in enumerate(columns):
        numeric = all(row[i][:1].isdigit() for row in rows) and bool(rows)
        out.add_column(name, justify="right" if numeric and i else "left", overflow="fold")
    for row in rows:
        out.add_row(*(cell.replace("[", "\\[") for cell in row))
    # A reader that is no terminal, grep say, wants each row on one line.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 1 << 20)
    with console.capture() as shown:
        console.print(out)
    print("\n".join(line.rstrip() for line in shown.get().splitlines()))


def note(text: str) -> None:
    """A line beside the output proper: on stderr, dim on a terminal."""
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        text = f"\x1b[2m{text}\x1b[0m"
    print(text, file=sys.stderr)


def short(value: Any, width: int = 80) -> str:
    """A metadata value, as `generate.describe.plain` has it, on one line.

    >>> short({"array": "str", "length": 9, "first": ["a", "b"]}), short(1 / 3)
    ("str [9] 'a', 'b', ...", '0.3333333')
    """
    if isinstance(value, dict):
        return f"{value['array']} [{value['length']}] {', '.join(map(repr, value['first']))}, ..."
    if isinstance(value, float):
        return f"{value:.7g}"
    text = str(value).replace("\n", "\\n")
    return text if len(text) <= width else text[: width - 3] + "..."


def human_bytes(n: float) -> str:
    """
    >>> human_bytes(98362432), human_bytes(512)
    ('93.8 MiB', '512 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return ""


def program() -> str:
    """What to type for this command, so that what is printed can be pasted."""
    called = Path(sys.argv[0])
    found = shutil.which("trivet")
    if called.name != "trivet" or not called.exists() or (found and os.path.samefile(found, called)):
        return "trivet"
    return os.path.relpath(called) if called.is_relative_to(Path.cwd()) else str(called)
