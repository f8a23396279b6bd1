"""A graph in the words of a library that traces: what the programs of jax.numpy and mlx.core share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trivet.backends.base import bind, logical, resolved
from trivet.dtypes import HALVES, DType
from trivet.errors import DTypeError
from trivet.graph import Graph, Node, to_numpy

#: Rows that only move, or read a 16-bit cache: to widen it would be to copy it.
_AS_THEY_ARE = {
    "reshape", "permute", "broadcast_to", "slice", "concat", "take", "kv_append", "paged_attention", "after",
}  # fmt: skip


class Library(NamedTuple):
    """A library's arrays, dtypes and lowerings."""

    array: Any  # the type of its arrays
    float32: Any
    dtype: Callable[[DType], Any]  # how it stores a dtype
    constant: Callable[[Any, DType], Any]  # an array of a NumPy array in storage form
    lowerings: Mapping[str, Callable[..., Any]]  # take 16-bit floats as float32
    products: Mapping[str, Callable[..., Any]]  # take their operands as they are stored
    unpacked: Callable[..., list[Any]]  # (row, inputs, their specs) -> the inputs, packed ones decoded


def computed(
    library: Library, graph: Graph, order: Sequence[Node], sizes: Mapping[str, int],
    leaves: Mapping[str, Mapping[str, Any]], buffers: Sequence[Any],
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """(outputs, new states) of a graph; `leaves` are the arrays by kind and name."""
    values: dict[Node, Any] = {}
    left = iter(buffers)
    for node in order:
        if node.op in leaves:
            values[node] = leaves[node.op][node.attrs["name"]]
        elif node.op == "buffer":
            values[node] = next(left)
        else:
            values[node] = _value(library, node, values, sizes)
    return {k: values[n] for k, n in graph.outputs.items()}, {k: values[n] for k, n in graph.updates.items()}


def _value(library: Library, node: Node, values: Mapping[Node, Any], sizes: Mapping[str, int]) -> Any:
    if node.op == "constant":
        return library.constant(node.value, node.dtype)
    inputs = [values[n] for n in node.inputs]
    if node.op == "item":
        return inputs[0][node.attrs["index"]] if len(node.inputs[0].specs) > 1 else inputs[0]
    specs = [n.spec for n in node.inputs]
    attrs = {k: resolved(v, sizes) for k, v in node.attrs.items()}
    if node.op in library.products:
        result = library.products[node.op](*library.unpacked(node.op, inputs, specs), **attrs)
    else:
        wide = [
            x.astype(library.float32) if s.dtype in HALVES and node.op not in _AS_THEY_ARE else x
            for x, s in zip(inputs, specs, strict=True)
        ]
        result = library.lowerings[node.op](*wide, **attrs)
    results = result if isinstance(result, tuple) else (result,)
    results = tuple(x.astype(library.dtype(s.dtype)) for x, s in zip(results, node.specs, strict=True))
    return results if len(results) > 1 else results[0]


def checked(library: Library, node: Node, array: Any, sizes: dict[str, int]) -> Any:
    """An array for a leaf, the library's or NumPy's, of the dtype and shape that the leaf has."""
    name = node.attrs["name"]
    if isinstance(array, library.array):
        if array.dtype != library.dtype(node.dtype):
            raise DTypeError(f"[run] {name!r} is {array.dtype}, expected {node.dtype}")
    else:
        array = np.asarray(array)
        if array.dtype != to_numpy(node.dtype):
            raise DTypeError(f"[run] {name!r} is NumPy's {array.dtype}, expected {node.dtype}")
    bind(sizes, node, logical(tuple(array.shape), node.dtype))
    return array
