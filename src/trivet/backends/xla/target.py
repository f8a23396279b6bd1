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
from trivet.backends.packed import stored
from trivet.backends.xla import BACKEND
from trivet.backends.xla.placement import Placement
from trivet.backends.xla.program import as_function
from trivet.backends.xla.types import configured, jax_dtype
from trivet.graph import Dim, Graph, Node

PLATFORMS = ("tpu", "cuda", "rocm")


def _shape(node: Node, sizes: Mapping[str, int], placement: Placement | None) -> Any:
    shape = tuple(n.at(sizes) if isinstance(n, Dim) else n for n in node.shape)
    dtype = stored(node.dtype)
    if dtype.is_packed:
        shape = (*shape[:-1], dtype.row_bytes(shape[-1]))
    where = None if placement is None else placement.of(node, shape)
    return jax.ShapeDtypeStruct(shape, jax_dtype(dtype), sharding=where)


def arguments(graph: Graph, sizes: Mapping[str, int], placement: Placement | None = None) -> tuple[Any, ...]:
    """The shapes and dtypes of what a program is called with."""
    found: dict[str, dict[str, Any]] = {"state": {}, "weight": {}, "input": {}}
    for node in graph.nodes():
        if node.op in found:
            found[node.op][node.attrs["name"]] = _shape(node, sizes, placement)
    changed = {k: found["state"].pop(k) for k in graph.updates}
    return changed, found["state"], found["weight"], found["input"], []


def exported(graph: Graph, sizes: Mapping[str, int], platforms: tuple[str, ...] = PLATFORMS) -> Any:
    """The graph lowered for these platforms as one `jax.export.Exported`; JAX's own client runs it, too."""
    graph = expand(graph, BACKEND.supports)
    with configured():
        checks = [export.DisabledSafetyCheck.platform()]
        function = jax.jit(as_function(graph, sizes, Placement(jax.devices("cpu"))), donate_argnums=0)
        lower = export.export(function, platforms=platforms, disabled_checks=checks)
        return lower(*arguments(graph, sizes))


def compiled(
    graph: Graph,
    sizes: Mapping[str, int],
    topology: Any,
    platform: str,
    options: Mapping[str, Any] | None = None,
    mesh: str = "",
) -> Any:
    """The graph compiled for the first device of a topology (`jax.experimental.topologies`), or for a mesh of
    its devices; `options` are XLA's own."""
    graph = expand(graph, BACKEND.supports)
    placement = Placement(topology.devices, mesh)
    with configured():
        given = arguments(graph, sizes, placement)
        results = placement.results(graph, given[0])
        function = jax.jit(as_function(graph, sizes, placement), donate_argnums=0, out_shardings=results)
        traced = function.trace(*given)
        return traced.lower(lowering_platforms=(platform,)).compile(dict(options or {}))
