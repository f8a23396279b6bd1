"""The two tables of numbers in a GGUF file: types of metadata values and types of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from trivet import dtypes
from trivet.dtypes import DType

MAGIC = b"GGUF"
VERSION = 3
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MIN_ALIGNMENT = 8
MAX_DIMS = 4
MAX_KEY_BYTES = 65535
MAX_NAME_BYTES = 63  # longer tensor names are read, but other programs refuse them, so not written
MAX_DEPTH = 8  # of arrays inside arrays
MAX_INNER = 1 << 14  # arrays inside arrays in one file, each costing far more memory than its 12 bytes


class Value(IntEnum):
    """Types of metadata values."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


SCALARS: dict[int, np.dtype[Any]] = {
    Value.U8: np.dtype("u1"),
    Value.I8: np.dtype("i1"),
    Value.U16: np.dtype("<u2"),
    Value.I16: np.dtype("<i2"),
    Value.U32: np.dtype("<u4"),
    Value.I32: np.dtype("<i4"),
    Value.F32: np.dtype("<f4"),
    Value.BOOL: np.dtype("?"),
    Value.U64: np.dtype("<u8"),
    Value.I64: np.dtype("<i8"),
    Value.F64: np.dtype("<f8"),
}


class Encoded(NamedTuple):
    """A metadata value exactly as it lies in a file; `write_gguf` copies it unchanged."""

    type: int
    data: bytes


@dataclass(frozen=True, slots=True)
class TensorType:
    """`nbytes` bytes hold `block` elements; `dtype` is None for a type trivet does not read."""

    name: str
    block: int
    nbytes: int
    dtype: DType | None = None


def _read(dtype: DType) -> TensorType:
    return TensorType(dtype.name, dtype.block, dtype.nbytes, dtype)


TENSOR_TYPES: dict[int, TensorType] = {
    0: _read(dtypes.f32),
    1: _read(dtypes.f16),
    2: _read(dtypes.q4_0),
    3: _read(dtypes.q4_1),
    6: _read(dtypes.q5_0),
    7: _read(dtypes.q5_1),
    8: _read(dtypes.q8_0),
    9: TensorType("q8_1", 32, 40),
    10: _read(dtypes.q2_k),
    11: _read(dtypes.q3_k),
    12: _read(dtypes.q4_k),
    13: _read(dtypes.q5_k),
    14: _read(dtypes.q6_k),
    15: TensorType("q8_k", 256, 292),
    16: TensorType("iq2_xxs", 256, 66),
    17: TensorType("iq2_xs", 256, 74),
    18: TensorType("iq3_xxs", 256, 98),
    19: TensorType("iq1_s", 256, 50),
    20: _read(dtypes.iq4_nl),
    21: TensorType("iq3_s", 256, 110),
    22: TensorType("iq2_s", 256, 82),
    23: TensorType("iq4_xs", 256, 136),
    24: _read(dtypes.i8),
    25: TensorType("i16", 1, 2),
    26: _read(dtypes.i32),
    27: _read(dtypes.i64),
    28: _read(dtypes.f64),
    29: TensorType("iq1_m", 256, 56),
    30: _read(dtypes.bf16),
    34: TensorType("tq1_0", 256, 54),
    35: TensorType("tq2_0", 256, 66),
    39: TensorType("mxfp4", 32, 17),
    40: TensorType("nvfp4", 64, 36),
    41: TensorType("q1_0", 128, 18),
}

TENSOR_NUMBER: dict[DType, int] = {t.dtype: number for number, t in TENSOR_TYPES.items() if t.dtype}
