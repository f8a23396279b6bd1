"""Show metadata, tensors and memory of a model."""

from __future__ import annotations

from collections import Counter
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

EXAMPLE = "trivet inspect smollm2-135m --tensors"


def inspect(
    model: ModelArgument,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    context: ContextOption = None,
    kv: KvOption = None,
    as_json: JsonOption = False,
) -> None:
    from trivet.generate.describe import describe

    found = describe(model, context, kv)
    if as_json:
        emit_json(found)
        return
    table(("metadata", "value"), [(k, short(v)) for k, v in found["metadata"].items()])
    print()
    if tensors:
        rows = [
            (t["name"], t["dtype"], _shape(t["shape"]), human_bytes(t["bytes"])) for t in found["tensors"]
        ]
        table(("tensor", "type", "shape", "size"), rows)
        print()
    _summary(found)


def _summary(found: dict[str, Any]) -> None:
    kinds = Counter(t["dtype"] for t in found["tensors"])
    sizes: Counter[str] = Counter()
    for t in found["tensors"]:
        sizes[t["dtype"]] += t["bytes"]
    rows = [(kind, str(n), human_bytes(sizes[kind])) for kind, n in kinds.most_common()]
    table(("type", "tensors", "size"), rows)
    print()
    print(f"{found['parameters']:,} parameters in {len(found['tensors'])} tensors")
    memory = found["memory"]
    if memory is None:
        print(f"cannot be run: {found['problem']}")
        return
    print(
        f"memory at a context of {memory['context']}: {human_bytes(memory['weights'])} weights"
        f" + {human_bytes(memory['cache'])} keys and values in {memory['kv']}"
        f" + about {human_bytes(memory['temporaries'])} working"
    )


def _shape(shape: list[int]) -> str:
    return " x ".join(map(str, shape))
