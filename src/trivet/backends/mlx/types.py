"""How trivet's dtypes stand in MLX: packed blocks as bytes, 64-bit floats as bits, the others as they are.

Metal has no 64-bit floats, and trivet has no unsigned 64-bit integers: in an array, those are always bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

from trivet import dtypes
from trivet.backends.packages import unforked
from trivet.dtypes import DType
from trivet.errors import CapacityError, DTypeError, TrivetError
from trivet.graph import to_numpy

_DTYPES = {
    dtypes.f32: mx.float32, dtypes.f16: mx.float16, dtypes.bf16: mx.bfloat16, dtypes.f64: mx.uint64,
    dtypes.i8: mx.int8, dtypes.u8: mx.uint8, dtypes.i32: mx.int32, dtypes.i64: mx.int64,
    dtypes.bool_: mx.bool_,
}  # fmt: skip


@contextmanager
def reported(call: str) -> Iterator[None]:
    """What MLX raises inside the block as a CapacityError: memory that is not there, or an axis of more
    elements than it counts to (2^31 - 1)."""
    unforked("MLX")
    try:
        yield
    except TrivetError:
        raise
    except (RuntimeError, OverflowError, MemoryError) as error:
        raise CapacityError(f"{call} MLX: {str(error).splitlines()[0]}") from None


def mlx_dtype(dtype: DType) -> Any:
    """The dtype that MLX stores `dtype` as."""
    return mx.uint8 if dtype.is_packed else _DTYPES[dtype]


def put(array: Any, dtype: DType) -> Any:
    """A NumPy array in storage form as MLX's own; one of MLX's as it is."""
    if isinstance(array, mx.array):
        return array
    array = np.asarray(array)
    if array.dtype != to_numpy(dtype):
        raise DTypeError(f"[run] NumPy's {array.dtype} is not how {dtype} is stored")
    if dtype is dtypes.f64:
        return mx.array(np.asarray(array, order="C").view(np.uint64))
    made = mx.array(array)
    return made.view(mx.bfloat16, stream=mx.cpu) if dtype is dtypes.bf16 else made


def fetched(array: Any) -> np.ndarray[Any, Any]:
    """An array of MLX's in storage form."""
    if array.dtype == mx.bfloat16:
        # Metal: bits become another type on the processor, in memory that both see
        array = array.view(mx.uint16, stream=mx.cpu)
    found = np.asarray(array, order="C")
    return found.view(np.float64) if array.dtype == mx.uint64 else found
