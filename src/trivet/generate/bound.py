"""The bound on a model's speed: what a run must read and compute, over what the machine can."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from trivet.dtypes import DType, bf16, f16
from trivet.generate.engine import PAGE
from trivet.graph import Dim, Graph, Node


class Rates(Protocol):
    """Per second, at most: bytes read from memory, and operations by the type of what is multiplied."""

    read_bytes: float
    f32: float
    bf16: float
    i8: float


@dataclass(frozen=True, slots=True)
class Work:
    """Of one run: bytes of weights, keys and values that are read, and operations (a multiply-add is two) by
    the narrowest type they can be done in."""

    read: float
    operations: Mapping[str, float]

    def seconds(self, rates: Rates) -> float:
        """The least time a machine of these rates needs (the roofline of Williams et al. 2009)."""
        peak = {"f32": rates.f32, "bf16": rates.bf16, "i8": rates.i8}
        computing = sum(n / peak[kind] for kind, n in self.operations.items())
        return max(self.read / rates.read_bytes, computing)


def serving_work(serving: Graph, tokens: int, past: int, rows: int = 1) -> Work:
    """Of `tokens` of one sequence on top of `past`, with logits of `rows` of them; as many experts are
    read as can be chosen."""
    sizes = {"T": tokens, "R": rows}
    read = 0.0
    operations: Counter[str] = Counter()
    weights: set[Node] = set()
    for node in serving.nodes():
        if node.op not in ("embedding", "expert_linear"):
            weights.update(n for n in node.inputs if n.op == "weight")
        if node.op == "linear":
            x, w = node.inputs[:2]
            operations[_kind(w.dtype)] += 2 * _count(x.shape[:-1], sizes) * _count(w.shape, {})
        elif node.op == "expert_linear":
            _, w, experts = node.inputs
            rows_of, of_one = _count(experts.shape, sizes), _count(w.shape[1:], {})
            operations[_kind(w.dtype)] += 2 * rows_of * of_one
            read += min(rows_of, _count(w.shape[:1], {})) * w.dtype.row_bytes(of_one)
        elif node.op == "paged_attention":
            q, *pools = node.inputs[:3]
            seen = past + (tokens + 1) / 2
            if window := node.attrs["window"]:
                seen = min(seen, window)
            sums = _count(q.shape[1:], {}) + _count(node.shape[1:], {})
            operations["f32"] += round(2 * tokens * seen * sums)
            read += (past + tokens) * sum(map(_slot_bytes, pools))
    return Work(read + sum(map(_nbytes, weights)), operations)


def _kind(weight: DType) -> str:
    if weight.is_packed:
        return "i8"
    return "bf16" if weight in (f16, bf16) else "f32"


def _count(shape: tuple[int | Dim, ...], sizes: Mapping[str, int]) -> int:
    return math.prod(n.at(sizes) if isinstance(n, Dim) else n for n in shape)


def _nbytes(weight: Node) -> int:
    return weight.dtype.row_bytes(_count(weight.shape, {}))


def _slot_bytes(pool: Node) -> float:
    return pool.dtype.row_bytes(_count(pool.shape[1:], {})) / PAGE
