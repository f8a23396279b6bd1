"""Packed blocks as values, inside a program: bytes in device memory, floats only where they are used.

The byte layouts stand in `trivet/blocks`; a block is the last axis here, [..., blocks, bytes]. For backends
whose arrays have NumPy's names: jax.numpy and mlx.core.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from trivet import dtypes
from trivet.blocks import nf4
from trivet.blocks.block32 import IQ4_NL_LEVELS
from trivet.dtypes import DType
from trivet.graph import Node, Spec

#: (q, factor, offset): an element is factor * q + offset
Parts: TypeAlias = tuple[Any, Any, Any]


def _grouped(q: Any, factor: Any, offset: Any) -> Any:
    """factor[group] * q + offset[group]; `offset` may be None."""
    if factor.shape[-1] == 1:
        return q * factor if offset is None else q * factor + offset
    groups = q.reshape(*factor.shape, -1) * factor[..., None]
    if offset is not None:
        groups = groups + offset[..., None]
    return groups.reshape(q.shape)


def _two_bits(qs: Any) -> list[Any]:
    """qs [..., 64] -> the low two bits of each of eight runs."""
    return [(qs[..., r // 4 * 32 :][..., :32] >> 2 * (r % 4)) & 3 for r in range(8)]


class Decoders:
    """The parts of each format, in the arrays of `xp`: bytes [..., blocks, bytes] -> (q, factor, offset).

    q [..., blocks, block] are whole numbers or levels as float32, factor and offset [..., blocks, groups] the
    scales of runs of them: an element is factor * q + offset, without an offset where that is None.
    `look_up(levels, q)` is levels[q], as suits `xp`.
    """

    def __init__(self, xp: Any, look_up: Callable[[Any, Any], Any]) -> None:
        self.xp, self.look_up = xp, look_up
        self.parts: dict[DType, Callable[[Any], Parts]] = {
            dtypes.q8_0: self._q8_0, dtypes.q4_0: self._q4_0, dtypes.q4_1: self._q4_1,
            dtypes.q5_0: self._q5_0, dtypes.q5_1: self._q5_1, dtypes.iq4_nl: self._iq4_nl,
            dtypes.q2_k: self._q2_k, dtypes.q3_k: self._q3_k, dtypes.q4_k: self._q4_k,
            dtypes.q5_k: self._q5_k, dtypes.q6_k: self._q6_k, **dict.fromkeys(dtypes.NF4, self._nf4),
        }  # fmt: skip

    def decoded(self, rows: Any, dtype: DType, shape: tuple[int, ...]) -> Any:
        """The float32 values of packed rows: u8 [..., row bytes] -> shape."""
        dtype = stored(dtype)
        blocks = rows.reshape(*rows.shape[:-1], -1, dtype.nbytes)
        return _grouped(*self.parts[dtype](blocks)).reshape(shape)

    def opened(self, x: Any, spec: Spec) -> Any:
        """An input of a row, decoded if it is packed: a weight, whose sizes are numbers."""
        return self.decoded(x, spec.dtype, _sizes(spec)) if spec.dtype.is_packed else x

    def taken(self, ids: Any, rows: Any, inside: Any, table: Spec) -> list[Any]:
        """[where a row stands in what is taken, what is taken] of the packed rows at `ids`, or matrices of
        a stack; NaN where an id is not `inside` the table."""
        of_one = _sizes(table)[1:]
        values = self.decoded(rows, table.dtype, (*ids.shape, *of_one))
        values = self.xp.where(inside.reshape(*ids.shape, *[1] * len(of_one)), values, math.nan)
        return [self.xp.arange(ids.size).reshape(ids.shape), values.reshape(ids.size, *of_one)]

    def _half(self, raw: Any) -> Any:
        """Two bytes of each block as its f16, [..., blocks, 1]."""
        return raw.view(self.xp.float16).astype(self.xp.float32)

    def _nibbles(self, qs: Any) -> Any:
        return self.xp.concatenate([qs & 15, qs >> 4], -1)

    def _bits(self, raw: Any) -> Any:
        """Bit i of byte j as element 8j + i."""
        bits = (raw[..., None] >> self.xp.arange(8, dtype=self.xp.uint8)) & 1
        return bits.reshape(*raw.shape[:-1], 8 * raw.shape[-1])

    def _f32(self, q: Any) -> Any:
        return q.astype(self.xp.float32)

    def _q8_0(self, b: Any) -> Parts:
        return self._f32(b[..., 2:].view(self.xp.int8)), self._half(b[..., :2]), None

    def _q4_0(self, b: Any) -> Parts:
        return self._f32(self._nibbles(b[..., 2:])) - 8, self._half(b[..., :2]), None

    def _q4_1(self, b: Any) -> Parts:
        return self._f32(self._nibbles(b[..., 4:])), self._half(b[..., :2]), self._half(b[..., 2:4])

    def _q5_0(self, b: Any) -> Parts:
        q = self._nibbles(b[..., 6:]) | (self._bits(b[..., 2:6]) << 4)
        return self._f32(q) - 16, self._half(b[..., :2]), None

    def _q5_1(self, b: Any) -> Parts:
        q = self._nibbles(b[..., 8:]) | (self._bits(b[..., 4:8]) << 4)
        return self._f32(q), self._half(b[..., :2]), self._half(b[..., 2:4])

    def _iq4_nl(self, b: Any) -> Parts:
        return self.look_up(IQ4_NL_LEVELS, self._nibbles(b[..., 2:])), self._half(b[..., :2]), None

    # 256 elements a block: runs of 32, groups with a scale each.

    def _runs(self, runs: list[Any]) -> Any:
        """[..., 32] each -> [..., 256] in order."""
        return self.xp.concatenate(runs, -1)

    def _q2_k(self, b: Any) -> Parts:
        scales, q = b[..., :16], self._f32(self._runs(_two_bits(b[..., 16:80])))
        d, dmin = self._half(b[..., 80:82]), self._half(b[..., 82:84])
        return q, d * self._f32(scales & 15), -dmin * self._f32(scales >> 4)

    def _q3_k(self, b: Any) -> Parts:
        low, packed = _two_bits(b[..., 32:96]), b[..., 96:108]
        q = self._runs([low[r] | (((b[..., :32] >> r) & 1) << 2) for r in range(8)])
        high = self.xp.concatenate([(packed[..., 8:] >> 2 * i) & 3 for i in range(4)], -1)
        scales = self.xp.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], -1) | (high << 4)
        return self._f32(q) - 4, self._half(b[..., 108:110]) * (self._f32(scales) - 32), None

    def _with_min(self, b: Any, q: Any) -> Parts:
        """q4_k and q5_k: scales and minima of six bits in bytes 4..16."""
        first, second, third = b[..., 4:8], b[..., 8:12], b[..., 12:16]
        scale = self.xp.concatenate([first & 63, (third & 15) | ((first >> 2) & 48)], -1)
        minimum = self.xp.concatenate([second & 63, (third >> 4) | ((second >> 2) & 48)], -1)
        d, dmin = self._half(b[..., :2]), self._half(b[..., 2:4])
        return self._f32(q), d * self._f32(scale), -dmin * self._f32(minimum)

    def _q4_k(self, b: Any) -> Parts:
        qs = b[..., 16:]
        runs = [(qs[..., r // 2 * 32 :][..., :32] >> 4 * (r % 2)) & 15 for r in range(8)]
        return self._with_min(b, self._runs(runs))

    def _q5_k(self, b: Any) -> Parts:
        qh, qs = b[..., 16:48], b[..., 48:]
        low = [(qs[..., r // 2 * 32 :][..., :32] >> 4 * (r % 2)) & 15 for r in range(8)]
        return self._with_min(b, self._runs([low[r] | (((qh >> r) & 1) << 4) for r in range(8)]))

    def _q6_k(self, b: Any) -> Parts:
        ql, qh, scales = b[..., :128], b[..., 128:192], b[..., 192:208].view(self.xp.int8)
        runs = []
        for r in range(8):
            half, i = divmod(r, 4)
            low = (ql[..., 64 * half + 32 * (i % 2) :][..., :32] >> 4 * (i // 2)) & 15
            runs.append(low | (((qh[..., 32 * half :][..., :32] >> 2 * i) & 3) << 4))
        return self._f32(self._runs(runs)) - 32, self._half(b[..., 208:210]) * self._f32(scales), None

    def _levels(self, qs: Any) -> Any:
        """The levels of NF4: the high nibble comes first."""
        q = self.xp.stack([qs >> 4, qs & 15], -1).reshape(*qs.shape[:-1], -1)
        return self.look_up(nf4.LEVELS, q)

    def _nf4(self, b: Any) -> Parts:
        return self._levels(b[..., 4:]), b[..., :4].view(self.xp.float32), None


def _sizes(spec: Spec) -> tuple[int, ...]:
    return tuple(n for n in spec.shape if isinstance(n, int))


def stored(dtype: DType) -> DType:
    """What a packed dtype is kept as: the scales of double-quantised NF4 are opened on the way in, for a
    compiler would round them in its own ways."""
    return dtypes.NF4[dtypes.NF4D.index(dtype)] if dtype.group else dtype


def in_rows(array: Any, node: Node) -> Any:
    """A weight's bytes as it is kept: [..., row bytes]."""
    if node.dtype.group:
        array = nf4.opened(array.reshape(-1), node.dtype)
    if node.dtype.is_packed:
        array = array.reshape(*(n for n in node.shape[:-1] if isinstance(n, int)), -1)
    return array


def supports(node: Node, lowerings: Any, products: Any, decoders: Decoders) -> bool:
    """Whether there is a lowering of a row that takes the packed inputs it has."""
    packed = {stored(n.dtype) for n in node.inputs if n.dtype.is_packed}
    if node.op in products:
        return packed <= decoders.parts.keys()
    return node.op in lowerings and (not packed or node.op in ("kv_append", "paged_attention"))
