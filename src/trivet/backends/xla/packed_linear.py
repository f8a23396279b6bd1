"""Products of a few tokens and a packed weight on TPU: a Pallas kernel that reads each byte once.

XLA turns the bytes, so that a lane is an output, and writes what it makes of them at each step: for a token
at a time that takes several times as long as to read them. Here a tile of rows is turned once, in fast
memory, four rows to a word, and a byte of eight blocks is then one load whose stride is a block:

    w u8 [512 rows, row bytes] -> words i32 [128, row bytes] -> turned [row bytes, 128 lanes]
    the word at (byte, lane) has that byte of the rows 4 lane .. 4 lane + 3, the first in its lowest bits

`Decoders` takes the blocks apart, as everywhere. Elements of one scale are summed before they are scaled.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from trivet.backends.packed import Decoders
from trivet.backends.xla.packed import chosen
from trivet.dtypes import DType

LANES, BLOCKS, WORD = 128, 8, 4
ROWS = LANES * WORD  # of a weight, in a tile
TOKENS = 4  # at most: more of them do not stand in registers, and XLA's products are as fast
_MEMORY = 48 << 20  # bytes of a TPU's fast memory; a v5e has 128 MiB, and a program's own share is 16


def takes(tokens: int, rows: Any) -> bool:
    """Whether the kernel computes products of so many tokens with packed rows u8 [N, row bytes]."""
    return 0 < tokens <= TOKENS and len(rows) > 0 and _bytes(rows.shape[1]) <= _MEMORY


def _bytes(row_bytes: int) -> int:
    """Fast memory that is needed: a tile that is read, the next one, and one that is turned."""
    return 3 * ROWS * (row_bytes + LANES)


@partial(jax.jit, static_argnames=("dtype", "interpret"))  # traced once for all weights of a shape
def product(x: Any, w: Any, dtype: DType, interpret: bool = False) -> Any:
    """x [T, K] times a packed weight u8 [N, row bytes], in float32: [T, N]."""
    (tokens, size), (rows, row) = x.shape, w.shape
    count = size // dtype.block
    blocks = -(-count // BLOCKS) * BLOCKS
    tiles = -(-rows // ROWS)
    x = x.astype(jnp.float32).reshape(tokens, count, dtype.block)
    with jax.enable_x64(False):  # a kernel has no 64-bit numbers
        y = pl.pallas_call(
            partial(_kernel, dtype=dtype),
            grid=(tiles,),
            in_specs=[
                pl.BlockSpec((tokens, blocks, dtype.block), lambda tile: (0, 0, 0)),
                pl.BlockSpec((ROWS, row), lambda tile: (tile, 0)),
            ],
            out_specs=pl.BlockSpec((tokens, WORD, LANES), lambda tile: (0, 0, tile)),
            out_shape=jax.ShapeDtypeStruct((tokens, WORD, tiles * LANES), jnp.float32),
            scratch_shapes=[pltpu.VMEM((blocks * dtype.nbytes, LANES), jnp.int32)],
            cost_estimate=pl.CostEstimate(
                flops=2 * tokens * rows * size,
                bytes_accessed=rows * row + 4 * tokens * (size + rows),
                transcendentals=0,
            ),
            compiler_params=pltpu.CompilerParams(vmem_limit_bytes=_bytes(row) + (16 << 20)),
            interpret=interpret,
            name=f"linear_{dtype}",
        )(jnp.pad(x, ((0, 0), (0, blocks - count), (0, 0))), w)
    return y.swapaxes(1, 2).reshape(tokens, -1)[:, :rows]


def _kernel(x: Any, w: Any, y: Any, turned: Any, *, dtype: DType) -> None:
    _turn(w, turned)
    tokens, blocks, _ = x.shape
    zero = jnp.zeros((BLOCKS, LANES), jnp.float32)
    step = partial(_blocks, x, turned, dtype)
    sums = lax.fori_loop(0, blocks // BLOCKS, step, ((zero,) * WORD,) * tokens)
    for t in range(tokens):
        for i in range(WORD):
            y[t, i : i + 1, :] = jnp.sum(sums[t][i], 0, keepdims=True)


def _turn(w: Any, turned: Any) -> None:
    """Blocks past the last one are zeros: what x has there is zero, and nothing times it must be NaN."""
    row = w.shape[1]
    for first in range(0, row, LANES):
        lanes = slice(first, min(first + LANES, row))
        turned[lanes, :] = pltpu.bitcast(w[:, lanes], jnp.int32).T
    if left := turned.shape[0] - row:
        turned[row:, :] = jnp.zeros((left, LANES), jnp.int32)


def _blocks(x: Any, turned: Any, dtype: DType, at: Any, sums: Any) -> Any:
    """Adds eight blocks of a row's products: sums[t][i] is of token t and the rows 4 lane + i."""
    first = at * BLOCKS
    words = [
        turned[pl.ds(first * dtype.nbytes + o, BLOCKS, stride=dtype.nbytes), :] for o in range(dtype.nbytes)
    ]
    tokens = [x[t, pl.ds(first, BLOCKS), :] for t in range(x.shape[0])]
    of_row = [_PARTS.parts[dtype](Planes.of([(word >> 8 * i) & 255 for word in words])) for i in range(WORD)]
    return tuple(
        tuple(total + _dot(token, *parts) for total, parts in zip(of, of_row, strict=True))
        for token, of in zip(tokens, sums, strict=True)
    )


