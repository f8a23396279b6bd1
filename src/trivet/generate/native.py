"""The native core's engine, with the contract of `engine.Engine`: pages and batches are its own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trivet import _native as core
from trivet import arguments, plan
from trivet.backends.native import Handle, lower
from trivet.dtypes import DType, f32
from trivet.generate.engine import (
    CHUNK,
    PAGE,
    Feed,
    Logits,
    check_ids,
    in_chunks,
    serving_dims,
    serving_graph,
    wanted_rows,
)
from trivet.models.checkpoint import Checkpoint

if TYPE_CHECKING:
    from trivet.generate.adapted import Adapted

MAX_SESSIONS = 64
FULL_SESSIONS = 4  # how many sessions of full context the pool holds; pages take memory once used


def serving_plan(definition: Any, name: str, kv: DType, adapters: Adapted | None = None) -> bytes:
    """The serving plan of a model as the core runs it, with KV pools of dtype `kv`, in bytes."""
    graph = lower(serving_graph(definition, kv, adapters))
    return plan.encode(plan.build(graph, serving_dims(definition.config.context), f"{name}.serve"))


class NativeSession:
    """One sequence in the core."""

    def __init__(self, engine: NativeEngine, handle: Handle) -> None:
        self.engine, self.handle = engine, handle

    @property
    def length(self) -> int:
        length = ctypes.c_int64()
        core.tv_session_length(self.handle, ctypes.byref(length))
        return length.value

    def truncate(self, length: int) -> None:
        core.tv_session_truncate(self.handle, arguments.integer(length, "[truncate] length", 0, self.length))

    def fork(self) -> NativeSession:
        """Pages are shared until one of the two writes to them."""
        return NativeSession(self.engine, Handle(core.tv_session_fork, core.tv_session_free, self.handle))


class NativeWeights:
    """A model's tensors in the core, arranged once for all engines that run them. What is added stays."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.architecture = checkpoint.architecture
        self._kept: dict[str, npt.NDArray[Any]] = {}
        if checkpoint.gguf is not None and len(checkpoint.gguf.paths) == 1:
            self.handle = Handle(core.tv_model_open, core.tv_model_free, os.fsencode(checkpoint.path))
            return
        self.handle = Handle(core.tv_model_create, core.tv_model_free)
        for name, entry in checkpoint.tensors.items():
            self.add(name, entry.load(), entry.dtype, entry.shape)

    def add(
        self, name: str, array: npt.NDArray[Any], dtype: DType, shape: tuple[int, ...] | None = None
    ) -> None:
        """Adds a tensor that the core reads where it is; one of that name is there already or not. What is
        packed comes with its shape."""
        if name in self._kept:
            return
        array = np.ascontiguousarray(array)
        shape = array.shape if shape is None else shape
        dims = (ctypes.c_int64 * len(shape))(*shape)
        tensor = core.tv_tensor(array.ctypes.data, dtype.id, len(shape), dims, None)
        core.tv_model_add_tensor(self.handle, name.encode(), ctypes.byref(tensor), 0)
        self._kept[name] = array


class NativeEngine:
    """Runs the serving plan in the native core."""

    def __init__(
        self,
        definition: Any,
        weights: NativeWeights,
        context: int,
        threads: int,
        kv: DType,
        adapters: Adapted | None = None,
    ) -> None:
        self.context = context
        self._vocab = definition.config.vocab
        self._weights = weights  # the core reads tensors where they are
        data = serving_plan(definition, weights.architecture, kv, adapters)
        loaded = Handle(core.tv_plan_load, core.tv_plan_free, data, len(data))
        for name, array in ({} if adapters is None else adapters.arrays).items():
            weights.add(name, array, f32)
        pages = FULL_SESSIONS * -(-context // PAGE)
        options = core.tv_engine_options(
            ctypes.sizeof(core.tv_engine_options), threads, MAX_SESSIONS, context, pages
        )
        self.handle = Handle(
            core.tv_engine_create, core.tv_engine_free, weights.handle, loaded, ctypes.byref(options)
        )

    def session(self) -> NativeSession:
        return NativeSession(self, Handle(core.tv_session_create, core.tv_session_free, self.handle))

    def step(self, feeds: Sequence[Feed]) -> list[Logits]:
        steps = (core.tv_step * len(feeds))()
        kept = []
        for step, feed in zip(steps, feeds, strict=True):
            check_ids(feed.ids, self._vocab)
            ids = np.asarray(feed.ids, np.int32)
            rows = wanted_rows(feed.rows, len(feed.ids)).astype(np.int32)
            kept += [ids, rows]
            step.session = feed.session.handle._as_parameter_.value
            step.ids, step.n_ids = _pointer(ids), len(ids)
            step.rows, step.n_rows = _pointer(rows), len(rows)
        counts = [len(feed.rows) for feed in feeds]
        logits = np.empty((sum(counts), self._vocab), np.float32)
        core.tv_engine_step(self.handle, steps, len(steps), logits.ctypes.data if sum(counts) else None)
        if len(feeds) == 1:
            return [logits]  # at once: np.split takes as long as half a layer of a small model
        return np.split(logits, np.cumsum(counts)[:-1])

    def forward(self, session: NativeSession, ids: Sequence[int], rows: Sequence[int]) -> Logits:
        """In chunks, so that Ctrl-C is heard between them; all or nothing."""
        if len(ids) <= CHUNK:
            return self.step([Feed(session, ids, rows)])[0]
        if session.length + len(ids) > self.context:
            wanted_rows(rows, len(ids))
            self.step([Feed(session, ids, ())])  # raises, with the numbers
        return np.concatenate(in_chunks(self, session, ids, rows))


def _pointer(array: npt.NDArray[np.int32]) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(ctypes.c_int32))
