"""NF4 of QLoRA (arXiv:2305.14314): sixteen levels that a normal distribution fills equally, times a scale.

Bytes of one block of B elements, B a power of two from 32 to 4096, in order (f32 is little-endian):

  nf4_B   1. d f32   2. qs u8[B / 2]      x[i] = d * level[q[i]]
  nf4d_B  1. s u8    2. qs u8[B / 2]      the same, with d = dynamic[s] * group + offset

Byte j of qs holds the code of element 2j in its high nibble and that of 2j + 1 in its low one, and d is the
largest magnitude of the block. In nf4d ("double-quantised") the scales are 8-bit codes of what they differ by
from their mean. Behind its last row a tensor has

  1. offset f32, that mean   2. group f32[blocks / 256, rounded up]: block b has group[b / 256]

of blocks counted through the whole tensor. Codes, levels and roundings are those of bitsandbytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trivet import dtypes
from trivet.blocks.row import F32, BlockFormat, Blocks, column
from trivet.dtypes import DType

U8 = npt.NDArray[np.uint8]

LEVELS = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
        0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip

#: The largest magnitude of a block counts as this where it is under it, so that its inverse is finite.
_LEAST = np.float32(1e-38)


def _dynamic() -> F32:
    """The signed dynamic 8-bit type (arXiv:1511.04561): 0, 1 and, for each power of ten down to 1e-6, the
    middles of 1, 2, 4 ... 64 equal parts of 0.1 to 1 times it, with both signs."""
    single, values = np.float32, [np.zeros(1, np.float32), np.ones(1, np.float32)]
    low, high = np.float64(single(0.1)), np.float64(1)
    for exponent in range(7):
        parts = 1 << exponent
        step = np.float64((single(1) - single(0.1)) / single(parts))
        at = np.arange(parts + 1)
        below = at < (parts + 1) // 2  # counted from the nearer end
        edges = np.where(below, low + step * at, high - step * (parts - at)).astype(single)
        middles = single(10.0 ** (exponent - 6)) * ((edges[:-1] + edges[1:]) / single(2))
        values += [middles, -middles]
    return np.sort(np.concatenate(values))


DYNAMIC = _dynamic()


_BETWEEN, _BETWEEN_DYNAMIC = ((table[:-1] + table[1:]) / np.float32(2) for table in (LEVELS, DYNAMIC))


def _shares(values: F32, largest: F32) -> F32:
    """Rows of values over their largest magnitudes, rounded as bitsandbytes does."""
    inverse = np.float32(1) / np.maximum(largest, _LEAST)
    shares: F32 = np.clip(values * inverse[:, None], np.float32(-1), np.float32(1))
    return shares


def _decode(blocks: Blocks, out: F32) -> None:
    pairs = out.reshape(len(out), -1, 2)
    pairs[..., 0] = LEVELS[blocks["qs"] >> 4]
    pairs[..., 1] = LEVELS[blocks["qs"] & 15]
    out *= column(blocks["d"])


def _encode(values: F32) -> Blocks:
    blocks = np.empty(len(values), _layout("d", "<f4", values.shape[1]))
    for at in range(0, len(values), step := max(1, (1 << 16) // values.shape[1])):  # to stay in cache
        some = values[at : at + step]
        largest = np.abs(some).max(axis=1)
        shares = _shares(some, largest)
        q = np.zeros(some.shape, np.uint8)
        for middle in _BETWEEN:  # a tie goes to the lower code
            q += shares > middle
        blocks["d"][at : at + step] = largest
        blocks["qs"][at : at + step] = q[:, ::2] << 4 | q[:, 1::2]
    return blocks


# --- double quantisation: whole tensors, between the bytes of both kinds ------------------------------------


def opened(raw: U8, dtype: DType) -> U8:
    """A tensor's bytes in nf4d as those of the same tensor in nf4."""
    count = dtype.blocks_in(raw.size)
    blocks = raw[: count * dtype.nbytes].view(_layout("s", "u1", dtype.block))
    tail = raw[count * dtype.nbytes :].view("<f4")
    single = np.empty(count, _layout("d", "<f4", dtype.block))
    if count:
        groups = np.repeat(tail[1:], dtype.group)[:count]
        single["d"] = DYNAMIC[blocks["s"]] * groups + tail[0]
    single["qs"] = blocks["qs"]
    return single.view(np.uint8)


def closed(raw: U8, dtype: DType) -> U8:
    """The other way: a tensor's bytes in nf4 as those in nf4d."""
    single = raw.reshape(-1).view(_layout("d", "<f4", dtype.block))
    count, scales = len(single), single["d"]
    if not count:
        return np.empty(0, np.uint8)
    offset = np.float32(scales.mean(dtype=np.float64))
    rest = np.zeros(-(-count // dtype.group) * dtype.group, np.float32)
    rest[:count] = scales - offset
    groups = rest.reshape(-1, dtype.group)
    largest = np.abs(groups).max(axis=1)
    codes = np.searchsorted(_BETWEEN_DYNAMIC, _shares(groups, largest))  # a tie goes to the lower code
    blocks = np.empty(count, _layout("s", "u1", dtype.block))
    blocks["s"] = codes.reshape(-1)[:count]
    blocks["qs"] = single["qs"]
    tail = np.concatenate([[offset], largest]).astype("<f4")
    return np.concatenate([blocks.view(np.uint8), tail.view(np.uint8)])


def _layout(scale: str, kind: str, block: int) -> np.dtype[np.void]:
    return np.dtype([(scale, kind), ("qs", "u1", (block // 2,))])


ROWS = (
    *(BlockFormat(d, _layout("d", "<f4", d.block), _decode, _encode) for d in dtypes.NF4),
    *(
        BlockFormat(d, _layout("s", "u1", d.block), single=s)
        for d, s in zip(dtypes.NF4D, dtypes.NF4, strict=True)
    ),
)
