"""Dense element types as they lie in files: blocks of one little-endian element.

float32 holds f32, f16, bf16, i8, u8 and bool exactly; f64, i32 and i64 are rounded to nearest even.
"""

from __future__ import annotations

import numpy as np

from trivet import dtypes
from trivet.blocks.bfloat16 import from_bf16, to_bf16
from trivet.blocks.row import F32, BlockFormat, Blocks
from trivet.dtypes import DType


def _dense(dtype: DType, code: str) -> BlockFormat:
    layout = np.dtype(code)

    def decode(blocks: Blocks, out: F32) -> None:
        out[:, 0] = blocks

    def encode(values: F32) -> Blocks:
        return values[:, 0].astype(layout)

    return BlockFormat(dtype, layout, decode, encode if dtype.is_float else None)


def _decode_bf16(blocks: Blocks, out: F32) -> None:
    out[:, 0] = from_bf16(blocks.astype(np.uint16, copy=False))


def _encode_bf16(values: F32) -> Blocks:
    return to_bf16(values[:, 0]).astype("<u2", copy=False)


def _decode_bool(blocks: Blocks, out: F32) -> None:
    out[:, 0] = blocks != 0


ROWS = (
    _dense(dtypes.f32, "<f4"),
    _dense(dtypes.f16, "<f2"),
    BlockFormat(dtypes.bf16, np.dtype("<u2"), _decode_bf16, _encode_bf16),
    _dense(dtypes.f64, "<f8"),
    _dense(dtypes.i8, "i1"),
    _dense(dtypes.u8, "u1"),
    _dense(dtypes.i32, "<i4"),
    _dense(dtypes.i64, "<i8"),
    BlockFormat(dtypes.bool_, np.dtype("u1"), _decode_bool),
)
