"""Programs for devices that are not here: lowered, and compiled by the device's own compiler.

`jax.export` lowers for TPU, CUDA and ROCm anywhere. Where a device's compiler is installed (libtpu, JAX's
CUDA plugin), it compiles for a description of the device. Nothing is computed, and no array is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax import export

from trivet.backends.base import expand
from trivet.backends.xla import BACKEND
from trivet.backends.xla.packed import stored
from trivet.backends.xla.program import as_function
from trivet.backends.xla.types import jax_dtype
from trivet.graph import Dim, Graph, Node

PLATFORMS = ("tpu", "cuda", "rocm")


def _shape(node: Node, sizes: Mapping[str, int], sharding: Any) -> Any:
    shape = tuple(n.at(sizes) if isinstance(n, Dim) else n for n in node.shape)
    dtype = stored(node.dtype)
    if dtype.is_packed:
        shape = (*shape[:-1], dtype.row_bytes(shape[-1]))
    return jax.ShapeDtypeStruct(shape, jax_dtype(dtype), sharding=sharding)


def arguments(graph: Graph, sizes: Mapping[str, int], sharding: Any = None) -> tuple[Any, ...]:
    """The shapes and dtypes of what a program is called with."""
    found: dict[str, dict[str, Any]] = {"state": {}, "weight": {}, "input": {}}
    for node in graph.nodes():
        if node.op in found:
            found[node.op][node.attrs["name"]] = _shape(node, sizes, sharding)
    changed = {k: found["state"].pop(k) for k in graph.updates}
    return changed, found["state"], found["weight"], found["input"], []


def _jitted(graph: Graph, sizes: Mapping[str, int], **options: Any) -> Any:
    return jax.jit(as_function(graph, sizes), donate_argnums=0, **options)


def exported(graph: Graph, sizes: Mapping[str, int], platforms: tuple[str, ...] = PLATFORMS) -> Any:
    """The graph lowered for these platforms as one `jax.export.Exported`; JAX's own client runs it, too."""
    graph = expand(graph, BACKEND.supports)
    with jax.enable_x64(True):
        checks = [export.DisabledSafetyCheck.platform()]
        lower = export.export(_jitted(graph, sizes), platforms=platforms, disabled_checks=checks)
        return lower(*arguments(graph, sizes))


def compiled(graph: Graph, sizes: Mapping[str, int], topology: Any, platform: str) -> Any:
    """The graph compiled for the first device of a topology (`jax.experimental.topologies`)."""
    graph = expand(graph, BACKEND.supports)
    sharding = jax.sharding.SingleDeviceSharding(topology.devices[0])
    with jax.enable_x64(True):
        traced = _jitted(graph, sizes).trace(*arguments(graph, sizes, sharding))
        return traced.lower(lowering_platforms=(platform,)).compile()
