"""The `trivet` command: its verbs, and what becomes of errors.

Exit codes: 0 done, 1 it failed, 2 the input was wrong, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os
import sys

import typer

from trivet.cli import bench, chat, devices, eval, export, inspect, run, tokenize
from trivet.errors import FileError, InputError, ModelError, TemplateError, TokenizerError, TrivetError

app = typer.Typer(
    name="trivet",
    help="Run language models on the machine you have.",
    epilog='\b\nExample: trivet run smollm2-135m "What is the capital of France?"',
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (run, chat, inspect, tokenize, eval, devices, bench, export):
    name = verb.__name__.rsplit(".", 1)[1]
    app.command(name, help=verb.__doc__, epilog=f"\b\nExample: {verb.EXAMPLE}")(getattr(verb, name))

BAD_INPUT = (FileError, InputError, ModelError, TemplateError, TokenizerError)


def version(wanted: bool) -> None:
    if wanted:
        import trivet

        print(f"trivet {trivet.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def main() -> None:
    """Entry point of the console script."""
    try:
        app(prog_name="trivet")
    except TrivetError as error:
        print(f"trivet: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, BAD_INPUT) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
