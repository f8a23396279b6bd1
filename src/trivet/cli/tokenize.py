"""Show the tokens of a text."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trivet.cli.output import JsonOption, ModelArgument, emit_json, table

EXAMPLE = 'trivet tokenize smollm2-135m "Hello, world"'


def tokenize(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(help="The text; - reads it from standard input.")],
    add_special: Annotated[bool, typer.Option(help="Add the special tokens the file asks for.")] = False,
    parse_special: Annotated[
        bool, typer.Option(help="Take the text of control tokens as those tokens.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    from trivet.generate.model import open_tokenizer

    tokenizer = open_tokenizer(model)
    text = sys.stdin.read() if text == "-" else text
    ids = tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
    pieces = [tokenizer.token_bytes(i).decode("utf-8", "replace") for i in ids]
    if as_json:
        emit_json({"ids": ids, "pieces": pieces})
        return
    table("", ("id", "text"), [(str(i), repr(p)[1:-1]) for i, p in zip(ids, pieces, strict=True)])
    print(f"{len(ids)} tokens")
