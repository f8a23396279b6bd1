"""The NumPy backend: the definition that the others are held to. Written to be read, not to be fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trivet.backends.base import Backend, Weights, expand
from trivet.backends.numpy.lowerings import LOWERINGS
from trivet.backends.numpy.program import NumpyProgram
from trivet.dtypes import DType
from trivet.errors import DTypeError
from trivet.graph import Graph, Node, to_numpy


class NumpyBackend(Backend):
    """Arrays are NumPy arrays in storage form; all that floats do is done in float64."""

    name = "numpy"

    def details(self) -> str:
        return f"NumPy {np.__version__}, float64"

    def supports(self, node: Node) -> bool:
        return node.op in LOWERINGS

    def compile(
        self,
        graph: Graph,
        *,
        weights: Weights | None = None,
        state: Mapping[str, Any] | None = None,
        sizes: Mapping[str, int] | None = None,
        threads: int = 0,
        exact: bool = False,
    ) -> NumpyProgram:
        """As `Backend.compile`. With `exact` nothing is rounded: floats come and go in float64."""
        return NumpyProgram(expand(graph, self.supports), weights, state or {}, sizes or {}, exact)

    def from_numpy(self, array: Any, dtype: DType) -> Any:
        array = np.asarray(array)
        if array.dtype != to_numpy(dtype):
            raise DTypeError(f"[from_numpy] NumPy's {array.dtype} is not how {dtype} is stored")
        return array

    def to_numpy(self, array: Any) -> np.ndarray[Any, Any]:
        return np.asarray(array)


BACKEND = NumpyBackend()
