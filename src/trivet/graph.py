"""The one representation: a lazy graph of nodes.

A `Node` is one call of one row of the ops table, or a leaf. Shape and dtype rules run when a node is
built, so a mistake is reported on the caller's line. Nothing is computed here.

Leaves are nodes whose op is one of `LEAVES`:

- `input`     a value given at each run                        attrs: name
- `weight`    a named tensor of a model file, never written     attrs: name
- `state`     a named tensor that runs may update in place      attrs: name
- `constant`  a small array that is part of the graph           value: a NumPy array
- `buffer`    a value that already lives on a device            value: a backend's array

A dimension is an `int` or a `Dim`: `scale * name + offset`, with `name` known only at run time.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from trivet import dtypes
from trivet.dtypes import DType
from trivet.errors import DeviceMismatch, ShapeError

LEAVES = frozenset({"input", "weight", "state", "constant", "buffer"})


@dataclass(frozen=True, slots=True)
class Dim:
    """A symbolic dimension `scale * name + offset`; `scale` is at least 1.

    >>> t = Dim("T")
    >>> 3 * t + 1, t == Dim("T"), (t * 4) // 2
    (3*T+1, True, 2*T)
    """

    name: str
    scale: int = 1
    offset: int = 0

    def __add__(self, other: int | Dim) -> int | Dim:
        if isinstance(other, int):
            return Dim(self.name, self.scale, self.offset + other)
        if other.name == self.name:
            return Dim(self.name, self.scale + other.scale, self.offset + other.offset)
        raise ShapeError(f"[dim] {self} + {other}: two different symbolic dimensions do not add")

    __radd__ = __add__

    def __sub__(self, other: int | Dim) -> int | Dim:
        if isinstance(other, int):
            return self + -other
        if other.name != self.name or other.scale > self.scale:
            raise ShapeError(f"[dim] {self} - {other} is not a dimension")
        scale, offset = self.scale - other.scale, self.offset - other.offset
        return Dim(self.name, scale, offset) if scale else offset

    def __mul__(self, other: int | Dim) -> int | Dim:
        if isinstance(other, Dim):
            raise ShapeError(
                f"[dim] {self} * {other}: the product of two symbolic dimensions is not supported"
            )
        return Dim(self.name, self.scale * other, self.offset * other) if other else 0

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> int | Dim:
        if self.scale % other or self.offset % other:
            raise ShapeError(f"[dim] {self} does not divide by {other}")
        return Dim(self.name, self.scale // other, self.offset // other)

    def at(self, sizes: Mapping[str, int]) -> int:
        """The size once the symbols have values."""
        return self.scale * sizes[self.name] + self.offset

    def __repr__(self) -> str:
        head = self.name if self.scale == 1 else f"{self.scale}*{self.name}"
        return f"{head}{self.offset:+d}" if self.offset else head


Size: TypeAlias = int | Dim
Shape: TypeAlias = tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and dtype of one value. A packed dtype has a logical shape."""

    shape: Shape
    dtype: DType

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Node:
    """One op call, or a leaf. `specs` has an entry per output; rows with several outputs are read
    through `item(i)` nodes. Nodes compare by identity. `device` is that of the buffers a node depends on,
    None without any."""

    op: str
    inputs: tuple[Node, ...]
    attrs: Mapping[str, Any]
    specs: tuple[Spec, ...]
    value: Any = field(default=None, repr=False)  # constants and buffers
    device: str | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        device = self.attrs["device"] if self.op == "buffer" else None
        for node in self.inputs:
            if node.device != device and node.device is not None:
                if device is not None:
                    raise DeviceMismatch(
                        f"[{self.op}] inputs on {device} and on {node.device}; move one with .to()"
                    )
                device = node.device
        object.__setattr__(self, "device", device)

    @property
    def spec(self) -> Spec:
        assert len(self.specs) == 1, f"{self.op} has {len(self.specs)} outputs; pick one with item()"
        return self.specs[0]

    @property
    def shape(self) -> Shape:
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        return len(self.spec.shape)

    def __repr__(self) -> str:
        name = f" {self.attrs['name']}" if self.op in LEAVES and "name" in self.attrs else ""
        return f"<{self.op}{name} {', '.join(map(repr, self.specs))}>"


