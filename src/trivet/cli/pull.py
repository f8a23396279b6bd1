"""Fetch a model from the Hugging Face hub.

What is here already is not fetched again, and what was interrupted goes on. Every byte is hashed.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from trivet.cli.output import JsonOption, emit_json, human_bytes, note, program
from trivet.cli.progress import transfer, waiting

if TYPE_CHECKING:
    from trivet.hub.fetch import Remote

EXAMPLE = "trivet pull bartowski/SmolLM2-135M-Instruct-GGUF:Q8_0"

NameArgument = Annotated[
    str,
    typer.Argument(metavar="OWNER/REPO[:QUANT]", help="A repository; of GGUF, which quantisation. [Q4_K_M]"),
]


def pull(
    name: NameArgument,
    offline: Annotated[
        bool, typer.Option("--offline", help="Only look whether it is here; HF_HUB_OFFLINE=1 does too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    from trivet.hub import fetch

    if fetch.is_offline(offline):
        path, found = fetch.pull(name, offline=True), name
    else:
        with waiting(f"asking for {name}"):
            remote = fetch.remote(name)
        found = str(remote.name)
        if not as_json:
            count = len(remote.files)
            note(f"{found}: {human_bytes(remote.nbytes)} in {count} file{'s' * (count > 1)}")
        _warn(remote)
        try:
            with transfer("fetching", remote.nbytes, quiet=as_json) as advance:
                path = fetch.fetch(remote, advance)
        except KeyboardInterrupt:
            note("stopped; what came is kept: pull again to go on")
            raise
    if as_json:
        emit_json({"name": found, "path": str(path)})
        return
    print(f'{found} is in {path}\n\n{program()} run {shlex.quote(found)} "Why is the sky blue?"')


def _warn(remote: Remote) -> None:
    """Says before the weights come if they could not be run."""
    from trivet import models

    known = models.MODEL_TYPES if remote.name.quant is None else models.ARCHITECTURES
    if remote.architecture is not None and remote.architecture not in known:
        there = ", ".join(sorted(known))
        note(f"trivet cannot run the architecture {remote.architecture!r:.50}; known: {there}")
