"""Remove a model that was pulled.

Without a quantisation all of the repository goes. Nothing outside the hub's cache is touched.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trivet.cli.output import human_bytes
from trivet.cli.pull import NameArgument
from trivet.errors import InputError

EXAMPLE = "trivet rm bartowski/SmolLM2-135M-Instruct-GGUF:Q8_0"


def rm(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    from trivet.hub import cache

    size = human_bytes(cache.size_of(name))
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(f"[rm] {name} ({size}): give --yes, for there is nobody to ask")
        if not typer.confirm(f"Remove {name} ({size}) from {cache.folder()}?"):
            raise typer.Exit(1)
    cache.remove(name)
    print(f"removed {name}: {size}")