def _dot(x: Any, q: Planes, factor: Planes, offset: Planes | None) -> Any:
    """The products of x [8 blocks, elements] with eight blocks, still apart: [8 blocks, 128]."""
    run, total = len(q.all) // len(factor.all), 0.0
    for g, scale in enumerate(factor.all):
        mine = range(g * run, (g + 1) * run)
        total += scale * sum(x[:, e : e + 1] * q.all[e] for e in mine)
        if offset is not None:
            total += offset.all[g] * jnp.sum(x[:, mine.start : mine.stop], 1, keepdims=True)
    return total


# --- decoding ------------------------------------------------------------------------------------


class Planes:
    """An array [..., n] of vectors, as `Decoders` uses arrays: its axes are Python's, so that to cut and join
    them costs nothing."""

    def __init__(self, vectors: np.ndarray[Any, Any]) -> None:
        self.all = vectors

    @classmethod
    def of(cls, vectors: list[Any]) -> Planes:
        found = np.empty(len(vectors), object)
        for i, vector in enumerate(vectors):
            found[i] = vector
        return cls(found)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.all.shape)

    def __getitem__(self, at: Any) -> Planes:
        return Planes(self.all[at])

    def reshape(self, *shape: int) -> Planes:
        return Planes(self.all.reshape(*shape))

    def each(self, function: Callable[[Any], Any]) -> Planes:
        return Planes.of([function(vector) for vector in self.all.reshape(-1)]).reshape(*self.shape)

    def astype(self, dtype: Any) -> Planes:
        return self.each(lambda vector: vector.astype(dtype))

    def view(self, dtype: Any) -> Planes:
        """Bytes as numbers of another type: as many bytes as one has follow each other."""
        size = np.dtype(dtype).itemsize
        words = self[..., 0::size]
        for i in range(1, size):
            words = words | (self[..., i::size] << 8 * i)
        return words.each(_VIEWS[np.dtype(dtype)])

    def _with(self, how: Callable[[Any, Any], Any], other: Any) -> Planes:
        return Planes(how(self.all, other.all if isinstance(other, Planes) else other))

    __add__ = partialmethod(_with, operator.add)
    __sub__ = partialmethod(_with, operator.sub)
    __mul__ = partialmethod(_with, operator.mul)
    __and__ = partialmethod(_with, operator.and_)
    __or__ = partialmethod(_with, operator.or_)
    __lshift__ = partialmethod(_with, operator.lshift)
    __rshift__ = partialmethod(_with, operator.rshift)

    def __neg__(self) -> Planes:
        return Planes(-self.all)


def _f16(bits: Any) -> Any:
    """16 bits as the half that they are, in float32: TPU has no halves, and takes tiny float32s for zero."""
    sign, exponent, fraction = (bits & 0x8000) << 16, (bits >> 10) & 31, bits & 1023
    shifted = sign | ((bits & 0x7FFF) << 13)
    normal = _f32(shifted + (112 << 23))  # 127 - 15: how far the exponents' zeros are apart
    never = _f32(shifted | (255 << 23))
    tiny = _f32(sign | (127 << 23)) * (fraction.astype(jnp.float32) * 2.0**-24)
    return jnp.where(exponent == 0, tiny, jnp.where(exponent == 31, never, normal))


def _f32(bits: Any) -> Any:
    return lax.bitcast_convert_type(bits, jnp.float32)


_VIEWS: dict[Any, Callable[[Any], Any]] = {
    np.dtype(np.int8): lambda bits: (bits ^ 128) - 128,
    np.dtype(np.float16): _f16,
    np.dtype(np.float32): _f32,
}


class _Numbers:
    """The part of jax.numpy that decoders use, for `Planes`. Bytes are words, which have room for any sum."""

    float16, float32, int8, uint8 = np.float16, np.float32, np.int8, np.int32

    @staticmethod
    def arange(n: int, dtype: Any) -> Planes:
        return Planes(np.arange(n, dtype=object))

    @staticmethod
    def concatenate(parts: list[Planes], axis: int) -> Planes:
        return Planes(np.concatenate([p.all for p in parts], axis))

    @staticmethod
    def stack(parts: list[Planes], axis: int) -> Planes:
        return Planes(np.stack([p.all for p in parts], axis))


_PARTS = Decoders(_Numbers, lambda levels, q: q.each(partial(chosen, levels)))
