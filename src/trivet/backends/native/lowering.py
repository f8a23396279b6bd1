"""Making every call one that the core has a kernel for.

In this order: the call as it is; the call in float32 between casts, if its floats are f16 or bf16; the row's
fallback, lowered in turn. What is left after that is an UnsupportedError that names the row and the dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trivet.dtypes import HALVES, DType, f32
from trivet.errors import UnsupportedError
from trivet.graph import LEAVES, Graph, Node
from trivet.ops.table import TABLE, call
from trivet.plan import rebuilt, rewrite, rewrite_graph

#: supports(row name, dtypes of the inputs, dtypes of the outputs)
Supports = Callable[[str, tuple[DType, ...], tuple[DType, ...]], bool]


def lower(graph: Graph, supports: Supports) -> Graph:
    """The graph with every call replaced by calls that `supports` allows."""
    return rewrite_graph(graph, lambda node, inputs: _lower(node, inputs, supports, ()))


def dtypes_of(node: Node) -> tuple[tuple[DType, ...], tuple[DType, ...]]:
    return tuple(n.dtype for n in node.inputs), tuple(s.dtype for s in node.specs)


def _lower(
    node: Node, inputs: tuple[Node, ...], supports: Supports, inside: tuple[str, ...]
) -> Node | tuple[Node, ...]:
    """`inside` lists the rows whose fallbacks led here."""
    if node.op in LEAVES:
        return node
    if supports(node.op, *dtypes_of(node)):
        return rebuilt(node, inputs)
    if any(d in HALVES for kinds in dtypes_of(node) for d in kinds):
        wide = _widened(node, inputs, supports)
        if wide is not None:
            return wide
    fallback = TABLE[node.op].fallback
    if fallback is None or node.op in inside:
        raise UnsupportedError(f"[{node.op}] {_what(node, inside)}")
    made = fallback(*inputs, **node.attrs)
    outputs = made if isinstance(made, tuple) else (made,)
    lowered = rewrite(
        outputs, lambda n, i: _lower(n, i, supports, (*inside, node.op)), known={i: i for i in inputs}
    )
    return tuple(lowered) if isinstance(made, tuple) else lowered[0]


def _what(node: Node, inside: Sequence[str]) -> str:
    takes, gives = (", ".join(map(str, kinds)) for kinds in dtypes_of(node))
    via = f" (inside {' > '.join(inside)})" if inside else ""
    return f"the cpu device has no kernel for ({takes}) -> ({gives}){via}, and no simpler way to compute it"


def _widened(node: Node, inputs: tuple[Node, ...], supports: Supports) -> Node | tuple[Node, ...] | None:
    """The call in float32, or None if that is not supported either. Packed inputs stay as they are."""
    takes, gives = (tuple(f32 if d in HALVES else d for d in kinds) for kinds in dtypes_of(node))
    if node.op == "cast" or not supports(node.op, takes, gives):
        return None
    made = TABLE[node.op].node([_cast(n, d) for n, d in zip(inputs, takes, strict=True)], node.attrs)
    if isinstance(made, tuple):
        return tuple(_cast(n, spec.dtype) for n, spec in zip(made, node.specs, strict=True))
    return _cast(made, node.specs[0].dtype)


def _cast(node: Node, dtype: DType) -> Node:
    result: Node = node if node.dtype is dtype else call("cast", node, dtype=dtype.name)
    return result
