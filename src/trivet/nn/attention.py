"""How a model attends: over a whole sequence, or over pages of a cache.

A model calls `attend(layer, q, k, v, ...)` and does not know which it is: so one definition of a model
serves training (whole sequences) and serving (any mix of prefill and decode of many sequences).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from trivet import graph, ops
from trivet.dtypes import DType, i32
from trivet.graph import Dim, Node


class Attend(Protocol):
    """q is [..., T, H, D], k and v are [..., T, Hkv, D]; gives [..., T, H, D]. `window` 0 and `softcap` 0
    mean none. Keys are at the same positions as the queries that come with them."""

    def __call__(
        self, layer: int, q: Any, k: Any, v: Any, *, scale: float, window: int = 0, softcap: float = 0.0
    ) -> Any: ...


def whole_sequence(
    layer: int, q: Any, k: Any, v: Any, *, scale: float, window: int = 0, softcap: float = 0.0
) -> Any:
    """Causal attention within each row of a batch: q [B, T, H, D]."""
    return ops.attention(q, k, v, scale=scale, causal=True, window=window, softcap=softcap)


def packed(starts: Node) -> Attend:
    """Causal attention within a flat list of tokens, q [T, H, D], that holds sequences one behind the other:
    token t sees those from starts[t] to itself. `starts` is i32 [T]."""

    def attend(
        layer: int, q: Any, k: Any, v: Any, *, scale: float, window: int = 0, softcap: float = 0.0
    ) -> Any:
        one = [ops.reshape(x, (1, *x.shape)) for x in (q, k, v)]
        rows = ops.reshape(starts, (1, *starts.shape))
        o = ops.attention(*one, starts=rows, scale=scale, causal=True, window=window, softcap=softcap)
        return ops.reshape(o, o.shape[1:])

    return attend


@dataclass(slots=True)
class Paged:
    """Attention over a paged cache: appends the new keys and values, then attends to what each token's
    own sequence holds up to it. `updates` collects the new state of every pool.

    K pools are [N, Hkv, D, page]: the keys of a page lie side by side per channel, so that a vector lane
    is a key. V pools are [N, Hkv, page, D]: a lane is a channel."""

    positions: Node
    sequences: Node
    pages: Node
    page: int
    dtype: DType
    updates: dict[str, Node] = field(default_factory=dict)

    def __call__(
        self, layer: int, q: Any, k: Any, v: Any, *, scale: float, window: int = 0, softcap: float = 0.0
    ) -> Any:
        keys = self._append(f"kv.{layer}.k", k, transposed=True)
        values = self._append(f"kv.{layer}.v", v, transposed=False)
        return ops.paged_attention(
            q, keys, values, self.positions, self.sequences, self.pages,
            scale=scale, window=window, softcap=softcap,
        )  # fmt: skip

    def _append(self, name: str, new: Any, transposed: bool) -> Any:
        heads, width = new.shape[-2:]
        shape = (heads, width, self.page) if transposed else (heads, self.page, width)
        pool = graph.state(name, (Dim("N"), *shape), self.dtype)
        self.updates[name] = ops.kv_append(
            pool, new, self.positions, self.sequences, self.pages, transposed=transposed
        )
        return self.updates[name]


def paged_inputs(page: int, dtype: DType) -> Paged:
    """A `Paged` over fresh inputs: positions [T], sequences [T] and pages [B, P]; pools of `dtype`."""
    tokens = (Dim("T"),)
    return Paged(
        graph.input("positions", tokens, i32),
        graph.input("sequences", tokens, i32),
        graph.input("pages", (Dim("B"), Dim("P")), i32),
        page,
        dtype,
    )
