"""What a block format is: an element type, its byte layout, a decoder and perhaps an encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from trivet.dtypes import DType
from trivet.errors import NonFiniteError

F32 = npt.NDArray[np.float32]
Rng: TypeAlias = "np.random.Generator | None"  # a string: numpy.random takes 6 MB, which few need
Blocks = npt.NDArray[Any]  # one element per block, of the format's `layout`


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One row of the table of element types as they lie in a file.

    layout   NumPy dtype of one block, little-endian and without padding
    decode   (n blocks, float32 out of shape [n, block]) -> None, writes every element of out
    encode   (float32 of shape [n, block]) -> n blocks, or None where trivet only reads the format
    dithers  whether encode takes more: a random generator, with which to round up or down by chance, and
             weights of the shape of the values, by which their errors count
    single   of a format whose scales are quantised in their turn, that with the same codes and plain scales,
             by way of which a tensor is decoded and encoded
    """

    dtype: DType
    layout: np.dtype[Any]
    decode: Callable[[Blocks, F32], None] | None = None
    encode: Callable[..., Blocks] | None = None
    dithers: bool = False
    single: DType | None = None

    def __post_init__(self) -> None:
        assert self.layout.itemsize == self.dtype.nbytes, (self.dtype, self.layout.itemsize)
        assert (self.decode is None) == (self.single is not None), self.dtype


def column(field: npt.NDArray[Any]) -> F32:
    """A per-block scale as float32 [n, 1], to be broadcast over the block's elements."""
    return field.astype(np.float32)[:, None]


def dither(codes: F32, rng: Rng) -> F32:
    """Codes, in place, with up to half a one added, so that rounding them is right on average."""
    if rng is not None:
        codes += rng.random(codes.shape, np.float32)
        codes -= np.float32(0.5)
    return codes


def half(dtype: DType, scale: F32) -> npt.NDArray[np.float16]:
    """Scales as f16, zero without a sign. Raises NonFiniteError where one does not fit."""
    out = (scale + np.float32(0)).astype("<f2")
    if not np.isfinite(out).all():
        raise beyond_half(dtype)
    return out


def beyond_half(dtype: DType) -> NonFiniteError:
    """What is raised where a scale does not fit f16."""
    return NonFiniteError(f"[quantize] {dtype}: a block's scale does not fit f16 (largest 65504)")
