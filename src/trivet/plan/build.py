"""Graph to plan: value ids in the order things run, attributes as plain data, and storage that is shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from trivet.dtypes import DType
from trivet.errors import InputError, ShapeError, UnsupportedError
from trivet.graph import LEAVES, Dim, Graph, Node, Spec
from trivet.ops.table import TABLE, Row
from trivet.plan.passes import deduplicate, side_by_side
from trivet.plan.structure import LARGEST_DIM, LARGEST_VALUE, MAX_RANK, VIEWS, Attr, Kind, Op, Plan, Value

#: attributes that the shape of the output says already; that shape may be symbolic, an attribute may not
SHAPE_ATTRS = frozenset({"shape", "stops"})


def build(graph: Graph, dims: Mapping[str, tuple[int, int]] | None = None, name: str = "") -> Plan:
    """The plan of a graph. `dims` bounds each symbolic dimension: smallest and largest. A row that writes
    into an input (KV append) is given a copy where the old value is still needed."""
    graph = deduplicate(graph)
    nodes = side_by_side(graph.nodes())
    bounds = _bounds(nodes, dims or {})
    values: list[Value] = []
    ops: list[Op] = []
    ids: dict[tuple[Node, int], int] = {}

    def add(value: Value) -> int:
        _check(value, bounds)
        values.append(value)
        return len(values) - 1

    for node in nodes:
        if node.op in LEAVES:
            ids[node, 0] = add(_leaf(node))
        elif node.op != "item":
            inputs = tuple(ids[_place(n)] for n in node.inputs)
            outputs = tuple(add(Value("temporary", s.dtype, s.shape)) for s in node.specs)
            row = TABLE[node.op]
            aliases = tuple(_alias(row, i, spec) for i, spec in enumerate(node.specs))
            ops.append(Op(node.op, attributes(row, node.attrs), inputs, outputs, aliases))
            ids.update(((node, i), v) for i, v in enumerate(outputs))
    outputs_ = {n: ids[_place(node)] for n, node in graph.outputs.items()}
    updates = {_state(values, n, node): ids[_place(node)] for n, node in sorted(graph.updates.items())}
    ops, storage = _with_copies(values, ops, [*outputs_.values(), *updates.values()], updates)
    for state, value in updates.items():
        if storage[value] != state and values[storage[value]].kind == "state":
            updates[state] = _copy(values, ops, value)
    return Plan(name, bounds, tuple(values), tuple(ops), outputs_, updates)


def _alias(row: Row, output: int, spec: Spec) -> int:
    """The input whose storage an output takes, or -1. Integers are not written over: they may be indices,
    which must not change between their check and their use."""
    free = row.name in VIEWS or spec.dtype.is_float or spec.dtype.is_packed
    return row.alias.get(output, -1) if free else -1


def _place(node: Node) -> tuple[Node, int]:
    """The call that makes a node, and which of its outputs it is."""
    return (node.inputs[0], node.attrs["index"]) if node.op == "item" else (node, 0)


def _bounds(nodes: Sequence[Node], dims: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    used = {
        size.name for node in nodes for spec in node.specs for size in spec.shape if isinstance(size, Dim)
    }
    if used - set(dims):
        raise InputError(f"[plan] dims gives no bounds for {sorted(used - set(dims))}")
    for dim in used:
        low, high = dims[dim]
        if not 0 <= low <= high <= LARGEST_DIM:
            raise InputError(
                f"[plan] dim {dim} in {low}..{high}; wanted 0 <= smallest <= largest <= {LARGEST_DIM}"
            )
    return {dim: dims[dim] for dim in sorted(used)}


def _check(value: Value, bounds: Mapping[str, tuple[int, int]]) -> None:
    if len(value.shape) > MAX_RANK:
        raise ShapeError(f"[plan] {value} has {len(value.shape)} dimensions; at most {MAX_RANK} are allowed")
    smallest = {n: low for n, (low, _) in bounds.items()}
    if any(s < 0 for s in value.sizes(smallest)):
        raise ShapeError(f"[plan] {value} has a size below 0 at {smallest}")
    largest = {n: high for n, (_, high) in bounds.items()}
    if value.nbytes(largest) >= LARGEST_VALUE:
        raise ShapeError(
            f"[plan] {value} takes {value.nbytes(largest)} bytes at {largest}; too many for a plan"
        )


def _leaf(node: Node) -> Value:
    if node.op == "buffer":
        raise InputError("[plan] a buffer lives on a device and has no place in a plan; make it an input")
    if node.op == "constant":
        return Value("constant", node.dtype, node.shape, data=np.ascontiguousarray(node.value).tobytes())
    if node.op == "weight" and any(isinstance(s, Dim) for s in node.shape):
        raise ShapeError(f"[plan] the weight {node.attrs['name']} is {node.spec}; weights have fixed shapes")
    return Value(cast(Kind, node.op), node.dtype, node.shape, node.attrs["name"])


def _state(values: Sequence[Value], name: str, new: Node) -> int:
    """The id of the state that `new` updates. The graph must read it: else nothing says its shape."""
    for i, value in enumerate(values):
        if value.kind == "state" and value.name == name:
            if (value.dtype, value.shape) != (new.dtype, new.shape):
                raise ShapeError(f"[plan] state {name} is {value}, its update {new.spec}")
            return i
    raise InputError(f"[plan] an update of {name!r}, but the graph reads no state of that name")


def attributes(row: Row, attrs: Mapping[str, Any]) -> dict[str, Attr]:
    """A call's attributes as a plan holds them."""
    return {
        key: _attribute(f"{row.name}.{key}", value, row.attrs.get(key))
        for key, value in sorted(attrs.items())
        if value is not None and key not in SHAPE_ATTRS
    }


