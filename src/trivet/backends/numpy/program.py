"""Runs a graph node by node. Floats are held as float64 and rounded to each node's dtype (not if `exact`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from trivet import blocks
from trivet.backends.base import Weights, bind, logical, resolved
from trivet.backends.numpy.lowerings import LOWERINGS
from trivet.dtypes import DType, bf16
from trivet.errors import DTypeError, InputError
from trivet.graph import Graph, Node, Spec, to_numpy


def widen(array: Any, dtype: DType) -> Any:
    """Storage form to what is computed with."""
    if dtype is bf16 and array.dtype == np.uint16:
        array = blocks.from_bf16(array)
    return array.astype(np.float64) if dtype.is_float else array


def rounded(value: Any, dtype: DType) -> Any:
    """A float64 array in the storage form of `dtype`, rounded to nearest even, to infinity if too large."""
    if dtype is bf16:
        return blocks.to_bf16(np.ascontiguousarray(value, np.float32)).reshape(np.shape(value))
    return np.ascontiguousarray(value, to_numpy(dtype)).reshape(np.shape(value))


class NumpyProgram:
    """A graph, ready to run. With `exact` no result is rounded, and float inputs may be given in float64."""

    def __init__(
        self,
        graph: Graph,
        weights: Weights | None,
        state: Mapping[str, Any],
        sizes: Mapping[str, int],
        exact: bool,
    ) -> None:
        self._graph, self._exact, self._find = graph, exact, weights
        self._order = graph.nodes()
        self._inputs = {n.attrs["name"]: n for n in self._order if n.op == "input"}
        self._states = {n.attrs["name"]: n for n in self._order if n.op == "state"}
        self._sizes: dict[str, int] = dict(sizes)
        self._weights: dict[str, Any] = {}
        self._values = {name: self._first(node, state.get(name)) for name, node in self._states.items()}

    @property
    def state(self) -> Mapping[str, Any]:
        return {n: self._stored(v, self._states[n].dtype) for n, v in self._values.items()}

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if set(inputs) != set(self._inputs):
            raise InputError(f"[run] inputs {sorted(inputs)}, expected {sorted(self._inputs)}")
        sizes = dict(self._sizes)
        values: dict[Node, Any] = {}
        for name, node in self._inputs.items():
            values[node] = self._given(node, np.asarray(inputs[name]), sizes)
        with np.errstate(all="ignore"):
            self._compute(values, sizes)
            out = {k: self._stored(values[n], n.dtype) for k, n in self._graph.outputs.items()}
        self._values.update({k: values[n] for k, n in self._graph.updates.items()})
        return out

    def _compute(self, values: dict[Node, Any], sizes: Mapping[str, int]) -> None:
        left = Counter(i for n in self._order for i in n.inputs)
        left.update([*self._graph.outputs.values(), *self._graph.updates.values()])
        for node in self._order:
            if node not in values:
                values[node] = self._value(node, [values[i] for i in node.inputs], sizes)
            for i in node.inputs:
                left[i] -= 1
                if not left[i]:
                    del values[i]

    def _value(self, node: Node, inputs: list[Any], sizes: Mapping[str, int]) -> Any:
        if node.op == "item":
            return inputs[0][node.attrs["index"]] if len(node.inputs[0].specs) > 1 else inputs[0]
        if node.op == "weight":
            return self._weight(node)
        if node.op == "state":
            return self._values[node.attrs["name"]]
        if node.op in ("constant", "buffer"):
            return widen(np.asarray(node.value), node.dtype)
        attrs = {k: resolved(v, sizes) for k, v in node.attrs.items()}
        result = LOWERINGS[node.op](*inputs, **attrs)
        results = result if isinstance(result, tuple) else (result,)
        results = tuple(map(self._rounded, results, node.specs))
        return results if len(results) > 1 else results[0]

    def _rounded(self, value: Any, spec: Spec) -> Any:
        if self._exact and spec.dtype.is_float:
            return np.asarray(value, np.float64)
        return widen(rounded(value, spec.dtype), spec.dtype)

    def _stored(self, value: Any, dtype: DType) -> Any:
        return np.array(value) if self._exact and dtype.is_float else rounded(value, dtype)

    def _given(self, node: Node, array: Any, sizes: dict[str, int]) -> Any:
        exact = self._exact and node.dtype.is_float and array.dtype == np.float64
        if array.dtype != to_numpy(node.dtype) and not exact:
            raise DTypeError(f"[run] {node.attrs['name']!r} is NumPy's {array.dtype}, expected {node.dtype}")
        bind(sizes, node, logical(array.shape, node.dtype))
        return widen(array, node.dtype)

    def _first(self, node: Node, array: Any) -> Any:
        if array is not None:
            return self._given(node, np.asarray(array), self._sizes)
        shape = resolved(node.shape, self._sizes)
        if node.dtype.is_packed:
            shape = (*shape[:-1], node.dtype.row_bytes(shape[-1]))
        return widen(np.zeros(shape, to_numpy(node.dtype)), node.dtype)

    def _weight(self, node: Node) -> Any:
        """Dequantised once, then kept."""
        name = node.attrs["name"]
        if name not in self._weights:
            if self._find is None:
                raise InputError(f"[compile] the graph has the weight {name!r}, and no weights were given")
            raw = np.asarray(self._find(name))
            if node.dtype.is_packed:
                raw = blocks.dequantize(raw.reshape(-1), node.dtype, resolved(node.shape, {})).astype(
                    np.float64
                )
            bind({}, node, raw.shape)
            self._weights[name] = widen(raw, node.dtype)
        return self._weights[name]
