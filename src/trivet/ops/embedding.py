"""Rows of a table, dense or packed, picked by ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from trivet import dtypes
from trivet.errors import DTypeError
from trivet.graph import Node, Spec
from trivet.ops.dequantize import dequantize, packed_sample
from trivet.ops.movement import full, scatter_add, take
from trivet.ops.rules import EXACT, INTS, has_rank, one_of
from trivet.ops.table import GradientContext, Sample, define

_IDS = np.array([[3, 0], [3, 1]], np.int32)


def _infer(ids: Spec, table: Spec) -> Spec:
    one_of("embedding", INTS, ids)
    one_of("embedding", (*dtypes.FLOATS, *dtypes.PACKED), table)
    has_rank("embedding", "table", table, (2,))
    return Spec((*ids.shape, table.shape[1]), dtypes.f32 if table.dtype.is_packed else table.dtype)


def _gradient(c: GradientContext) -> list[Node | None]:
    ids, table = c.inputs
    if not c.needs[1]:
        return [None, None]
    if table.dtype.is_packed:
        raise DTypeError(f"[embedding] a packed table ({table.spec!r}) is constant and has no gradient")
    return [None, scatter_add(full(table.shape, 0.0, table.dtype), ids, c.g, axis=0)]


def _composed(ids: Node, table: Node) -> Any:
    return take(dequantize(table) if table.dtype.is_packed else table, ids, axis=0)


_embedding = define(
    "embedding",
    infer=_infer,
    gradient=_gradient,
    fallback=_composed,
    samples=[
        Sample(lambda r: (_IDS, r.standard_normal((5, 7))), note="a duplicate"),
        Sample(lambda r: (np.array(4, np.int32), r.standard_normal((5, 1))), note="0-d"),
        Sample(lambda r: (np.zeros((0,), np.int32), r.standard_normal((5, 3))), note="empty"),
        Sample(lambda r: (np.array([1, 0]), r.standard_normal((2, 3)))),
        Sample(lambda r: (_IDS, packed_sample(r, dtypes.q4_1, 4, 64))),
        Sample(lambda r: (_IDS, packed_sample(r, dtypes.q6_k, 4, 256))),
        Sample(lambda r: (_IDS, packed_sample(r, dtypes.nf4d_64, 4, 64))),
    ],
    tolerance=EXACT,
    doc="Rows of a table picked by ids; of a packed table, as f32.",
)


def embedding(ids: Any, table: Any) -> Any:
    """Rows of `table` [V, K] picked by `ids` (i32 or i64, any shape, 0 ≤ id < V).

    The result has the ids' shape and K; its dtype is the table's, or f32 where the table is packed. A run
    that meets an id outside the table raises InputError.

    >>> embedding(np.array([2, 0]), np.zeros((3, 8), np.float32))
    <embedding f32[2, 8]>
    """
    return _embedding(ids, table)
