"""Bounds of symbolic dimensions, for a graph that comes without: as wide as a plan allows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from trivet.graph import Dim, Graph, Node
from trivet.plan.structure import LARGEST_DIM, LARGEST_VALUE


def bounds(graph: Graph, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Smallest and largest of every dimension: that of `sizes` where it is there; else from where no size is
    negative up to where every value still fits."""
    nodes = graph.nodes()
    symbols = [s for n in nodes for spec in n.specs for s in spec.shape if isinstance(s, Dim)]
    low: dict[str, int] = {}
    for size in symbols:
        low[size.name] = max(low.get(size.name, 0), math.ceil(-size.offset / size.scale))
    fixed = {name: (sizes[name], sizes[name]) for name in low if name in sizes}
    high = LARGEST_DIM
    while high > 1 and not _fit(nodes, {n: fixed[n][1] if n in fixed else max(high, low[n]) for n in low}):
        high //= 2
    return {n: fixed.get(n, (low[n], max(high, low[n]))) for n in low}


def _fit(nodes: Iterable[Node], dims: Mapping[str, int]) -> bool:
    return all(
        math.prod(max(s.at(dims) if isinstance(s, Dim) else s, 1) for s in spec.shape) * spec.dtype.nbytes
        < LARGEST_VALUE
        for node in nodes
        for spec in node.specs
    )
