"""`after`: an order between two values that do not depend on each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from trivet import dtypes
from trivet.graph import Spec
from trivet.ops.rules import EXACT, one_of
from trivet.ops.table import Sample, define


def _infer(x: Spec, g: Spec) -> Spec:
    one_of("after", dtypes.DENSE, x, g)
    return x


_after = define(
    "after",
    infer=_infer,
    gradient=lambda c: [c.g, None],
    samples=[
        Sample(lambda r: (r.standard_normal((3, 5)), np.arange(2))),
        Sample(lambda r: (r.standard_normal(()), np.zeros((0, 2), np.int32)), note="0-d, after nothing"),
        Sample(lambda r: (np.array([1, 2], np.int32), np.array(True))),
    ],
    tolerance=EXACT,
    doc="x, once g has been computed.",
    alias={0: 0},
)


def after(x: Any, g: Any) -> Any:
    """`x`, once `g` has been computed: it costs nothing and says when what is made of it is computed.

    Calls on `after(x, g)` are not those on `x`, so equal calls on both stay two: a value can be computed
    anew, later, in place of being held. What XLA calls an optimization barrier.

    >>> after(np.zeros(3, np.float32), np.ones((), np.float32))
    <after f32[3]>
    """
    return _after(x, g)