def _leaf(op: str, name: str, shape: Iterable[Size], dtype: DType) -> Node:
    return Node(op, (), {"name": name}, (Spec(tuple(shape), dtype),))


def input(name: str, shape: Iterable[Size], dtype: DType) -> Node:
    """A value given at each run."""
    return _leaf("input", name, shape, dtype)


def weight(name: str, shape: Iterable[int], dtype: DType) -> Node:
    """A named tensor of a model file."""
    return _leaf("weight", name, shape, dtype)


def state(name: str, shape: Iterable[Size], dtype: DType) -> Node:
    """A named tensor that runs may update."""
    return _leaf("state", name, shape, dtype)


def constant(value: Any, dtype: DType | None = None) -> Node:
    """A small array that is part of the graph. bf16 values are given as uint16 bit patterns with
    `dtype=bf16`, or as anything float32 can hold."""
    array = np.asarray(value)
    if dtype is None:
        dtype = of_numpy(array.dtype)
    elif dtype is dtypes.bf16 and array.dtype != np.uint16:
        from trivet.blocks.bfloat16 import to_bf16

        array = to_bf16(np.asarray(array, np.float32))
    elif dtype is not dtypes.bf16:
        array = array.astype(to_numpy(dtype))
    return Node(
        "constant", (), {}, (Spec(array.shape, dtype),), np.ascontiguousarray(array).reshape(array.shape)
    )


def buffer(value: Any, shape: Iterable[int], dtype: DType, device: str) -> Node:
    """A value that already lives on a device."""
    return Node("buffer", (), {"device": device}, (Spec(tuple(shape), dtype),), value)


def item(node: Node, index: int) -> Node:
    """Output `index` of a row with several outputs."""
    return Node("item", (node,), {"index": index}, (node.specs[index],))


_NUMPY = {
    dtypes.f32: np.float32, dtypes.f16: np.float16, dtypes.f64: np.float64, dtypes.i8: np.int8,
    dtypes.u8: np.uint8, dtypes.i32: np.int32, dtypes.i64: np.int64, dtypes.bool_: np.bool_,
    dtypes.bf16: np.uint16,
}  # fmt: skip


def to_numpy(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype that stores `dtype`: bf16 as its uint16 bits, packed blocks as bytes."""
    return np.dtype(np.uint8 if dtype.is_packed else _NUMPY[dtype])


def of_numpy(dtype: np.dtype[Any]) -> DType:
    """The dtype of a NumPy array; int16 and the like have none and raise DTypeError."""
    for ours, theirs in _NUMPY.items():
        if ours is not dtypes.bf16 and dtype == theirs:
            return ours
    from trivet.errors import DTypeError

    raise DTypeError(
        f"[dtype] NumPy's {dtype} has no counterpart; known: {', '.join(d.name for d in dtypes.DENSE)}"
    )


def walk(outputs: Iterable[Node], known: Container[Node] = ()) -> list[Node]:
    """Every node the outputs depend on, inputs before users, each once; not those in `known`, nor what only
    they need. Iterative: depth has no limit."""
    order: list[Node] = []
    done: set[int] = set()
    stack: list[tuple[Node, bool]] = [(n, False) for n in reversed(list(outputs))]
    while stack:
        node, ready = stack.pop()
        if id(node) in done or node in known:
            continue
        if ready:
            done.add(id(node))
            order.append(node)
        else:
            stack.append((node, True))
            stack.extend((i, False) for i in reversed(node.inputs) if id(i) not in done)
    return order


@dataclass(frozen=True, slots=True)
class Graph:
    """What a plan is made of: named outputs, and the new value of each state that a run changes."""

    outputs: Mapping[str, Node]
    updates: Mapping[str, Node] = field(default_factory=dict)  # state name -> its new value

    def nodes(self) -> list[Node]:
        return walk([*self.outputs.values(), *self.updates.values()])
