"""Packed weights as numbers, and packed samples for the rows that read packed weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trivet import dtypes
from trivet.dtypes import DType
from trivet.graph import Node, Spec
from trivet.ops.elementwise import cast
from trivet.ops.rules import one_of
from trivet.ops.table import GradientContext, Sample, Typed, define

#: What rows that read packed weights are tried with: of NF4 some block lengths, the rest is alike.
SAMPLED = (*dtypes.IN_GGUF, dtypes.NF4[0], dtypes.nf4_64, dtypes.nf4d_64, dtypes.NF4D[3])

#: Where the float16 scales stand in a block; all other bytes may be anything.
_SCALES = {
    dtypes.q4_0: (0,), dtypes.q4_1: (0, 2), dtypes.q5_0: (0,), dtypes.q5_1: (0, 2), dtypes.q8_0: (0,),
    dtypes.q2_k: (80, 82), dtypes.q3_k: (108,), dtypes.q4_k: (0, 2), dtypes.q5_k: (0, 2), dtypes.q6_k: (208,),
    dtypes.iq4_nl: (0,),
}  # fmt: skip


def packed_sample(r: Any, dtype: DType, rows: int, columns: int) -> Typed:
    """Random blocks of a packed dtype whose scales are ordinary numbers."""
    blocks = r.integers(0, 256, (rows * columns // dtype.block, dtype.nbytes), np.uint8)
    if dtype in dtypes.NF4:
        scales = r.uniform(0.01, 0.2, len(blocks)).astype("<f4")
        blocks[:, :4] = scales[:, None].view(np.uint8)
        return Typed(blocks.reshape(rows, -1), dtype, (rows, columns))
    if dtype in dtypes.NF4D:
        behind = r.uniform(0.01, 0.2, 1 + -(-len(blocks) // dtype.group)).astype("<f4")
        return Typed(np.concatenate([blocks.reshape(-1), behind.view(np.uint8)]), dtype, (rows, columns))
    for at in _SCALES[dtype]:
        scales = r.uniform(0.001, 0.02, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales[:, None].view(np.uint8)
    return Typed(blocks.reshape(rows, -1), dtype, (rows, columns))


def _make(dtype: DType, rows: int, columns: int) -> Callable[[Any], tuple[Typed]]:
    return lambda r: (packed_sample(r, dtype, rows, columns),)


def _infer(w: Spec) -> Spec:
    one_of("dequantize", (*dtypes.FLOATS, *dtypes.PACKED), w)
    return Spec(w.shape, dtypes.f32)


def _gradient(c: GradientContext) -> list[Node | None]:
    w = c.inputs[0]
    return [cast(c.g, w.dtype) if w.dtype.is_float else None]


_dequantize = define(
    "dequantize",
    infer=_infer,
    gradient=_gradient,
    samples=[
        Sample(lambda r: (r.standard_normal((3, 5)),)),
        *(Sample(_make(d, 3, 2 * d.block)) for d in SAMPLED),
    ],
    tolerance=dict.fromkeys((*dtypes.FLOATS, *dtypes.PACKED), 0.0),
    doc="Packed (or floating) weights as f32; packed weights are constants.",
)


def dequantize(w: Any) -> Any:
    """`w`, packed or floating, as f32 of the same shape. The formats stand in `trivet.blocks`.

    >>> dequantize(np.zeros((2, 3), np.float16))
    <dequantize f32[2, 3]>
    """
    return _dequantize(w)


def widened(w: Node, dtype: DType) -> Node:
    """A weight as `dtype`, for fallbacks: floats are cast, packed weights dequantised."""
    if w.dtype is dtype:
        return w
    wide: Node = cast(dequantize(w) if w.dtype.is_packed else w, dtype)
    return wide
