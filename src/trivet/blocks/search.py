"""The search for a group's scale, or scale and offset, under which its rounded values err least.

Arrays are [size of a group, groups]: a step of the search is a handful of passes over whole rows. A first
scale puts the extreme on the last code; it and a few close to it are tried: the codes that a scale gives have
a best scale (and offset) by least squares, and that which explains most of the group's squares wins. Then the
winner gives codes once more. Errors may count unequally: each by the weight of its element. Where no weights
are given, a scale without an offset is searched with large elements counting more (`own_weights`).

The sums are float32 in the order of the elements, so that a group's bits do not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trivet.blocks.row import F32, beyond_half
from trivet.dtypes import DType

Round = Callable[[F32], None]  # values, in place, to the nearest of a format's codes

#: what is added to the last code to make a first scale, in codes
_STEPS = (0.0, -0.8, -0.4, 0.4, 0.8)
_AGAIN = 2  # rounds from the best so far


_MOST = np.float32(2.0**32)  # beyond any format's largest value; squares and sums of less are finite


def lanes(dtype: DType, values: F32, weights: F32 | None, size: int) -> tuple[F32, F32 | None]:
    """Values [n, k * size], and their weights, as [size, n * k]. Raises NonFiniteError if a value is too
    large for any scale."""
    if values.size and max(values.max(), -values.min()) > _MOST:
        raise beyond_half(dtype)
    x, w = (None if a is None else np.ascontiguousarray(a.reshape(-1, size).T) for a in (values, weights))
    assert x is not None
    return x, w


def total(x: F32) -> F32:
    """The sum of each group. NumPy adds whole rows in their order, but a single column pairwise."""
    out: F32 = x.sum(axis=0) if x.shape[1] > 1 else np.add.accumulate(x, axis=0)[-1]
    return out


def weighted(x: F32, weights: F32 | None) -> F32:
    """Each element times its weight, if there are weights."""
    return x if weights is None else x * weights


def own_weights(x: F32) -> F32:
    """Weights that grow with the square of an element, from four times the mean square of its group: found to
    keep a model's predictions better than equal ones."""
    squares = x * x
    out: F32 = squares + np.float32(4) * (total(squares) / np.float32(len(x)))
    return out


def mean(x: F32, weights: F32 | None) -> F32:
    """The weighted mean of each group, 0 where it has no weight."""
    if weights is None:
        return total(x) / np.float32(len(x))
    return quotient(total(x * weights), total(weights))


def quotient(a: F32 | float, b: F32) -> F32:
    """a / b, and 0 where b is 0 or so small that the quotient may overflow."""
    out: F32 = np.zeros(np.broadcast_shapes(np.shape(a), b.shape), np.float32)
    np.divide(a, b, out=out, where=np.abs(b) > np.float32(2.0**-100))
    return out


def codes(lowest: int, highest: int) -> Round:
    """Rounds to whole numbers between two, halves to even."""

    def rounded(x: F32) -> None:
        np.rint(x, out=x)
        np.maximum(x, np.float32(lowest), out=x)
        np.minimum(x, np.float32(highest), out=x)

    return rounded


def scale(x: F32, weights: F32 | None, last: int, rounded: Round, apart: int = 1) -> F32:
    """The scale s [groups] with x ≈ s * q. `last` is the code on which the extreme falls at first, `apart`
    the distance of codes there."""
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    best: F32 = np.zeros_like(extreme)
    most = np.zeros_like(extreme)
    q, product = np.empty_like(x), np.empty_like(x)

    def consider(inverse: F32) -> None:
        rounded(np.multiply(x, inverse, out=q))
        wq = weighted(q, weights)
        qx, qq = total(np.multiply(wq, x, out=product)), total(np.multiply(wq, q, out=product))
        s = quotient(qx, qq)
        gain = s * qx
        better = gain > most
        np.copyto(best, s, where=better)
        np.copyto(most, gain, where=better)

    for step in _STEPS:
        consider(quotient(last + apart * step, extreme))
    consider(quotient(1, best))
    return best


def scale_offset(x: F32, weights: F32 | None, last: int, *, signed: bool) -> tuple[F32, F32]:
    """The scale s and offset o [groups] with x ≈ s * q + o, q from 0 to `last`; o <= 0 unless `signed`."""
    low = x.min(axis=0)
    if not signed:
        np.minimum(low, 0, out=low)
    ceiling = np.full_like(low, np.inf) if signed else -low
    y = x - low  # so that little cancels below
    span, sum_y = y.max(axis=0), total(weighted(y, weights))
    count = np.float32(len(x)) if weights is None else total(weights)
    scale, offset = np.zeros_like(low), np.zeros_like(low)
    most = np.zeros_like(low)
    rounded = codes(0, last)
    q, product = np.empty_like(x), np.empty_like(x)

    def consider() -> None:
        rounded(q)
        wq = weighted(q, weights)
        sum_q = total(wq)
        qy, qq = total(np.multiply(wq, y, out=product)), total(np.multiply(wq, q, out=product))
        spread = count * qq - sum_q * sum_q
        o = np.minimum(quotient(qq * sum_y - sum_q * qy, spread), ceiling)
        s = np.maximum(quotient(qy - o * sum_q, qq), 0)
        gain = 2 * (s * qy + o * sum_y) - (s * s * qq + 2 * s * o * sum_q + count * o * o)
        better = gain > most
        for held, new in ((scale, s), (offset, o), (most, gain)):
            np.copyto(held, new, where=better)

    for step in _STEPS:
        np.multiply(y, quotient(last + step, span), out=q)
        consider()
    for _ in range(_AGAIN):
        np.multiply(np.subtract(y, offset, out=q), quotient(1, scale), out=q)
        consider()
    return scale, offset + low
