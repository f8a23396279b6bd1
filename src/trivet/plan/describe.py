"""A plan in words, for `trivet inspect`, traces and people."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trivet.dtypes import bf16
from trivet.graph import to_numpy
from trivet.plan.structure import Attr, Kind, Op, Plan, Value


def describe(plan: Plan) -> str:
    """What a plan takes, does and gives, one line each.

    >>> from trivet.plan.structure import Op, Plan, Value
    >>> from trivet.dtypes import f32
    >>> x, y = Value("input", f32, (2,), "x"), Value("temporary", f32, (2,))
    >>> print(describe(Plan("twice", {}, (x, y), (Op("add", {}, (0, 0), (1,), (-1,)),), {"y": 1}, {})))
    plan twice: 1 op, 2 values
    input x: f32[2]
    %1 = add(x, x): f32[2]
    output y = %1
    """
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    yield f"plan {plan.name}: {_count(len(plan.ops), 'op')}, {_count(len(plan.values), 'value')}"
    for name, (low, high) in plan.dims.items():
        yield f"dim {name}: {low} to {high}"
    kinds: tuple[Kind, ...] = ("input", "weight", "state")
    for kind in kinds:
        for name, value in plan.named(kind).items():
            yield f"{kind} {name}: {value}"
    for op in plan.ops:
        yield _op(plan, op)
    for name, i in plan.outputs.items():
        yield f"output {name} = {_value(plan, i)}"
    for state, i in plan.updates.items():
        yield f"update {plan.values[state].name} = {_value(plan, i)}"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _value(plan: Plan, index: int) -> str:
    value = plan.values[index]
    return _constant(value) if value.kind == "constant" else value.name or f"%{index}"


def _constant(value: Value) -> str:
    """Small constants in full, others by their shape."""
    if value.dtype.is_packed or value.dtype is bf16 or len(value.data) > 16:
        return f"<{value}>"
    array = np.frombuffer(value.data, to_numpy(value.dtype)).reshape(value.sizes({}))
    return str(array.tolist())


def _op(plan: Plan, op: Op) -> str:
    arguments = [_value(plan, i) for i in op.inputs]
    arguments += [f"{key}={_attr(value)}" for key, value in op.attrs.items()]
    results = ", ".join(f"%{i}" for i in op.outputs)
    kinds = ", ".join(str(plan.values[i]) for i in op.outputs)
    note = "".join(f" in place of {_value(plan, op.inputs[a])}" for a in op.writes())
    return f"{results} = {op.name}({', '.join(arguments)}): {kinds}{note}"


def _attr(value: Attr) -> str:
    return repr(value) if isinstance(value, str) else str(value)
