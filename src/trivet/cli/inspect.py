"""Show what a model is made of, and what is wrong with it.

Models that cannot be run are shown as far as they can be read.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trivet.cli.output import (
    ContextOption,
    JsonOption,
    KvOption,
    ModelArgument,
    emit_json,
    human_bytes,
    short,
    table,
)
from trivet.cli.progress import waiting

EXAMPLE = "trivet inspect smollm2-135m --context 4096 --check"
NO_TEMPLATE = "none: it completes text, and cannot chat"


def inspect(
    model: ModelArgument,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Read every tensor, for NaN and infinity; small ones are always. Exits with 1 if any"
            " problem is found.",
        ),
    ] = False,
    context: ContextOption = None,
    kv: KvOption = None,
    as_json: JsonOption = False,
) -> None:
    from trivet.generate.describe import describe

    with waiting("reading every tensor" if check else "reading"):
        found = describe(model, context, kv, check=check)
    if as_json:
        emit_json(found)
    else:
        _show(found, tensors, check)
    if check and found["problems"]:
        raise typer.Exit(1)


def _show(found: dict[str, Any], tensors: bool, check: bool) -> None:
    table(("metadata", "value"), [(k, short(v)) for k, v in found["metadata"].items()])
    print()
    if tensors:
        rows = [
            (t["name"], t["dtype"], _shape(t["shape"]), human_bytes(t["bytes"])) for t in found["tensors"]
        ]
        table(("tensor", "type", "shape", "size"), rows)
        print()
    _types(found)
    print()
    table(("", ""), [*_facts(found), *_words(found)], heading=False)
    _problems(found["problems"], check)


def _types(found: dict[str, Any]) -> None:
    rows = [
        (
            row["type"],
            str(row["tensors"]),
            human_bytes(row["bytes"]),
            f"{100 * row['bytes'] / max(found['bytes'], 1):.1f} %",
            f"{8 * row['bytes'] / max(row['parameters'], 1):.4g}",
        )
        for row in found["types"]
    ]
    table(("type", "tensors", "size", "share", "bits a weight"), rows)


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("model", f"{found['architecture']}, {found['format']}, {human_bytes(found['bytes'])}"),
        (
            "parameters",
            f"{found['parameters']:,} parameters in {len(found['tensors'])} tensors,"
            f" {found['bits_per_weight']:.3f} bits each",
        ),
    ]
    memory = found["memory"]
    if memory is None:
        return rows
    caches = [f"{human_bytes(n)} in {kind}" for kind, n in memory["caches"].items()]
    total = memory["weights"] + memory["cache"] + memory["temporaries"]
    return [
        *rows,
        (
            "memory",
            f"{human_bytes(total)} at a context of {memory['context']} and {memory['kv']}:"
            f" {human_bytes(memory['weights'])} weights + {human_bytes(memory['cache'])} keys and values"
            f" + about {human_bytes(memory['temporaries'])} working",
        ),
        ("keys and values", ", ".join(caches)),
    ]


def _words(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What is known of the tokenizer and the chat template."""
    words, template = found["tokenizer"], found["template"]
    if words is None:
        return []
    adds = [name for name in ("bos", "eos") if words[f"add_{name}"]]
    adds += ["a space before it"] if words["add_space_prefix"] else []
    pre = f", pre-tokeniser {words['pre']}" if words["pre"] else ""
    special = ", ".join(f"{name} {_token(t)}" for name, t in words["special"].items())
    return [
        ("tokenizer", f"{words['kind']}, {words['tokens']} tokens{pre}"),
        ("special tokens", special or "none"),
        ("a text gets", ", ".join(adds) or "nothing added"),
        ("a reply ends with", ", ".join(map(_token, words["ends"])) or "no token"),
        ("chat template", f"{template['characters']} characters" if template else NO_TEMPLATE),
    ]


def _token(token: dict[str, Any]) -> str:
    return f"{short(token['token'], 30)} ({token['id']})"


def _problems(problems: list[str], check: bool) -> None:
    print()
    if not problems:
        print("no problems found" + ("" if check else "; --check reads every tensor"))
    for problem in problems:
        print(f"problem: {short(problem, 1000)}")


def _shape(shape: list[int]) -> str:
    return " x ".join(map(str, shape))
