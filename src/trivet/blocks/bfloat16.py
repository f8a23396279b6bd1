"""bfloat16 in NumPy, which has no such type: arrays of uint16 bit patterns.

A bfloat16 is the upper half of an IEEE float32: 1 sign, 8 exponent and 7 mantissa bits.
Conversion rounds to nearest even, overflows to infinity, and keeps NaN (made quiet).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trivet.errors import DTypeError


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Bit patterns of the bfloat16 values nearest to float32 `values`, ties to even.

    Only float32 is taken: rounding a float64 first to float32 would round twice.

    >>> [hex(h) for h in to_bf16(np.float32([1.0, -2.5, 3.4028235e38, np.inf]))]
    ['0x3f80', '0xc020', '0x7f80', '0x7f80']
    """
    if values.dtype != np.float32:
        raise DTypeError(f"[to_bf16] takes float32, got {values.dtype}")
    bits = values.view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits  # wraps only for NaN, which is replaced below
    rounded >>= np.uint32(16)
    out = rounded.astype(np.uint16)
    nan = np.isnan(values)
    return (
        np.where(nan, (bits >> np.uint32(16)).astype(np.uint16) | np.uint16(0x40), out) if nan.any() else out
    )


def from_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The float32 values of bfloat16 bit patterns, exact.

    >>> from_bf16(np.uint16([0x3F80, 0xC020])).tolist()
    [1.0, -2.5]
    """
    if bits.dtype != np.uint16:
        raise DTypeError(f"[from_bf16] takes uint16 bit patterns, got {bits.dtype}")
    wide = bits.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)
