"""Arrays of the native backend: NumPy arrays in storage form, dense, over memory aligned to 64 bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64


def empty(shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Uninitialised aligned memory.

    >>> empty((3, 5), np.float32).ctypes.data % 64
    0
    """
    kind = np.dtype(dtype)
    nbytes = math.prod(shape) * kind.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes].view(kind).reshape(shape)


def copied(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy in aligned memory."""
    out = empty(array.shape, array.dtype)
    out[...] = array
    return out


def dense(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array itself if the core can read it where it is, else a copy."""
    fits = array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative
    return array if fits else copied(array)
