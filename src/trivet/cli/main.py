"""The `trivet` command: its verbs, and what becomes of errors.

Exit codes: 0 done, 1 it failed, 2 the input was wrong, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from typing import NoReturn

if __name__ == "__main__" or sys.argv[0].endswith("trivet"):
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while modules load ends it without a word

import typer

from trivet.cli import (
    bench,
    chat,
    convert,
    data,
    devices,
    diff,
    eval,
    export,
    finetune,
    inspect,
    list,
    merge,
    pretrain,
    pull,
    quantize,
    rm,
    run,
    tokenize,
)
from trivet.errors import FileError, InputError, ModelError, TemplateError, TokenizerError, TrivetError

app = typer.Typer(
    name="trivet",
    help="Tune and run language models on the machine you have.",
    epilog='\b\nExample: trivet run smollm2-135m "What is the capital of France?"',
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (
    run, chat, pull, list, rm, inspect, diff, tokenize, eval, devices, bench, export, convert, quantize,
    finetune, pretrain, merge,
):  # fmt: skip
    name = verb.__name__.rsplit(".", 1)[1]
    app.command(name, help=verb.__doc__, epilog=f"\b\nExample: {verb.EXAMPLE}")(getattr(verb, name))
app.add_typer(data.app, name="data", help=data.__doc__)

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
    _open_streams()
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = _ignored
        try:
            app(prog_name="trivet")
        finally:
            sys.stdout.flush()  # a full disk is an error of ours, not of the interpreter's end
    except TrivetError as error:
        _stop(str(error), 2 if isinstance(error, BAD_INPUT) else 1)
    except (KeyboardInterrupt, SystemExit) as stopped:  # Typer makes the one the other
        if isinstance(stopped, SystemExit) and stopped.code != 130:
            raise
        _end_at_once(130)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        _drop_output()
        sys.exit(1)
    except OSError as error:
        _drop_output()
        _stop(f"[output] {error.strerror or error}", 1)
    except MemoryError:
        _stop("out of memory", 1)


def _ignored(found: sys.UnraisableHookArgs) -> None:
    """An interrupt that falls into a callback, such as JAX's of the garbage collector, is dropped by Python:
    it comes again a moment later."""
    if found.exc_type is KeyboardInterrupt:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(found)


def _end_at_once(code: int) -> NoReturn:
    """Without the interpreter's own end: threads of a compiler may go on, and it would pull away under them
    what they work with."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _open_streams() -> None:
    """Streams that were closed are empty; characters that the terminal's encoding lacks show as escapes."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """What is still in the buffer goes nowhere, so that the interpreter's end has nothing to write."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stop(message: str, code: int) -> NoReturn:
    """One line on stderr, whatever a file put into the message."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    with contextlib.suppress(OSError):
        print(f"trivet: {line}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
