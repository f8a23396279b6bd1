"""Compare two models, tensor by tensor, and on a text.

KL is KL(A || B): what is lost, in nats a token, by taking B's distribution for A's.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trivet.cli.output import (
    DeviceOption,
    JsonOption,
    ThreadsOption,
    emit_json,
    short,
    table,
)
from trivet.cli.progress import waiting

if TYPE_CHECKING:
    from trivet.comparing import Comparison, TensorDifference, TextDifference

EXAMPLE = "trivet diff model-f16.gguf model-q4_k_m.gguf --text book.txt"
SHOWN = 10  # tensors that differ most


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A model: a file, a folder, or a name, as for run.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    text: Annotated[
        Path | None, typer.Option(help="A UTF-8 text file, scored by both in windows of 2048 tokens.")
    ] = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    from trivet.comparing import compare
    from trivet.formats.common import read_text

    words = None if text is None else read_text("diff", text)
    with waiting("comparing"):
        done = compare(a, b, text=words, device=device, threads=threads)
    if as_json:
        emit_json({"identical": done.identical, **_finite(asdict(done))})
        return
    _tensors(done, tensors)
    _metadata(done)
    if done.text is not None:
        _text(done.text)


def _tensors(done: Comparison, every: bool) -> None:
    different = [t for t in done.tensors if not t.identical]
    worst = sorted(different, key=_order, reverse=True)
    shown = done.tensors if every else worst[:SHOWN]
    if shown:
        rows = [(t.name, _pair(*t.types), _shapes(t), _number(t.rmse), _number(t.largest)) for t in shown]
        table(("tensor" if every else "most different", "type", "shape", "rel. RMSE", "max |B-A|"), rows)
        print()
    for which, names in (("A", done.only_a), ("B", done.only_b)):
        if names:
            print(f"only in {which}: {', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}")
    same = len(done.tensors) - len(different)
    print(f"{same} of {len(done.tensors)} tensors are identical; relative RMSE {_number(done.rmse)} over all")


def _order(tensor: TensorDifference) -> float:
    return math.inf if tensor.rmse is None or math.isnan(tensor.rmse) else tensor.rmse


def _metadata(done: Comparison) -> None:
    if done.metadata:
        print()
        table(("metadata", "A", "B"), [(key, _value(x), _value(y)) for key, x, y in done.metadata])


def _value(value: Any) -> str:
    return "-" if value is None else short(value, 50)


def _text(found: TextDifference) -> None:
    print()
    rows = [
        (name, f"{m.nll:.5f}", f"{math.exp(min(m.nll, 700)):.4f}", f"{m.bits_per_byte:.4f}", str(m.tokens))
        for name, m in (("A", found.a), ("B", found.b))
    ]
    table(("text", "mean NLL", "perplexity", "bits per byte", "tokens"), rows)
    print()
    if found.a.tokens >= found.window:
        print(f"scored in windows of {found.window} tokens, as by trivet eval --window {found.window}")
    if found.kl is None or found.same_top is None:
        print(f"no KL: {found.refused}")
    else:
        print(
            f"KL(A || B) {found.kl:.6f} nats a token; the likeliest token is the same in {found.same_top:.2%}"
        )


def _shapes(tensor: TensorDifference) -> str:
    return _pair(*(" x ".join(map(str, shape)) for shape in tensor.shapes))


def _pair(a: str, b: str) -> str:
    return a if a == b else f"{a} -> {b}"


def _number(value: float | None) -> str:
    return "-" if value is None else "0" if value == 0 else f"{value:.3g}"


def _finite(value: Any) -> Any:
    """NaN and infinity as text, which JSON has no numbers for."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
