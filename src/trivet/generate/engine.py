"""The serving plan of a model, and the engine that runs it on any backend.

One graph serves everything: its inputs are a flat list of T tokens with their positions, the sequence each
belongs to, that sequence's page table, and the rows whose logits are wanted. Any mix of prefill and decode
of any number of sequences is one run of it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from trivet import arguments, dtypes, graph
from trivet.backends.base import Backend, bucket
from trivet.dtypes import DType, i32
from trivet.errors import CapacityError, InputError
from trivet.graph import Dim, Graph
from trivet.models.checkpoint import Checkpoint
from trivet.nn.attention import paged_inputs

if TYPE_CHECKING:
    from trivet.generate.adapted import Adapted

PAGE = 64  # tokens per page
CHUNK = 256  # most tokens of one run; a longer prompt is fed in several, with the same bits
KV_TYPES = ("f32", "f16", "bf16", "q8_0")  # what keys and values may be kept in

Logits = npt.NDArray[np.float32]


def kv_dtype(name: str, head_size: int) -> DType:
    """The dtype of KV pools by its name, for heads of `head_size` elements. Raises InputError."""
    if name not in KV_TYPES:
        raise InputError(f"[load] kv is {name!r}; known: {', '.join(KV_TYPES)}")
    dtype = dtypes.BY_NAME[name]
    if head_size % dtype.block:
        raise InputError(
            f"[load] kv {name} takes heads whose size divides by {dtype.block}; this model's head size is"
            f" {head_size}"
        )
    return dtype


def serving_graph(definition: Any, dtype: DType, adapters: Adapted | None = None) -> Graph:
    """The serving graph of a model, with KV pools of `dtype`, and adapters on its weights if given."""
    ids = graph.input("ids", (Dim("T"),), i32)
    rows = graph.input("rows", (Dim("R"),), i32)
    attend = paged_inputs(PAGE, dtype)
    logits = definition(ids, attend.positions, attend, rows)
    base = Graph({"logits": logits}, attend.updates)
    return base if adapters is None else adapters.graph(base)


def serving_dims(context: int) -> dict[str, tuple[int, int]]:
    """Smallest and largest of the serving graph's dimensions, for its plan."""
    pages = -(-context // PAGE)
    return {
        "T": (1, 1 << 16),
        "R": (0, 1 << 16),
        "B": (1, 1 << 12),
        "P": (1, max(pages, 1)),
        "N": (1, 1 << 22),
    }


class Session(Protocol):
    """One sequence: the tokens fed so far and their keys and values."""

    @property
    def length(self) -> int: ...

    def truncate(self, length: int) -> None:
        """Forgets all but the first `length` tokens."""

    def fork(self) -> Session:
        """A second session with the same tokens; neither sees the other's later ones."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens for one session, and which of them (by index) to give logits for."""

    session: Any
    ids: Sequence[int]
    rows: Sequence[int]


class Engine(Protocol):
    """Runs the serving plan for any number of sessions."""

    context: int  # most tokens of one session

    def session(self) -> Session: ...

    def step(self, feeds: Sequence[Feed]) -> list[Logits]:
        """Advances several sessions in one run: logits [len(rows), vocab] for each feed. If it raises,
        no session has advanced."""

    def forward(self, session: Any, ids: Sequence[int], rows: Sequence[int]) -> Logits:
        """Feeds one session, in chunks if need be."""


def in_chunks(engine: Engine, session: Session, ids: Sequence[int], rows: Sequence[int]) -> list[Logits]:
    """Feeds one session in runs of at most CHUNK tokens, all or nothing: the logits of each run."""
    start, wanted = session.length, wanted_rows(rows, len(ids))
    parts: list[Logits] = []
    try:
        for at in range(0, len(ids), CHUNK):
            here = wanted[(wanted >= at) & (wanted < at + CHUNK)] - at
            parts += engine.step([Feed(session, ids[at : at + CHUNK], here.tolist())])
    except BaseException:
        session.truncate(start)
        raise
    return parts


class GraphSession:
    """A session of a GraphEngine: its ids and its pages."""

    def __init__(self, engine: GraphEngine) -> None:
        self.engine = engine
        self.ids: list[int] = []
        self.pages: list[int] = []

    @property
    def length(self) -> int:
        return len(self.ids)

    def truncate(self, length: int) -> None:
        length = arguments.integer(length, "[truncate] length", 0, len(self.ids))
        del self.ids[length:]
        keep = -(-length // PAGE)
        self.engine.release(self.pages[keep:])
        del self.pages[keep:]

    def fork(self) -> GraphSession:
        """Feeds the tokens again: a backend's arrays are its own, and the bits are the same."""
        copy = GraphSession(self.engine)
        if self.ids:
            self.engine.forward(copy, self.ids, [])
        return copy

    def __del__(self) -> None:
        self.engine.release(self.pages)


class GraphEngine:
    """Runs the serving graph through a backend's `compile`; pages are handed out here. The native core has
    an engine of its own, with the same contract."""

    def __init__(
        self,
        definition: Any,
        checkpoint: Checkpoint,
        backend: Backend,
        context: int,
        kv: DType,
        adapters: Adapted | None = None,
    ) -> None:
        self.context = context
        self._vocab = definition.config.vocab
        self._graph = serving_graph(definition, kv, adapters)
        self._backend, self._checkpoint = backend, checkpoint
        self._added = {} if adapters is None else adapters.arrays
        self._pages = 0
        self._free: list[int] = []
        self._program: Any = None
        self._lock = threading.Lock()

    def _load(self, name: str) -> npt.NDArray[Any]:
        return self._added[name] if name in self._added else self._checkpoint.load(name)

    def session(self) -> GraphSession:
        return GraphSession(self)

    def release(self, pages: Sequence[int]) -> None:
        self._free.extend(pages)

    def forward(self, session: GraphSession, ids: Sequence[int], rows: Sequence[int]) -> Logits:
        parts = in_chunks(self, session, ids, rows)
        return np.concatenate(parts) if parts else np.zeros((0, self._vocab), np.float32)

    def step(self, feeds: Sequence[Feed]) -> list[Logits]:
        with self._lock:  # the pools are one program's state: runs wait for each other, as in the core
            for feed in feeds:
                self._check(feed)
            tables = [self._pages_for(feed) for feed in feeds]
            inputs = _inputs(feeds, tables)
            if self._backend.compiles_per_size:
                inputs = {name: _padded(array, _FILL[name]) for name, array in inputs.items()}
            wanted = sum(len(feed.rows) for feed in feeds)
            logits = self._backend.to_numpy(self._program.run(inputs)["logits"])[:wanted]
            for feed in feeds:
                feed.session.ids.extend(map(int, feed.ids))
        return np.split(logits, np.cumsum([len(f.rows) for f in feeds])[:-1])

    def _check(self, feed: Feed) -> None:
        if feed.session.engine is not self:
            raise InputError("[step] a session belongs to another engine")
        check_ids(feed.ids, self._vocab)
        wanted_rows(feed.rows, len(feed.ids))
        room = self.context - feed.session.length
        if len(feed.ids) > room:
            raise CapacityError(
                f"[forward] {len(feed.ids)} tokens on top of {feed.session.length};"
                f" the context is {self.context}"
            )

    def _pages_for(self, feed: Feed) -> list[int]:
        """The session's pages, with enough of them for the new tokens."""
        pages: list[int] = feed.session.pages
        missing = -(-(feed.session.length + len(feed.ids)) // PAGE) - len(pages)
        while len(self._free) < missing or self._program is None:
            self._grow()
        pages.extend(self._free.pop() for _ in range(missing))
        return pages

    def _grow(self) -> None:
        """Doubles the pools: compiles for more pages, with the old pages' contents in front."""
        before, self._pages = self._pages, max(16, 2 * self._pages)
        state: dict[str, Any] = {}
        if self._program is not None:
            for name, array in self._program.state.items():
                old = self._backend.to_numpy(array)
                state[name] = np.zeros((self._pages, *old.shape[1:]), old.dtype)
                state[name][:before] = old
        self._program = self._backend.compile(
            self._graph, weights=self._load, state=state, sizes={"N": self._pages}
        )
        self._free.extend(range(self._pages - 1, before - 1, -1))


def _inputs(feeds: Sequence[Feed], tables: Sequence[Sequence[int]]) -> dict[str, npt.NDArray[np.int32]]:
    """The inputs of one run of the serving graph."""
    table = np.zeros((len(feeds), max(map(len, tables))), np.int32)
    for row, pages in zip(table, tables, strict=True):
        row[: len(pages)] = pages
    ids: list[int] = []
    positions: list[int] = []
    sequences: list[int] = []
    rows: list[int] = []
    for i, feed in enumerate(feeds):
        rows += [len(ids) + r for r in feed.rows]
        ids += list(feed.ids)
        positions += range(feed.session.length, feed.session.length + len(feed.ids))
        sequences += [i] * len(feed.ids)
    flat = {"ids": ids, "positions": positions, "sequences": sequences, "rows": rows}
    return {"pages": table} | {name: np.asarray(values, np.int32) for name, values in flat.items()}


#: What rounds the inputs up: tokens that are nobody's, pages that are not there, rows nobody asked for.
_FILL = {"ids": 0, "positions": -1, "sequences": 0, "rows": 0, "pages": -1}


def _padded(array: npt.NDArray[np.int32], value: int) -> npt.NDArray[np.int32]:
    """The array with each dimension rounded up."""
    return np.pad(array, [(0, bucket(n) - n) for n in array.shape], constant_values=value)


def wanted_rows(rows: Sequence[int], tokens: int) -> npt.NDArray[np.int64]:
    """The rows that are asked for, each of them one of `tokens`. Raises InputError."""
    wanted = np.asarray(arguments.integers(rows, "[forward] rows"), np.int64)
    bad = np.flatnonzero((wanted < 0) | (wanted >= tokens))
    if bad.size:
        raise InputError(f"[forward] rows[{bad[0]}] is {wanted[bad[0]]}; there are {tokens} ids")
    return wanted


def check_ids(ids: Sequence[int], vocab: int) -> None:
    """Raises InputError naming the first id outside the vocabulary."""
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(
            f"[forward] ids must be a flat list of integers, got {array.dtype}{list(array.shape)}"
        )
    bad = np.flatnonzero((array < 0) | (array >= vocab))
    if bad.size:
        raise InputError(f"[forward] ids[{bad[0]}] is {array[bad[0]]}; the vocabulary has {vocab}")
