"""Counter-based random numbers, Philox4x32-10 (Salmon et al., SC 2011): the same bits on every backend.

Element e of a call takes word e % 4 of the block with counter (e / 4, key[1]) and key key[0], each of the
three a 64-bit number, low word first. There is no hidden state: a key always gives the same numbers, so
take a new key[1] for each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trivet import dtypes
from trivet.graph import Shape, Size, Spec
from trivet.ops.rules import has_shape, one_of, sizes_of
from trivet.ops.table import Infer, NoGradient, Row, Sample, define

_KEY = np.array([0x0123456789ABCDEF, -7])
_KEYS = NoGradient("a key is an integer")


def _infer(op: str, dtype: dtypes.DType) -> Infer:
    def infer(key: Spec, shape: Shape) -> Spec:
        one_of(op, (dtypes.i64,), key)
        has_shape(op, "key", key, (2,))
        return Spec(tuple(shape), dtype)

    return infer


def _define(name: str, dtype: dtypes.DType, bound: float, doc: str) -> Row:
    return define(
        name,
        attrs={"shape": tuple},
        infer=_infer(name, dtype),
        gradient=_KEYS,
        samples=[
            Sample(lambda r: (_KEY,), {"shape": (3, 5)}, note="not a whole block"),
            Sample(lambda r: (np.array([0, 0]),), {"shape": (64,)}),
            Sample(lambda r: (np.array([-1, 2**62]),), {"shape": ()}, note="0-d"),
            Sample(lambda r: (_KEY,), {"shape": (0, 2)}, note="empty"),
        ],
        tolerance={dtype: bound},
        doc=doc,
    )


_random_bits = _define("random_bits", dtypes.i32, 0.0, "Random 32-bit words, as i32.")
_random_uniform = _define("random_uniform", dtypes.f32, 0.0, "Multiples of 2**-24 in [0, 1), all as likely.")
_random_normal = _define(
    "random_normal", dtypes.f32, 2e-6, "Standard normal numbers, by Box and Muller's method."
)


def random_bits(key: Any, shape: Sequence[Size]) -> Any:
    """Random i32 words of `shape` from `key`, i64 [2].

    >>> random_bits(np.array([1, 2]), (3, 4))
    <random_bits i32[3, 4]>
    """
    return _random_bits(key, shape=sizes_of("random_bits", shape))


def random_uniform(key: Any, shape: Sequence[Size]) -> Any:
    """f32 numbers in [0, 1): the upper 24 bits of each word times 2**-24.

    >>> random_uniform(np.array([1, 2]), (3, 4))
    <random_uniform f32[3, 4]>
    """
    return _random_uniform(key, shape=sizes_of("random_uniform", shape))


def random_normal(key: Any, shape: Sequence[Size]) -> Any:
    """Standard normal f32 numbers. Words 2i and 2i + 1 of a block make elements 2i and 2i + 1:
    with u = (upper 24 bits + 1) / 2**24 of the first and v = (upper 24 bits) / 2**24 of the second they are
    sqrt(-2 ln u) times cos(2 pi v) and sin(2 pi v).

    >>> random_normal(np.array([1, 2]), (3, 4))
    <random_normal f32[3, 4]>
    """
    return _random_normal(key, shape=sizes_of("random_normal", shape))
