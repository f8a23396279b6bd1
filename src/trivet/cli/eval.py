"""Score a text: mean NLL and perplexity.

NLL is the negative natural log of the probability of each token, given those before it in its window.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from trivet.cli.output import (
    DeviceOption,
    JsonOption,
    KvOption,
    ModelArgument,
    ThreadsOption,
    emit_json,
    not_utf8,
)
from trivet.errors import FileError, InputError

EXAMPLE = "trivet eval smollm2-135m --text book.txt --window 2048 --stride 1024"


def eval(
    model: ModelArgument,
    text: Annotated[Path, typer.Option(help="A UTF-8 text file.")],
    window: Annotated[int, typer.Option(min=0, help="Tokens per window; 0 is one window over all.")] = 0,
    stride: Annotated[
        int, typer.Option(min=0, help="Tokens between windows; 0 is one less than a window.")
    ] = 0,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    kv: KvOption = None,
    as_json: JsonOption = False,
) -> None:
    from trivet.generate.model import load

    m = load(model, device, threads=threads, kv=kv)
    ids = m.tokenizer.encode(_read(text), add_special=True)
    if len(ids) < 2:
        raise InputError(f"[eval] {text} is {len(ids)} tokens; there is nothing to score")
    from trivet.cli.progress import progress

    with progress("scoring", len(ids) - 1, quiet=as_json) as advance:
        losses = m.nll(ids, window=window, stride=stride, advance=advance)
    mean = float(losses.mean())
    result = {
        "mean_nll": mean,
        "perplexity": math.exp(mean) if mean < 700 else None,
        "tokens": len(ids),
        "scored": len(losses),
        "window": window or len(ids),
    }
    if as_json:
        emit_json(result)
    else:
        print(f"mean NLL {mean:.5f}  perplexity {math.exp(min(mean, 700)):.4f}  over {len(losses)} tokens")


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(f"[eval] {path}", error) from None
    except OSError as error:
        raise FileError(f"[eval] {path}: {error.strerror}") from None
