"""The MLX backend: Apple's GPUs by Metal, and MLX's own build for processors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from trivet.backends.base import Array, Backend, Program, Weights, expand
from trivet.backends.mlx import platforms
from trivet.backends.packages import version
from trivet.backends.packed import in_rows, supports
from trivet.dtypes import DType, f64
from trivet.errors import InputError, UnsupportedError
from trivet.graph import LEAVES, Graph, Node

_UNSUPPORTED: Mapping[str, str] = {"cast": "to or from f64: Metal has no 64-bit floats"}


class MlxBackend(Backend):
    """Runs graphs on one of MLX's devices. Its arrays are MLX's: packed ones as bytes, f64 as its bits.

    Elementwise chains are compiled into kernels (`fused`) for Metal. MLX would do so for a processor by the
    system's C++ compiler, a second for each: not unless asked.
    """

    name = "mlx"
    compiles_per_size = True
    unsupported = _UNSUPPORTED

    def __init__(self, platform: str = platforms.HOST, fused: bool | None = None) -> None:
        self.platform = platform
        # Metal: elementwise chains become kernels, by mx.compile
        self.fused = platform == platforms.METAL if fused is None else fused
        self._owned: WeakKeyDictionary[Any, dict[str, Array]] = WeakKeyDictionary()

    def on(self, device: str) -> MlxBackend:
        return _on(device if device == platforms.METAL else platforms.HOST)

    def unavailable(self) -> str | None:
        return platforms.missing(self.platform)

    def details(self) -> str:
        return f"MLX {version('mlx')}, {platforms.described(self.platform)}"

    def supports(self, node: Node) -> bool:
        from trivet.backends.mlx.lowerings import LOWERINGS
        from trivet.backends.mlx.packed import DECODERS
        from trivet.backends.mlx.products import PRODUCTS

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
        from trivet.backends.mlx.program import MlxProgram

        lowered = expand(graph, self.supports)
        _refuse_f64(lowered)
        device = platforms.device(self.platform)
        return MlxProgram(lowered, self._finder(weights), state or {}, sizes or {}, device, self.fused)

    def _finder(self, weights: Weights | None) -> Any:
        """Weights as MLX's arrays. Programs whose weights one object's method finds share them."""
        from trivet.backends.mlx.affine import arranged
        from trivet.backends.mlx.types import put

        owner = weights.__self__ if isinstance(weights, MethodType) else None
        kept: dict[str, Array] = {} if owner is None else self._owned.setdefault(owner, {})

        def find(node: Node) -> Array:
            name = node.attrs["name"]
            if weights is None:
                raise InputError(f"[compile] the graph reads the weight {name!r}, but none are given")
            if name not in kept:
                array = in_rows(np.asarray(weights(name)), node)
                kept[name] = arranged(array, node.dtype) or put(array, node.dtype)
            return kept[name]

        return find

    def from_numpy(self, array: Any, dtype: DType) -> Array:
        from trivet.backends.mlx.types import put, reported

        with reported("[put]"):
            return put(array, dtype)

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        from trivet.backends.mlx.types import fetched, reported

        with reported("[fetch]"):
            return fetched(array)


def _refuse_f64(graph: Graph) -> None:
    """64-bit floats may pass through, and `rope_table` reads their bits."""
    for node in graph.nodes():
        kinds = {s.dtype for s in node.specs}
        if node.op != "rope_table":
            kinds |= {s.dtype for n in node.inputs for s in n.specs}
        if f64 in kinds and node.op not in LEAVES:
            raise UnsupportedError(f"[{node.op}] f64: Metal has no 64-bit floats; cast on the cpu device")


@cache
def _on(platform: str) -> MlxBackend:
    return MlxBackend(platform)


BACKEND = _on(platforms.HOST)
