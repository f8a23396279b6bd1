"""What a plan is, as plain data: dimensions, values, ops in the order they run, outputs and updates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from trivet.dtypes import DType
from trivet.graph import Dim, Shape

MAX_RANK = 8
LARGEST_DIM = 2**31 - 1
LARGEST_VALUE = 2**47  # bytes

Kind: TypeAlias = Literal["input", "weight", "state", "constant", "temporary"]
KINDS: tuple[Kind, ...] = ("input", "weight", "state", "constant", "temporary")
#: rows that give their first input under another name: they share its storage and write nothing
VIEWS = frozenset({"reshape", "after"})
Attr: TypeAlias = int | float | str | tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor a plan touches. `data` holds the bytes of a constant."""

    kind: Kind
    dtype: DType
    shape: Shape
    name: str = ""
    data: bytes = field(default=b"", repr=False)

    @property
    def is_symbolic(self) -> bool:
        return any(isinstance(size, Dim) for size in self.shape)

    def sizes(self, dims: Mapping[str, int]) -> list[int]:
        """The shape once the dimensions have sizes."""
        return [size.at(dims) if isinstance(size, Dim) else size for size in self.shape]

    def nbytes(self, dims: Mapping[str, int]) -> int:
        """Bytes once the dimensions have sizes."""
        return self.dtype.tensor_bytes(math.prod(self.sizes(dims)))

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Op:
    """One call. `aliases[i]` is the input whose storage output i takes, or -1."""

    name: str
    attrs: Mapping[str, Attr]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    aliases: tuple[int, ...]

    def writes(self) -> list[int]:
        """The inputs this op writes into."""
        return [] if self.name in VIEWS else [a for a in self.aliases if a >= 0]


@dataclass(frozen=True, slots=True)
class Plan:
    """What the bytes say. `dims` maps a name to its smallest and largest size, `outputs` a name to a value
    id, `updates` the id of a state to that of the value it holds after a run."""

    name: str
    dims: Mapping[str, tuple[int, int]]
    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: Mapping[str, int]
    updates: Mapping[int, int]

    def named(self, kind: Kind) -> dict[str, Value]:
        """The leaves of one kind by name, in the order of their ids."""
        return {v.name: v for v in self.values if v.kind == kind}

    def extremes(self) -> tuple[dict[str, int], dict[str, int]]:
        """Every dimension at its smallest, and at its largest."""
        return {n: low for n, (low, _) in self.dims.items()}, {n: high for n, (_, high) in self.dims.items()}
