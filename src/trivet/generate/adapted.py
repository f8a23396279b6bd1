"""Adapters as the serving graph takes them: their sum, as one pair of matrices for each weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trivet.adapter import Scaled, stacked
from trivet.graph import Graph
from trivet.lora import attach


@dataclass(frozen=True, slots=True)
class Adapted:
    """What is added to a serving graph. The leaves' names begin with a hash of what they hold, so that equal
    adapters share the arrays a model has been given."""

    prefix: str = ""
    ranks: Mapping[str, int] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)

    def graph(self, base: Graph) -> Graph:
        """The serving graph with the adapters in it."""
        if not self.ranks:
            return base
        nodes = attach([*base.outputs.values(), *base.updates.values()], self.ranks, self.prefix)
        split = len(base.outputs)
        return Graph(
            dict(zip(base.outputs, nodes[:split], strict=True)),
            dict(zip(base.updates, nodes[split:], strict=True)),
        )


def adapted(adapters: Sequence[Scaled]) -> Adapted:
    """The sum of some adapters; of none, nothing is added."""
    if not adapters:
        return Adapted()
    pairs = sorted(stacked(adapters).items())
    import hashlib  # takes 4 MB, which most need not

    hashed = hashlib.sha256()
    for weight, pair in pairs:
        hashed.update(weight.encode())
        for array in pair:
            hashed.update(np.ascontiguousarray(array).view(np.uint8).data)
    prefix = f"adapter.{hashed.hexdigest()[:16]}."
    arrays = {
        f"{prefix}{weight}{end}": array
        for weight, pair in pairs
        for end, array in zip((".lora_a", ".lora_b"), pair, strict=True)
    }
    return Adapted(prefix, {weight: len(a) for weight, (a, _) in pairs}, arrays)
