"""A graph as one function of MLX's arrays per set of sizes, with its state in MLX's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from trivet.backends.base import resolved
from trivet.backends.mlx.lowerings import LOWERINGS
from trivet.backends.mlx.products import PRODUCTS, unpacked
from trivet.backends.mlx.types import mlx_dtype, put, reported
from trivet.backends.traced import Library, checked, computed
from trivet.errors import CapacityError, InputError
from trivet.graph import Graph, Node

#: weight leaf -> its array
DeviceWeights = Callable[[Node], Any]
LIBRARY = Library(mx.array, mx.float32, mlx_dtype, put, LOWERINGS, PRODUCTS, unpacked)


class MlxProgram:
    """A graph, ready to run. States that a run changes are given up to it, so that MLX may write over them: a
    run that fails before it computes changes none; one that fails later loses them, and each use from then on
    says so."""

    def __init__(
        self,
        graph: Graph,
        weights: DeviceWeights,
        state: Mapping[str, Any],
        sizes: Mapping[str, int],
        device: Any,
        fused: bool,
    ) -> None:
        self._graph, self._device, self._fused, self._sizes = graph, device, fused, dict(sizes)
        self._order = graph.nodes()
        self._inputs = {n.attrs["name"]: n for n in self._order if n.op == "input"}
        states = {n.attrs["name"]: n for n in self._order if n.op == "state"}
        self._buffers = [n.value for n in self._order if n.op == "buffer"]
        with mx.stream(device), reported("[compile]"):
            self._weights = {n.attrs["name"]: weights(n) for n in self._order if n.op == "weight"}
            self._values = {k: self._first(n, state.get(k)) for k, n in states.items()}
        self._compiled: dict[tuple[tuple[str, int], ...], Any] = {}

    @property
    def state(self) -> Mapping[str, Any]:
        if any(a is None for a in self._values.values()):
            raise CapacityError("[run] the state is lost: a run failed, or memory ran out, after it began")
        return self._values

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if set(inputs) != set(self._inputs):
            raise InputError(f"[run] inputs {sorted(inputs)}, expected {sorted(self._inputs)}")
        state, sizes = self.state, dict(self._sizes)
        with mx.stream(self._device), reported("[run]"):
            given = {name: self._given(node, inputs[name], sizes) for name, node in self._inputs.items()}
            key = tuple(sorted(sizes.items()))
            if key not in self._compiled:
                function = self.function(sizes)
                self._compiled[key] = mx.compile(function) if self._fused else function
            out, updates = self._compiled[key](state, self._weights, given, self._buffers)
            # who else holds an array keeps it from being reused
            self._values.update(dict.fromkeys(updates))
            mx.eval(out, updates)
        self._values.update(updates)
        return out  # type: ignore[no-any-return]

    def function(self, sizes: Mapping[str, int]) -> Callable[..., Any]:
        """(states, weights, inputs, buffers) -> (outputs, new states), in `mlx.core`."""

        def compute(states: Any, weights: Any, inputs: Any, buffers: Any) -> Any:
            leaves = {"state": states, "weight": weights, "input": inputs}
            return computed(LIBRARY, self._graph, self._order, sizes, leaves, buffers)

        return compute

    def _given(self, node: Node, array: Any, sizes: dict[str, int]) -> Any:
        array = checked(LIBRARY, node, array, sizes)
        return put(array, node.dtype)

    def _first(self, node: Node, array: Any) -> Any:
        if array is not None:
            return self._given(node, array, self._sizes)
        shape = resolved(node.shape, self._sizes)
        if node.dtype.is_packed:
            shape = (*shape[:-1], node.dtype.row_bytes(shape[-1]))
        return mx.zeros(shape, mlx_dtype(node.dtype))
