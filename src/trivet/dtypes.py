"""Element types: nine dense ones, the packed block formats of GGUF files, and NF4.

A dense element is stored on its own. A packed type stores `block` consecutive elements of a row in
`nbytes` bytes; only rows whose length divides by `block` exist. Behind the last row of a type with a `group`
stand float32 numbers: one, and one for every so many blocks of the tensor. The ids are part of the plan
format and of the C ABI: they are never reused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trivet.errors import DTypeError

Kind = Literal["float", "int", "bool", "packed"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type. `nbytes` bytes hold `block` elements (1 for every dense type)."""

    name: str
    id: int
    kind: Kind
    nbytes: int
    block: int = 1
    group: int = 0

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_packed(self) -> bool:
        return self.kind == "packed"

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of `elements`; raises DTypeError if no such row exists."""
        if elements % self.block:
            raise DTypeError(
                f"[{self.name}] a row of {elements} elements does not divide by the block of {self.block}"
            )
        return elements // self.block * self.nbytes

    def tensor_bytes(self, elements: int) -> int:
        """Bytes of a whole tensor of `elements`, whose rows divide by the block.

        >>> q4_0.tensor_bytes(64), nf4d_64.tensor_bytes(64)
        (36, 41)
        """
        count = elements // self.block
        return count * self.nbytes + (4 * (1 + -(-count // self.group)) if self.group and count else 0)

    def blocks_in(self, nbytes: int) -> int:
        """Blocks of a whole tensor of so many bytes."""
        if not self.group or not nbytes:
            return nbytes // self.nbytes
        groups = -(-(nbytes - 4) // (self.group * self.nbytes + 4))
        return (nbytes - 4 - 4 * groups) // self.nbytes

    def __repr__(self) -> str:
        return self.name


f32 = DType("f32", 1, "float", 4)
f16 = DType("f16", 2, "float", 2)
bf16 = DType("bf16", 3, "float", 2)
f64 = DType("f64", 4, "float", 8)
i8 = DType("i8", 5, "int", 1)
u8 = DType("u8", 6, "int", 1)
i32 = DType("i32", 7, "int", 4)
i64 = DType("i64", 8, "int", 8)
bool_ = DType("bool", 9, "bool", 1)

q4_0 = DType("q4_0", 32, "packed", 18, 32)
q4_1 = DType("q4_1", 33, "packed", 20, 32)
q5_0 = DType("q5_0", 34, "packed", 22, 32)
q5_1 = DType("q5_1", 35, "packed", 24, 32)
q8_0 = DType("q8_0", 36, "packed", 34, 32)
q2_k = DType("q2_k", 37, "packed", 84, 256)
q3_k = DType("q3_k", 38, "packed", 110, 256)
q4_k = DType("q4_k", 39, "packed", 144, 256)
q5_k = DType("q5_k", 40, "packed", 176, 256)
q6_k = DType("q6_k", 41, "packed", 210, 256)
iq4_nl = DType("iq4_nl", 42, "packed", 18, 32)

#: Block lengths of NF4.
NF4_BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
NF4 = tuple(DType(f"nf4_{b}", 48 + i, "packed", b // 2 + 4, b) for i, b in enumerate(NF4_BLOCKS))
#: The same with scales in 8 bits, "double-quantised".
NF4D = tuple(DType(f"nf4d_{b}", 56 + i, "packed", b // 2 + 1, b, 256) for i, b in enumerate(NF4_BLOCKS))
nf4_64, nf4d_64 = NF4[1], NF4D[1]

DENSE = (f32, f16, bf16, f64, i8, u8, i32, i64, bool_)
#: The packed formats of GGUF files.
IN_GGUF = (q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl)
PACKED = IN_GGUF + NF4 + NF4D
FLOATS = (f32, f16, bf16, f64)
HALVES = (f16, bf16)
BY_NAME = {d.name: d for d in DENSE + PACKED}
BY_ID = {d.id: d for d in DENSE + PACKED}

# Order for promotion within one kind; f16 and bf16 meet in f32.
_INT_RANK = {u8: 0, i8: 0, i32: 1, i64: 2}
_FLOAT_RANK = {f16: 0, bf16: 0, f32: 1, f64: 2}


def promote(a: DType, b: DType) -> DType:
    """The dtype in which a mixed operation of `a` and `b` is done.

    >>> promote(f16, f32), promote(f16, bf16), promote(i32, f16), promote(bool_, i8), promote(i8, u8)
    (f32, f32, f16, i8, i32)
    """
    if a is b:
        return a
    if a.is_packed or b.is_packed:
        raise DTypeError(f"[promote] {a} and {b}: packed weights have no arithmetic; use ops.linear")
    if a.kind == "bool":
        return b
    if b.kind == "bool":
        return a
    if a.kind != b.kind:
        return a if a.is_float else b
    rank = _FLOAT_RANK if a.is_float else _INT_RANK
    if rank[a] == rank[b]:  # two unlike small types of one rank: the next one holds both
        return f32 if a.is_float else i32
    return a if rank[a] > rank[b] else b
