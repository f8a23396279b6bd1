"""The table of operations: what a row is, and `define`, which refuses half a row.

A row states, next to each other, all that is known of one operation: its shape and dtype rule, its
gradient (written with op functions only), its fallback (a composition of simpler rows; of a fused row
it is the definition), samples, tolerance per dtype and one line of documentation. How a backend
computes a row stands in that backend's folder, under the row's name.

Calling a row builds a node. Arguments may be nodes, objects that carry one (`Tensor` has `.node`), NumPy
arrays or Python scalars; if any argument is a Tensor, so is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from trivet.dtypes import DType
from trivet.errors import InputError
from trivet.graph import Node, Spec, constant, item

#: infer(*specs, **attrs) -> the Spec of the output, or a tuple of Specs; raises ShapeError or DTypeError
Infer: TypeAlias = Callable[..., Spec | tuple[Spec, ...]]
#: gradient(ctx) -> one Node or None per input; see GradientContext
Gradient: TypeAlias = Callable[["GradientContext"], Sequence[Node | None]]


@dataclass(frozen=True, slots=True)
class GradientContext:
    """What a gradient rule is given. `g` and `y` are single nodes for rows with one output; for rows
    with several, `gs` and `ys` list them (an unused output has None in `gs`). `needs[i]` says whether
    input i's gradient is wanted: a rule may return None for the others."""

    inputs: tuple[Node, ...]
    attrs: Mapping[str, Any]
    ys: tuple[Node, ...]
    gs: tuple[Node | None, ...]
    needs: tuple[bool, ...]

    @property
    def y(self) -> Node:
        return self.ys[0]

    @property
    def g(self) -> Node:
        first = self.gs[0]
        assert first is not None
        return first


@dataclass(frozen=True, slots=True)
class NoGradient:
    """The gradient column of a row that has none, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One call to test a row with. `make(rng)` gives its inputs as NumPy arrays: a float64 array takes each
    float dtype that is tested in turn, any other keeps its own dtype; `Typed` says a dtype that NumPy cannot.
    `gradient` False skips the finite-difference check (a kink, an infinity). `note` says what is hostile."""

    make: Callable[[Any], Sequence[Any]]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    gradient: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class Typed:
    """An input of a sample that is `dtype` whatever float dtype is tested; packed ones are raw bytes."""

    array: Any
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One operation. Build with `define`; call to make a node."""

    name: str
    infer: Infer
    gradient: Gradient | NoGradient
    samples: tuple[Sample, ...]
    tolerance: Mapping[DType, float]
    doc: str
    fallback: Callable[..., Any] | None
    fused: bool
    attrs: Mapping[str, type]
    alias: Mapping[int, int]  # output -> the input whose storage it takes (a state, or a view)

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        nodes, wrap = unwrap(self.name, args)
        return wrap(self.node(nodes, attrs))

    def node(self, inputs: Sequence[Node], attrs: Mapping[str, Any]) -> Node | tuple[Node, ...]:
        """The node of one call; for a row with several outputs, the tuple of its items."""
        if set(attrs) != set(self.attrs):
            raise InputError(f"[{self.name}] attributes {sorted(attrs)}; it takes {sorted(self.attrs)}")
        specs = self.infer(*(n.spec for n in inputs), **attrs)
        several = isinstance(specs, tuple)
        node = Node(self.name, tuple(inputs), dict(attrs), specs if isinstance(specs, tuple) else (specs,))
        return tuple(item(node, i) for i in range(len(node.specs))) if several else node


TABLE: dict[str, Row] = {}


def define(
    name: str,
    *,
    infer: Infer,
    gradient: Gradient | NoGradient,
    samples: Sequence[Sample],
    tolerance: Mapping[DType, float],
    doc: str,
    fallback: Callable[..., Any] | None = None,
    fused: bool = False,
    attrs: Mapping[str, type] | None = None,
    alias: Mapping[int, int] | None = None,
) -> Row:
    """Adds a row to the table. A fused row must have a fallback: it is its definition."""
    assert name not in TABLE, f"{name} is defined twice"
    assert samples, f"{name} has no samples"
    assert tolerance, f"{name} has no tolerance"
    assert doc, f"{name} has no doc"
    assert fallback is not None or not fused, f"{name} is fused but has no fallback"
    row = Row(
        name, infer, gradient, tuple(samples), dict(tolerance), doc, fallback, fused, attrs or {}, alias or {}
    )
    TABLE[name] = row
    return row


def call(name: str, *args: Any, **attrs: Any) -> Any:
    """Calls a row by name: for rules that stand in a file above the row they need."""
    return TABLE[name](*args, **attrs)


def unwrap(op: str, args: Sequence[Any]) -> tuple[list[Node], Callable[[Any], Any]]:
    """Arguments as nodes, and what turns the resulting node(s) into what the caller works with."""
    wrapper: Callable[[Node], Any] | None = None
    nodes: list[Node] = []
    for arg in args:
        if isinstance(arg, Node):
            nodes.append(arg)
        elif hasattr(arg, "node"):
            wrapper = type(arg)
            nodes.append(arg.node)
        else:
            nodes.append(constant(arg))
    if wrapper is None:
        return nodes, lambda result: result
    make = wrapper
    return nodes, lambda result: tuple(map(make, result)) if isinstance(result, tuple) else make(result)