def _attribute(what: str, value: Any, declared: type | None) -> Attr:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, DType):
        return value.name
    if isinstance(value, str):
        return value
    if isinstance(value, float) or (declared is float and isinstance(value, int)):
        return float(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, list | tuple):
        items = tuple(_attribute(what, v, None) for v in value)
        if all(isinstance(v, int) for v in items):
            return cast("tuple[int, ...]", items)
        if all(isinstance(v, int | float) for v in items):
            return tuple(float(cast(float, v)) for v in items)
    raise UnsupportedError(
        f"[plan] {what} is {value!r}; a plan holds integers, floats, text and lists of numbers"
    )


def _with_copies(
    values: list[Value], ops: Sequence[Op], kept: Sequence[int], updates: Mapping[int, int]
) -> tuple[list[Op], list[int]]:
    """The ops, with a copy before each write that would destroy a value somebody still reads; and for each
    value the leaf or op output whose storage it has."""
    last_read = {i: k for k, op in enumerate(ops) for i in op.inputs}
    last_read.update(dict.fromkeys(kept, len(ops)))
    storage = list(range(len(values)))
    members = {i: [i] for i in storage}
    result: list[Op] = []
    for k, op in enumerate(ops):
        inputs = list(op.inputs)
        for source in op.writes():
            root = storage[inputs[source]]
            free = values[root].kind == "temporary" or root in updates
            read_later = any(last_read.get(m, -1) > k for m in members[root])
            read_now = sum(storage[i] == root for i in inputs) > 1
            if not free or read_later or read_now:
                inputs[source] = _copy(values, result, inputs[source])
                storage.append(inputs[source])
                members[inputs[source]] = [inputs[source]]
        result.append(Op(op.name, op.attrs, tuple(inputs), op.outputs, op.aliases))
        for output, alias in zip(op.outputs, op.aliases, strict=True):
            if alias >= 0:
                root = storage[output] = storage[inputs[alias]]
                members[root].append(output)
    return result, storage


def _copy(values: list[Value], ops: list[Op], source: int) -> int:
    value = values[source]
    values.append(Value("temporary", value.dtype, value.shape))
    ops.append(Op("cast", {"dtype": value.dtype.name}, (source,), (len(values) - 1,), (-1,)))
    return len(values) - 1
