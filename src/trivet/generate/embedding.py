"""Embeddings of texts by a decoder: what its last norm gives for each token, pooled.

Each text is a run of its own, so that its embedding does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import graph
from trivet.backends.base import Backend, bucket
from trivet.dtypes import i32
from trivet.errors import InputError, ModelError, NonFiniteError
from trivet.generate.adapted import Adapted
from trivet.graph import Dim, Graph
from trivet.models.checkpoint import Checkpoint
from trivet.nn.attention import whole_sequence

F32 = npt.NDArray[np.float32]
POOLINGS = ("mean", "last")
#: `{architecture}.pooling_type` of GGUF files
NUMBERS = {1: "mean", 3: "last"}


def pooling_of(checkpoint: Checkpoint, wanted: str | None) -> str:
    """The pooling asked for, or the file's own, or "mean"."""
    if wanted is not None:
        if wanted not in POOLINGS:
            raise InputError(f"[embed] pooling is {wanted!r}; known: {', '.join(POOLINGS)}")
        return wanted
    key = f"{checkpoint.architecture}.pooling_type"
    kind = checkpoint.metadata.get(key, 0)
    if isinstance(kind, int | np.integer) and int(kind) in (0, *NUMBERS):
        return NUMBERS.get(int(kind), "mean")
    raise ModelError(f"[embed] metadata {key} is {kind!r:.50}; known: 0 (none), 1 (mean), 3 (last)")


class Embedder:
    """A model's blocks and last norm, as one program over a whole text."""

    def __init__(
        self, definition: Any, checkpoint: Checkpoint, backend: Backend, threads: int, adapters: Adapted
    ) -> None:
        ids, positions = (graph.input(name, (1, Dim("T")), i32) for name in ("ids", "positions"))
        normed = definition.norm(definition.hidden(ids, positions, whole_sequence))
        self._checkpoint, self._added, self._backend = checkpoint, adapters.arrays, backend
        weights = self._load if self._added else checkpoint.load
        ranks = {
            name: rank for name, rank in adapters.ranks.items() if name != "output.weight"
        }  # is not read
        made = replace(adapters, ranks=ranks).graph(Graph({"normed": normed}))
        self._program = backend.compile(made, weights=weights, threads=threads)

    def _load(self, name: str) -> npt.NDArray[Any]:
        return self._added[name] if name in self._added else self._checkpoint.load(name)

    def tokens(self, ids: Sequence[int]) -> F32:
        """What the last norm gives for each token: [len(ids), width]."""
        size = bucket(len(ids)) if self._backend.compiles_per_size else len(ids)
        padded = np.zeros((1, size), np.int32)  # no token sees a later one
        padded[0, : len(ids)] = ids
        given = {"ids": padded, "positions": np.arange(size, dtype=np.int32)[None]}
        normed = self._backend.to_numpy(self._program.run(given)["normed"])[0, : len(ids)]
        if not np.isfinite(normed).all():
            raise NonFiniteError("[embed] a text makes infinity or NaN: the model's weights are broken")
        return np.asarray(normed, np.float32)

    def text(self, ids: Sequence[int], pooling: str, normalize: bool) -> F32:
        """The embedding of one text, [width]."""
        tokens = self.tokens(ids)
        pooled = tokens[-1].astype(np.float64) if pooling == "last" else tokens.mean(axis=0, dtype=np.float64)
        length = np.linalg.norm(pooled) if normalize else 1.0
        return np.asarray(pooled / (length or 1.0), np.float32)
