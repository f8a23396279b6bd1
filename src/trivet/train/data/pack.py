"""Examples to batches: one flat list of tokens, no padding, no batch axis.

    ids        i32 [T]   the examples, one after the other, each without its last id
    targets    i32 [T]   the id that should follow; -100 where it is not trained
    positions  i32 [T]   0, 1, ... within each example
    starts     i32 [T]   where in the list the token's example begins: it sees starts[t] <= j <= t

So examples that share a batch do not see each other, and what they give is what each gives alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from trivet.errors import InputError
from trivet.train.data.render import Example

UNTRAINED = -100
OPEN = 64  # bins that are filled at the same time

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one run of a training plan is given."""

    ids: Ids
    targets: Ids
    positions: Ids
    starts: Ids

    def arrays(self) -> dict[str, Ids]:
        """Its fields by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def padded(self, size: int) -> Batch:
        """The same with positions at the end, up to `size`, that see only themselves and are not trained."""
        n = len(self.ids)
        more = np.arange(n, size, dtype=np.int32)
        zeros = np.zeros_like(more)
        return Batch(
            np.concatenate([self.ids, zeros]),
            np.concatenate([self.targets, zeros + UNTRAINED]).astype(np.int32),
            np.concatenate([self.positions, zeros]),
            np.concatenate([self.starts, more]),
        )

    @property
    def trained(self) -> int:
        """Targets that count: what its loss is weighted by."""
        return int(np.count_nonzero(self.targets != UNTRAINED))


def pack(examples: Sequence[Example]) -> Batch:
    """One batch of these examples, in order."""
    if not examples:
        raise InputError("[data] a batch of no examples")
    lengths = np.array([example.length for example in examples])
    begins = np.cumsum(lengths) - lengths
    targets = [np.where(e.trained[1:], e.ids[1:], UNTRAINED) for e in examples]
    positions = [np.arange(n) for n in lengths]
    return Batch(
        np.concatenate([e.ids[:-1] for e in examples]).astype(np.int32),
        np.concatenate(targets).astype(np.int32),
        np.concatenate(positions).astype(np.int32),
        np.repeat(begins, lengths).astype(np.int32),
    )


def first_fit(order: Iterable[int], lengths: npt.NDArray[np.int64], capacity: int) -> list[list[int]]:
    """Examples, in order, put each into the first of the open bins that has room for it.

    At most OPEN bins are open: the oldest is closed for a new one. Bins come in the order they were opened,
    so an example is never far from its place. Raises InputError if one is longer than a bin."""
    bins: list[list[int]] = []
    room: list[int] = []
    for i in order:
        length = int(lengths[i])
        if length > capacity:
            raise InputError(f"[data] a batch of {capacity} tokens; example {i} alone has {length}")
        oldest = max(len(bins) - OPEN, 0)
        at = next((b for b in range(oldest, len(bins)) if room[b] >= length), None)
        if at is None:
            at = len(bins)
            bins.append([])
            room.append(capacity)
        bins[at].append(i)
        room[at] -= length
    return bins
