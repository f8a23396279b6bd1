"""What a backend is: it says which calls it lowers, compiles a graph, and moves arrays.

To add a backend, write a folder here whose `__init__` defines `BACKEND`, a `Backend` with

- `name` and `unavailable()`: None, or why it cannot be used on this machine;
- `supports(node)`: whether it computes this row, with these dtypes, itself. Any other call is replaced by
  its row's fallback (`expand`), so a backend may begin with the few simple rows and grow;
- `unsupported`: row name -> reason, for rows that it neither computes nor can run by their fallback;
- `compile(...)`: a graph -> a `Program`;
- `from_numpy` / `to_numpy`: arrays in and out.

Everywhere below, a NumPy array stands in *storage form* (`graph.to_numpy`): bf16 as its uint16 bits, a packed
dtype as its uint8 bytes. `tests/test_table.py` finds a new backend by itself and holds it to the NumPy one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from trivet.backends.mesh import parse
from trivet.dtypes import DType
from trivet.errors import InputError, ShapeError, UnsupportedError
from trivet.graph import LEAVES, Dim, Graph, Node, Size
from trivet.ops.table import TABLE
from trivet.plan import rebuilt, rewrite, rewrite_graph

#: A backend's own array. For numpy a NumPy array in storage form.
Array: TypeAlias = Any
#: Weight name -> NumPy array in storage form (mapped, not copied, where the backend can). Where it is a
#: method, its object always gives the same array for a name.
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
    unsupported: Mapping[str, str] = {}
    #: Whether every new set of sizes costs a compilation. Callers then round sizes up (`bucket`) where they
    #: can: a token at position -1 is nobody's, it writes nothing, and what it gives means nothing.
    compiles_per_size: ClassVar[bool] = False

    def on(self, device: str) -> Backend:
        """The backend as it computes for one of its devices; most have only one."""
        return self

    def over(self, mesh: str) -> Backend:
        """The backend over several of its devices: "data:4,model:2" is eight of them, see `mesh`. Raises at
        once: InputError for a mesh that is none, or if it computes on one device only, DeviceUnavailable if
        there are fewer devices."""
        parse(mesh)
        raise InputError(
            f"[mesh] {mesh!r}: the {self.name} backend computes on one device, with mesh ''; those of cuda,"
            " rocm and tpu on several"
        )

    def unavailable(self) -> str | None:
        """None if the backend can be used here, else the reason."""
        return None

    def details(self) -> str:
        """What it runs on, in a few words for people."""
        return ""

    @abstractmethod
    def supports(self, node: Node) -> bool:
        """Whether the backend computes this call, with these dtypes, without a fallback."""

    @abstractmethod
    def compile(
        self,
        graph: Graph,
        *,
        weights: Weights | None = None,
        state: Mapping[str, Array] | None = None,
        sizes: Mapping[str, int] | None = None,
        threads: int = 0,
    ) -> Program:
        """Compiles a graph. `weights` finds the weight leaves; `state` gives first values of states, and
        those it lacks start as zeros (their symbolic dimensions taken from `sizes`). `threads` 0 is the
        backend's own choice; one that has no such choice passes it over."""

    @abstractmethod
    def from_numpy(self, array: Any, dtype: DType) -> Array:
        """A NumPy array in storage form as an array of this backend."""

    @abstractmethod
    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        """An array of this backend as NumPy, in storage form."""


def expand(graph: Graph, supports: Callable[[Node], bool]) -> Graph:
    """The graph with each call that is not supported replaced by its row's fallback, again and again."""

    def rule(node: Node, inputs: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        if node.op in LEAVES or supports(node):
            return rebuilt(node, inputs)
        fallback = TABLE[node.op].fallback
        if fallback is None:
            raise UnsupportedError(
                f"[{node.op}] this backend does not lower {node!r}, and it has no fallback"
            )
        made = fallback(*inputs, **node.attrs)
        simpler = rewrite(made if isinstance(made, tuple) else [made], rule, known={i: i for i in inputs})
        return tuple(simpler) if isinstance(made, tuple) else simpler[0]

    return rewrite_graph(graph, rule)


def bucket(n: int) -> int:
    """The size that n is rounded up to: a power of two up to 256, then a multiple of 256.

    >>> [bucket(n) for n in (0, 1, 3, 200, 257)]
    [0, 1, 4, 256, 512]
    """
    return -(-n // 256) * 256 if n > 256 else 1 << (n - 1).bit_length() if n else 0


def bind(sizes: dict[str, int], leaf: Node, shape: Sequence[int]) -> None:
    """Checks an array's shape against its leaf, and adds to `sizes` the symbols that it fixes."""
    same = len(shape) == leaf.ndim and all(_fits(w, n, sizes) for w, n in zip(leaf.shape, shape, strict=True))
    if not same:
        known = f" with {sizes}" if any(isinstance(s, Dim) for s in leaf.shape) else ""
        raise ShapeError(
            f"[run] {leaf.attrs['name']!r} has shape {tuple(shape)}, expected {leaf.shape}{known}"
        )


def _fits(want: Size, n: int, sizes: dict[str, int]) -> bool:
    if isinstance(want, int):
        return want == n
    count, rest = divmod(n - want.offset, want.scale)
    return rest == 0 and count >= 0 and sizes.setdefault(want.name, count) == count


def logical(shape: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    """The shape of an array in storage form, in elements: the rows of a packed dtype are bytes."""
    if not dtype.is_packed or not shape or shape[-1] % dtype.nbytes:
        return shape
    return (*shape[:-1], shape[-1] // dtype.nbytes * dtype.block)


def resolved(value: Any, sizes: Mapping[str, int]) -> Any:
    """Symbolic sizes replaced by numbers, in an attribute or a shape."""
    if isinstance(value, Dim):
        if value.name not in sizes:
            raise InputError(f"[run] no input or state gives the size {value.name!r}; known: {dict(sizes)}")
        return value.at(sizes)
    return tuple(resolved(v, sizes) for v in value) if isinstance(value, tuple) else value
