"""The adapters that verbs take: PATH, or PATH=SCALE."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from trivet.errors import InputError

AdapterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        metavar="PATH[=SCALE]",
        help="A LoRA: a PEFT or MLX folder, or a GGUF adapter file. Repeatable: they are summed.",
    ),
]


def scaled(given: Sequence[str] | None) -> list[tuple[str, float]] | None:
    """What was given as paths and scales; None if nothing was.

    Raises InputError for a scale that is no number, if no file is called so, either.

    >>> scaled(["orders", "style=0.5"])
    [('orders', 1.0), ('style', 0.5)]
    """
    return [_scaled(one) for one in given] if given else None


def _scaled(one: str) -> tuple[str, float]:
    path, equals, scale = one.rpartition("=")
    if equals and path and not os.path.exists(one):
        try:
            return path, float(scale)
        except ValueError:
            raise InputError(
                f"[adapter] {one}: there is no such file, and as a scale {scale!r} is not a number"
            ) from None
    return one, 1.0
