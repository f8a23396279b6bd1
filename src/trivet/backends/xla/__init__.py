"""The XLA backend: JAX compiles a graph for TPU, CUDA and ROCm, and for its own client on the processor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from trivet.backends.base import Array, Backend, Program, Weights, expand
from trivet.backends.mesh import parse
from trivet.backends.packages import version
from trivet.backends.packed import in_rows, supports
from trivet.backends.xla import platforms
from trivet.dtypes import DType
from trivet.errors import InputError
from trivet.graph import Graph, Node


class XlaBackend(Backend):
    """Compiles graphs for one of JAX's platforms. Its arrays are JAX's, packed ones as bytes."""

    name = "xla"
    compiles_per_size = True

    def __init__(self, platform: str = platforms.HOST, mesh: str = "") -> None:
        self.platform, self.mesh = platform, mesh
        self._owned: WeakKeyDictionary[Any, dict[str, Array]] = WeakKeyDictionary()

    def on(self, device: str) -> XlaBackend:
        return _on(device if device in platforms.DEVICES else platforms.HOST)

    def over(self, mesh: str) -> XlaBackend:
        parse(mesh)
        made = XlaBackend(self.platform, mesh)
        made._placement()  # refuses one that does not fit the devices
        return made

    def unavailable(self) -> str | None:
        return platforms.missing(self.platform)

    def details(self) -> str:
        found = platforms.devices(self.platform)
        return f"JAX {version('jax')}, {len(found)} x {found[0].device_kind}"

    def supports(self, node: Node) -> bool:
        from trivet.backends.xla.lowerings import LOWERINGS
        from trivet.backends.xla.packed import DECODERS
        from trivet.backends.xla.products import PRODUCTS

        return supports(node, LOWERINGS, PRODUCTS, DECODERS)

    def compile(
        self,
        graph: Graph,
        *,
        weights: Weights | None = None,
        state: Mapping[str, Array] | None = None,
        sizes: Mapping[str, int] | None = None,
        threads: int = 0,
    ) -> Program:
        from trivet.backends.xla.program import XlaProgram

        lowered, placement = expand(graph, self.supports), self._placement()
        placement.refuse_idle(lowered)
        return XlaProgram(lowered, self._finder(weights, placement), state or {}, sizes or {}, placement)

    def _placement(self) -> Any:
        from trivet.backends.xla.placement import Placement

        return Placement(platforms.devices(self.platform), self.mesh)

    def _finder(self, weights: Weights | None, placement: Any) -> Any:
        """Weights in device memory. Programs whose weights one object's method finds share them."""
        from trivet.backends.xla.program import put

        owner = weights.__self__ if isinstance(weights, MethodType) else None
        kept: dict[str, Array] = {} if owner is None else self._owned.setdefault(owner, {})

        def find(node: Node) -> Array:
            name = node.attrs["name"]
            if weights is None:
                raise InputError(f"[compile] the graph reads the weight {name!r}, but none are given")
            if name not in kept:
                array = in_rows(np.asarray(weights(name)), node)
                kept[name] = put(array, node.dtype, placement.of(node, array.shape))
            return kept[name]

        return find

    def from_numpy(self, array: Any, dtype: DType) -> Array:
        from trivet.backends.xla.program import put
        from trivet.backends.xla.types import configured, reported

        with configured(), reported("[put]"):
            return put(array, dtype, platforms.devices(self.platform)[0])

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        from trivet.backends.xla.types import configured, reported

        # Programs run on while Python does: a failed one says so here.
        with configured(), reported("[fetch]"):
            found = np.asarray(array)
        return found.view(np.uint16) if found.dtype.name == "bfloat16" else found


@cache
def _on(platform: str) -> XlaBackend:
    return XlaBackend(platform)


BACKEND = _on(platforms.HOST)
