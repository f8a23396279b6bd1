"""Show the tokens of a text."""

from __future__ import annotations

from typing import Annotated

import typer

from trivet.cli.output import JsonOption, ModelArgument, emit_json, read_stdin, table

EXAMPLE = 'trivet tokenize smollm2-135m "Hello, world"'


def tokenize(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text; - reads it from standard input.")],
    add_special: Annotated[bool, typer.Option(help="Add the special tokens the file asks for.")] = False,
    parse_special: Annotated[
        bool, typer.Option(help="Take the text of control tokens as those tokens.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    from trivet.generate.model import open_tokenizer

    tokenizer = open_tokenizer(model)
    text = read_stdin() if text == "-" else text
    ids = tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
    pieces = [tokenizer.token_bytes(i) for i in ids]
    if as_json:
        emit_json({"ids": ids, "pieces": [p.decode("utf-8", "replace") for p in pieces]})
        return
    table(("id", "text"), [(str(i), _shown(p)) for i, p in zip(ids, pieces, strict=True)])
    print(f"{len(ids)} token{'' if len(ids) == 1 else 's'}")


def _shown(piece: bytes) -> str:
    """In quotes, so that spaces show; part of a character as its bytes.

    >>> _shown(b" world"), _shown(b"\\xf0\\x9f")
    ("' world'", "b'\\\\xf0\\\\x9f'")
    """
    try:
        return repr(piece.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(piece)
