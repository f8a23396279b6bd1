"""Write a GGUF that C programs can run.

It is the same file with the plan and the chat format inside, so that no Python is needed.
"""

from __future__ import annotations

from typing import Annotated

import typer

from trivet.cli.output import JsonOption, ModelArgument, emit_json, note

EXAMPLE = "trivet export smollm2-135m -o smollm2.gguf"


def export(
    model: ModelArgument,
    output: Annotated[str, typer.Option("--output", "-o", help="The file to write.")],
    kv: Annotated[
        str, typer.Option(help="What the plan keeps keys and values in: f32, f16, bf16 or q8_0.")
    ] = "f16",
    as_json: JsonOption = False,
) -> None:
    from trivet.export import export as write

    done = write(model, output, kv=kv)
    if as_json:
        emit_json(
            {
                "path": str(done.path),
                "plan_bytes": done.plan_bytes,
                "chat": done.chat is None,
                "reason": done.chat,
            }
        )
        return
    print(f"wrote {done.path}: serving plan of {done.plan_bytes} bytes")
    if done.chat is not None:
        note(f"no chat format in it: {done.chat}")
