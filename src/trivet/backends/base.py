"""What a backend is: it says which calls it lowers, compiles a graph, and moves arrays.

To add a backend, write a folder here whose `__init__` defines `BACKEND`, a `Backend` with

- `name` and `unavailable()`: None, or why it cannot be used on this machine;
- `lowerings`: row name -> whatever the backend computes that row with;
- `unsupported`: row name -> reason, for rows that it neither lowers nor can run by their fallback;
- `supports(node)`: narrows `lowerings` by dtypes where needed. A call that is not lowered is replaced by
  its row's fallback (`expand`), so a backend may begin with the few simple rows and grow;
- `compile(...)`: a graph -> a `Program`;
- `from_numpy` / `to_numpy`: arrays in and out.

Everywhere below, a NumPy array stands in *storage form* (`graph.to_numpy`): bf16 as its uint16 bits, a packed
dtype as its uint8 bytes. `tests/test_table.py` picks a new backend up by itself and holds it to the NumPy one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from trivet.dtypes import DType
from trivet.errors import DTypeError, ShapeError, UnsupportedError
from trivet.graph import LEAVES, Dim, Graph, Node, Size, item, walk
from trivet.ops.table import TABLE

#: A backend's own array. For numpy a NumPy array in storage form.
Array: TypeAlias = Any
#: Weight name -> NumPy array in storage form (mapped, not copied, where the backend can).
Weights: TypeAlias = Callable[[str], Any]


class Program(Protocol):
    """A compiled graph with its state."""

    @property
    def state(self) -> Mapping[str, Array]:
        """State name -> current array. Runs replace or overwrite these; read them, do not keep them."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One run: the outputs by name. `inputs` holds an array (the backend's own, or NumPy in storage
        form) for every input leaf; its shape gives the symbolic dimensions. If the run raises, no state
        has changed."""


class Backend(ABC):
    """One way to compute graphs."""

    name: ClassVar[str]
    lowerings: Mapping[str, Callable[..., Any]]
    unsupported: Mapping[str, str] = {}

    def unavailable(self) -> str | None:
        """None if the backend can be used here, else the reason."""
        return None

    def details(self) -> str:
        """What it runs on, in a few words for people."""
        return ""

    def supports(self, node: Node) -> bool:
        """Whether this call, with these dtypes, is lowered as it is."""
        return node.op in self.lowerings

    @abstractmethod
    def compile(
        self,
        graph: Graph,
        *,
        weights: Weights | None = None,
        state: Mapping[str, Array] | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> Program:
        """Compiles a graph. `weights` finds the weight leaves; `state` gives first values of states, and
        those it lacks start as zeros (their symbolic dimensions taken from `sizes`)."""

    @abstractmethod
    def from_numpy(self, array: Any, dtype: DType) -> Array:
        """A NumPy array in storage form as an array of this backend."""

    @abstractmethod
    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        """An array of this backend as NumPy, in storage form."""


def expand(graph: Graph, supports: Callable[[Node], bool]) -> Graph:
    """The graph with each call that is not supported replaced by its row's fallback, again and again."""
    done: dict[Node, Node | tuple[Node, ...]] = {}

    def one(node: Node) -> Node | tuple[Node, ...]:
        if node.op in LEAVES:
            return node
        inputs = [done[i] for i in node.inputs]
        if node.op == "item":
            source = inputs[0]
            return source[node.attrs["index"]] if isinstance(source, tuple) else _again(node, [source])
        plain = [i for i in inputs if isinstance(i, Node)]
        if supports(node):
            return _again(node, plain)
        fallback = TABLE[node.op].fallback if node.op in TABLE else None
        if fallback is None:
            raise UnsupportedError(f"[{node.op}] this backend neither lowers it nor has a fallback: {node!r}")
        made = fallback(*plain, **node.attrs)
        several = isinstance(made, tuple)
        done.update((i, i) for i in plain)
        visit(made if several else (made,))
        return tuple(_single(done[n]) for n in made) if several else done[made]

    def visit(outputs: Iterable[Node]) -> None:
        for node in walk(outputs):
            if node not in done:
                done[node] = one(node)

    visit([*graph.outputs.values(), *graph.updates.values()])
    return Graph(*({k: _single(done[n]) for k, n in part.items()} for part in (graph.outputs, graph.updates)))


def _single(node: Node | tuple[Node, ...]) -> Node:
    assert isinstance(node, Node), "a row with several outputs is read through item()"
    return node


def _again(node: Node, inputs: Sequence[Node]) -> Node:
    """The same call on other inputs."""
    if all(a is b for a, b in zip(node.inputs, inputs, strict=True)):
        return node
    return (
        item(inputs[0], node.attrs["index"])
        if node.op == "item"
        else Node(node.op, tuple(inputs), node.attrs, node.specs, node.value)
    )


def bind(sizes: dict[str, int], name: str, node: Node, dtype: DType, shape: Sequence[int]) -> None:
    """Checks an array's dtype and shape against its leaf and adds the symbols this fixes to `sizes`."""
    if dtype is not node.dtype:
        raise DTypeError(f"[run] {name!r} is {dtype}, expected {node.dtype}")
    fits = len(shape) == len(node.shape) and all(
        _fits(want, n, sizes) for want, n in zip(node.shape, shape, strict=True)
    )
    if not fits:
        known = {
            k: v for k, v in sizes.items() if any(isinstance(s, Dim) and s.name == k for s in node.shape)
        }
        raise ShapeError(
            f"[run] {name!r} has shape {tuple(shape)}, expected {node.shape}"
            + (f" with {known}" if known else "")
        )


def _fits(want: Size, n: int, sizes: dict[str, int]) -> bool:
    if isinstance(want, int):
        return want == n
    if (n - want.offset) % want.scale or n < want.offset:
        return False
    return sizes.setdefault(want.name, (n - want.offset) // want.scale) == (n - want.offset) // want.scale
