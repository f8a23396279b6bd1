"""Where the arrays of a program stand: on one device, or over a mesh of several.

"data:4,model:2" is a mesh of eight devices. Tokens are divided four ways along "data", matrices two ways
along "model", as Megatron divides them: a layer's first matrices by their rows, so that each device has some
of the heads or of the hidden units, and those that lead back (`SUMMED`) by their columns. XLA derives
the rest and adds up across devices, so a model is written as for one device. What an axis does not divide
evenly stands whole on each of its devices; an axis that would divide nothing is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from trivet.backends.mesh import parse
from trivet.dtypes import i32
from trivet.errors import DeviceUnavailable, InputError
from trivet.graph import Dim, Graph, Node

#: matrices whose products are summed over the devices of "model"
SUMMED = ("attn_output", "ffn_down")
#: counts of tokens are rounded up to divisors of this, or to multiples (`bucket`)
TOKENS = 256

_tracing: ContextVar[Placement | None] = ContextVar("_tracing", default=None)


class Placement:
    """Says where each leaf of a graph stands. Without a mesh, on the first of the devices."""

    def __init__(self, devices: Sequence[Any], mesh: str = "") -> None:
        self.first = devices[0]
        self.mesh: Any = None
        if mesh:
            axes = parse(mesh)
            count = math.prod(axes.values())
            if TOKENS % axes.get("data", 1):
                raise InputError(f"[mesh] {mesh!r}: data:{axes['data']} does not divide {TOKENS} tokens")
            if count > len(devices):
                raise DeviceUnavailable(f"[mesh] {mesh!r} wants {count} devices; there are {len(devices)}")
            grid = np.array(devices[:count]).reshape(*axes.values())
            self.mesh = Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))

    @property
    def has_kernels(self) -> bool:
        """Whether kernels of ours may stand in a program: XLA divides none over a mesh. They read the rows of
        packed weights as they are; TPU would turn those that do not fill its lanes."""
        return self.mesh is None and self.first.platform == "tpu"

    @property
    def whole(self) -> Any:
        """On every device."""
        return SingleDeviceSharding(self.first) if self.mesh is None else self._named(())

    def of(self, node: Node, shape: Sequence[int]) -> Any:
        """Where a leaf stands. `shape` is that of its array: a packed row counts bytes."""
        if self.mesh is not None:
            return self._named(self._divided(node, shape))
        if self.has_kernels and node.op == "weight" and node.dtype.is_packed:
            return Format(Layout(tuple(range(len(shape)))), self.whole)
        return self.whole

    def refuse_idle(self, graph: Graph) -> None:
        """Raises InputError if the graph has matrices, and "model" divides none of them."""
        over = 1 if self.mesh is None else self.mesh.shape.get("model", 1)
        leaves = [n for n in graph.nodes() if n.op in ("weight", "state") and n.ndim > 1]
        sizes = {n: tuple(s for s in n.shape if isinstance(s, int)) for n in leaves}
        found = [n for n in leaves if len(sizes[n]) == n.ndim and divided(n)[0] is not None]
        if over > 1 and found and not any(self._divided(n, _stored(n, sizes[n])) for n in found):
            raise InputError(f"[mesh] model:{over} divides none of {len(found)} matrices, such as {found[0]}")

    def results(self, graph: Graph, states: Mapping[str, Any]) -> Any:
        """Where outputs and new states go: outputs to every device, states to where they were."""
        return dict.fromkeys(graph.outputs, self.whole), {k: states[k].sharding for k in graph.updates}

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """`spread` divides over this mesh inside the block."""
        token = _tracing.set(self)
        try:
            yield
        finally:
            _tracing.reset(token)

    def _named(self, axes: Sequence[str | None]) -> Any:
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def _divided(self, node: Node, shape: Sequence[int]) -> Sequence[str | None]:
        """The mesh's axis along each axis of a leaf."""
        axis, over = divided(node)
        if axis is None or over not in self.mesh.shape:
            return ()
        pieces = shape[axis]
        if node.dtype.is_packed and axis == len(shape) - 1:
            pieces = pieces // node.dtype.nbytes if pieces % node.dtype.nbytes == 0 else 0
        if pieces == 0 or pieces % self.mesh.shape[over]:
            return ()
        return [None] * axis + [over]


def _stored(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a leaf's array."""
    return (*shape[:-1], node.dtype.row_bytes(shape[-1])) if node.dtype.is_packed else shape


def divided(node: Node) -> tuple[int | None, str]:
    """Along which axis a leaf is divided, if it is, and over which axis of the mesh."""
    if node.op == "input" and node.dtype is i32 and node.ndim == 1:
        size = node.shape[0]
        return (0 if isinstance(size, Dim) and size.name == "T" else None), "data"
    if node.ndim < 2 or (node.op == "input" and not node.dtype.is_float):
        return None, "model"
    name = re.sub(r"^[mvg]\.|@\d+$", "", node.attrs["name"])
    if name.startswith("kv."):
        return 1, "model"  # heads
    weight, _, adapter = name.partition(".lora_")
    summed = weight.removesuffix(".weight").rpartition(".")[2] in SUMMED
    if adapter:
        return (int(summed) if (adapter == "a") == summed else None), "model"
    return int(summed), "model"


def has_kernels() -> bool:
    """`Placement.has_kernels` of the program that is traced."""
    placement = _tracing.get()
    return placement is not None and placement.has_kernels


def spread(x: Any, axis: int = 0) -> Any:
    """x, a piece of a loop's rows, with its rows divided over "data": a loop over pieces of divided tokens
    would otherwise be run in full on every device."""
    placement = _tracing.get()
    if placement is None or placement.mesh is None or "data" not in placement.mesh.shape:
        return x
    if x.shape[axis] % placement.mesh.shape["data"]:
        return x
    free = PartitionSpec.UNCONSTRAINED
    spec = PartitionSpec(*("data" if i == axis else free for i in range(x.ndim)))
    return jax.lax.with_sharding_constraint(x, NamedSharding(placement.mesh, spec))
