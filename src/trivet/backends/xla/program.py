"""A graph as one compiled XLA program per set of sizes, with its state in device memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trivet.backends.base import resolved
from trivet.backends.traced import Library, checked, computed
from trivet.backends.xla.lowerings import LOWERINGS
from trivet.backends.xla.placement import Placement
from trivet.backends.xla.products import PRODUCTS, unpacked
from trivet.backends.xla.types import configured, jax_dtype, reported, typed
from trivet.dtypes import DType
from trivet.errors import CapacityError, DTypeError, InputError
from trivet.graph import Graph, Node, to_numpy

#: name -> the weight in device memory
DeviceWeights = Callable[[Node], Any]
LIBRARY = Library(
    jax.Array, jnp.float32, jax_dtype, lambda array, dtype: jnp.asarray(typed(array, dtype)),
    LOWERINGS, PRODUCTS, unpacked,
)  # fmt: skip


def put(array: Any, dtype: DType, where: Any) -> Any:
    """A NumPy array in storage form, or an array of JAX's, in memory: on a device, or as a sharding says."""
    if isinstance(array, jax.Array):
        return jax.device_put(array, where)
    array = np.asarray(array)
    if array.dtype != to_numpy(dtype):
        raise DTypeError(f"[run] NumPy's {array.dtype} is not how {dtype} is stored")
    return jax.device_put(typed(array, dtype), where)


def as_function(graph: Graph, sizes: Mapping[str, int], placement: Placement) -> Callable[..., Any]:
    """(changed states, kept states, weights, inputs, buffers) -> (outputs, new states), in jax.numpy."""
    order = graph.nodes()

    def compute(changed: Any, kept: Any, weights: Any, inputs: Any, buffers: Any) -> Any:
        leaves = {"state": changed | kept, "weight": weights, "input": inputs}
        with placement.tracing():
            return computed(LIBRARY, graph, order, sizes, leaves, buffers)

    return compute


class XlaProgram:
    """A graph, ready to run. States that a run changes are donated to it: they are updated in place. A run
    that fails before it computes changes none; one that fails later loses them, and each use from then on
    says so."""

    def __init__(
        self,
        graph: Graph,
        weights: DeviceWeights,
        state: Mapping[str, Any],
        sizes: Mapping[str, int],
        placement: Placement,
    ) -> None:
        self._graph, self._placement, self._sizes = graph, placement, dict(sizes)
        self._order = graph.nodes()
        self._inputs = {n.attrs["name"]: n for n in self._order if n.op == "input"}
        states = {n.attrs["name"]: n for n in self._order if n.op == "state"}
        with configured(), reported("[compile]"):
            buffers = [n for n in self._order if n.op == "buffer"]
            self._buffers = [put(n.value, n.dtype, placement.whole) for n in buffers]
            self._weights = {n.attrs["name"]: weights(n) for n in self._order if n.op == "weight"}
            self._values = {k: self._first(n, state.get(k)) for k, n in states.items()}
        self._compiled: dict[tuple[tuple[str, int], ...], Any] = {}

    @property
    def state(self) -> Mapping[str, Any]:
        if any(a.is_deleted() for a in self._values.values()):
            raise CapacityError("[run] the state is lost: a run failed, or memory ran out, after it began")
        return self._values

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        with configured(), jax.default_device(self._placement.first), reported("[run]"):
            sizes, arguments = self.arguments(inputs)
            key = tuple(sorted(sizes.items()))
            if key not in self._compiled:
                self._compiled[key] = self._jitted(sizes)
            out, updates = self._compiled[key](*arguments)
        self._values.update(updates)
        return out  # type: ignore[no-any-return]

    def arguments(self, inputs: Mapping[str, Any]) -> tuple[dict[str, int], tuple[Any, ...]]:
        """The sizes of a run, and what its program is called with: see `as_function`."""
        if set(inputs) != set(self._inputs):
            raise InputError(f"[run] inputs {sorted(inputs)}, expected {sorted(self._inputs)}")
        sizes = dict(self._sizes)
        given = {name: self._given(node, inputs[name], sizes) for name, node in self._inputs.items()}
        state = self.state
        changed = {k: state[k] for k in self._graph.updates}
        kept = {k: v for k, v in state.items() if k not in changed}
        return sizes, (changed, kept, self._weights, given, self._buffers)

    def _jitted(self, sizes: Mapping[str, int]) -> Any:
        function = as_function(self._graph, sizes, self._placement)
        results = self._placement.results(self._graph, self._values)
        return jax.jit(function, donate_argnums=0, out_shardings=results)

    def _given(self, node: Node, array: Any, sizes: dict[str, int]) -> Any:
        array = checked(LIBRARY, node, array, sizes)
        return put(array, node.dtype, self._placement.of(node, array.shape))

    def _first(self, node: Node, array: Any) -> Any:
        if array is not None:
            # Donated later: never the caller's own array.
            return jnp.copy(self._given(node, array, self._sizes))
        shape = resolved(node.shape, self._sizes)
        if node.dtype.is_packed:
            shape = (*shape[:-1], node.dtype.row_bytes(shape[-1]))
        return jnp.zeros(shape, jax_dtype(node.dtype), device=self._placement.of(node, shape))
