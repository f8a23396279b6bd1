"""What must hold of a plan before anything runs it: rules 2 to 5 of docs/plan-format.md.

The core holds plans to the same rules, and to rule 6, which asks the kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from trivet.errors import PlanError
from trivet.plan.structure import LARGEST_VALUE, VIEWS, Kind, Op, Plan, Value


def verify(plan: Plan) -> None:
    """Raises PlanError at the first rule that `plan` breaks."""
    for kind in ("input", "weight", "state"):
        _names(plan, kind)
    for index, value in enumerate(plan.values):
        _sizes(plan, index, value)
    _order(plan)
    _aliases(plan)
    _updates(plan)


def _fail(message: str) -> NoReturn:
    raise PlanError(f"[plan] {message}")


def _names(plan: Plan, kind: Kind) -> None:
    seen: set[str] = set()
    for value in plan.values:
        if value.kind == kind:
            if not value.name or value.name in seen:
                _fail(f"the {kind} name {value.name!r} is empty or there twice")
            seen.add(value.name)


def _sizes(plan: Plan, index: int, value: Value) -> None:
    what = f"value {index}, {value.kind} {value}"
    for sizes in plan.extremes():
        shape = value.sizes(sizes)
        if any(s < 0 for s in shape):
            _fail(f"{what}: a size below 0 at {sizes}")
        if value.nbytes(sizes) >= LARGEST_VALUE:
            _fail(f"{what}: {value.nbytes(sizes)} bytes at {sizes}, allowed are {LARGEST_VALUE}")
    if value.dtype.is_packed and not _is_packed_row(value):
        _fail(f"{what}: the last size must be fixed and divide by {value.dtype.block}")
    if value.dtype.group and value.kind == "state":
        _fail(f"{what}: a {value.dtype} value is no state")
    if value.kind in ("weight", "constant") and value.is_symbolic:
        _fail(f"{what}: a {value.kind} has no symbolic dimension")
    if value.kind == "constant" and len(value.data) != value.nbytes({}):
        _fail(f"{what}: {len(value.data)} bytes are there, its shape takes {value.nbytes({})}")


def _is_packed_row(value: Value) -> bool:
    last = value.shape[-1] if value.shape else None
    return isinstance(last, int) and last % value.dtype.block == 0


def _order(plan: Plan) -> None:
    """Rule 3: ids in range, temporaries written once and before they are read."""
    ready = [v.kind != "temporary" for v in plan.values]

    def read(what: str, ids: Iterable[int]) -> None:
        for i in ids:
            if i >= len(ready) or not ready[i]:
                _fail(f"{what} reads value {i}, which is not there yet; the plan has {len(ready)} values")

    for number, op in enumerate(plan.ops):
        what = f"op {number}, {op.name!r}"
        if not op.name:
            _fail(f"{what}: the row name is empty")
        read(what, op.inputs)
        for output in op.outputs:
            if output >= len(ready) or ready[output]:
                _fail(f"{what} writes value {output}, which is a leaf, out of range, or written before")
            ready[output] = True
    read("outputs", plan.outputs.values())
    read("updates", [*plan.updates, *plan.updates.values()])
    if not all(ready):
        _fail(f"no op writes value {ready.index(False)}")


def _aliases(plan: Plan) -> None:
    """Rule 5, and the end of rule 3: only states and temporaries are written through an alias."""
    storage = list(range(len(plan.values)))  # value -> the leaf or op output whose storage it has
    members = {i: [i] for i in storage}
    stale: set[int] = set()
    overwritten: set[int] = set()
    for number, op in enumerate(plan.ops):
        what = f"op {number}, {op.name!r}"
        _not_stale(what, op.inputs, stale)
        written: set[int] = set()
        for output, alias in zip(op.outputs, op.aliases, strict=True):
            if alias == -1:
                continue
            if not 0 <= alias < len(op.inputs):
                _fail(f"{what}: alias {alias}, but there are {len(op.inputs)} inputs")
            root = storage[op.inputs[alias]]
            _same_bytes(plan, what, op.inputs[alias], output)
            if op.name not in VIEWS:
                _writable(plan, what, op, root, storage, written)
                stale.update(members[root])
                overwritten.add(root)
            storage[output] = root
            members[root].append(output)
    _not_stale("outputs", plan.outputs.values(), stale)
    _not_stale("updates", plan.updates.values(), stale)
    _storage_of_updates(plan, storage, overwritten)


def _storage_of_updates(plan: Plan, storage: list[int], overwritten: set[int]) -> None:
    for root in overwritten:
        if plan.values[root].kind == "state" and root not in plan.updates:
            _fail(f"state {plan.values[root].name!r} is written in place, but no update says so")
    for state, value in plan.updates.items():
        other = plan.values[storage[value]]
        if storage[value] != state and other.kind == "state":
            _fail(f"state {plan.values[state].name!r} is given the storage of state {other.name!r}")


def _not_stale(what: str, ids: Iterable[int], stale: set[int]) -> None:
    for i in ids:
        if i in stale:
            _fail(f"{what} reads value {i}, which an op has written over")


def _same_bytes(plan: Plan, what: str, source: int, target: int) -> None:
    a, b = plan.values[source], plan.values[target]
    if a.dtype is not b.dtype or any(a.nbytes(s) != b.nbytes(s) for s in plan.extremes()):
        _fail(f"{what}: {b} cannot take the storage of {a}")


def _writable(plan: Plan, what: str, op: Op, root: int, storage: list[int], written: set[int]) -> None:
    value = plan.values[root]
    if value.kind not in ("state", "temporary") or not (value.dtype.is_float or value.dtype.is_packed):
        wanted = "a state or temporary of floats or packed"
        _fail(f"{what} writes into a {value.kind} of {value.dtype}; wanted {wanted}")
    if root in written or sum(storage[i] == root for i in op.inputs) > 1:
        _fail(f"{what} writes into storage that it also reads by another name")
    written.add(root)


def _updates(plan: Plan) -> None:
    for state, value in plan.updates.items():
        if plan.values[state].kind != "state":
            _fail(f"updates: value {state} is a {plan.values[state].kind}, not a state")
        if plan.values[value].dtype is not plan.values[state].dtype or (
            plan.values[value].shape != plan.values[state].shape
        ):
            _fail(f"update of {plan.values[state]} {plan.values[state].name!r} by {plan.values[value]}")
