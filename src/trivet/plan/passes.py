"""Graph to graph: rewriting node by node, and doing equal work once.

Nothing here changes what a graph computes. Dead nodes need no pass: a graph is what its outputs reach.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from trivet.errors import InputError
from trivet.graph import LEAVES, Graph, Node, item, walk

#: rule(node, its rewritten inputs) -> the node to use instead, or the items of a call with several outputs
Rule: TypeAlias = Callable[[Node, tuple[Node, ...]], Node | tuple[Node, ...]]


def rewrite(outputs: Sequence[Node], rule: Rule, known: Mapping[Node, Node] | None = None) -> list[Node]:
    """The outputs with every node replaced by what `rule` makes of it, inputs before users. Nodes in
    `known` are replaced by what stands there, and the rule does not see them."""
    done: dict[Node, Node | tuple[Node, ...]] = dict(known or {})
    for node in walk(outputs, known=done.copy()):
        if node.op == "item":
            done[node] = _pick(done[node.inputs[0]], node.attrs["index"])
        else:
            done[node] = rule(node, tuple(map(_single, (done[i] for i in node.inputs))))
    return [_single(done[node]) for node in outputs]


def rebuilt(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The same call on other inputs; the node itself when they are its own."""
    same = all(a is b for a, b in zip(node.inputs, inputs, strict=True))
    return node if same else Node(node.op, inputs, node.attrs, node.specs, node.value)


def rewrite_graph(graph: Graph, rule: Rule) -> Graph:
    """`rewrite` of everything a graph gives."""
    nodes = rewrite([*graph.outputs.values(), *graph.updates.values()], rule)
    split = len(graph.outputs)
    return Graph(
        dict(zip(graph.outputs, nodes[:split], strict=True)),
        dict(zip(graph.updates, nodes[split:], strict=True)),
    )


def deduplicate(graph: Graph) -> Graph:
    """Equal leaves, equal constants and equal calls become one node. Two leaves with one name but unlike
    shapes or dtypes raise InputError."""
    seen: dict[Hashable, Node] = {}
    items: dict[tuple[Node, int], Node] = {}

    def rule(node: Node, inputs: tuple[Node, ...]) -> Node | tuple[Node, ...]:
        key = _key(node, tuple(map(id, inputs)))
        first = seen.get(key)
        if first is None:
            first = seen[key] = rebuilt(node, inputs)
        elif node.op in LEAVES and first.specs != node.specs:
            raise InputError(
                f"[graph] two leaves are the {node.op} {node.attrs['name']!r}: {first.spec} and {node.spec}"
            )
        if len(first.specs) == 1:
            return first
        return tuple(items.setdefault((first, i), item(first, i)) for i in range(len(first.specs)))

    return rewrite_graph(graph, rule)


def side_by_side(nodes: Sequence[Node]) -> list[Node]:
    """The same nodes in an order as good, with the `linear` calls on one input together, where the first of
    them is, and among them those with one dtype of weight: the core makes one piece of work of these. Nodes
    come and go inputs before users."""
    siblings: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.op == "linear" and all(n.op in LEAVES for n in node.inputs[1:]):
            siblings.setdefault(node.inputs[0], []).append(node)
    for calls in siblings.values():
        dtypes = list(dict.fromkeys(n.inputs[1].dtype for n in calls))
        calls.sort(key=lambda n: dtypes.index(n.inputs[1].dtype))
    order: dict[Node, None] = {}
    for node in nodes:
        group = siblings.get(node.inputs[0], []) if node.op == "linear" else []
        for member in group if node in group else [node]:
            order.update(dict.fromkeys((*member.inputs[1:], member) if group else (member,)))
    return list(order)


def _pick(made: Node | tuple[Node, ...], index: int) -> Node:
    if isinstance(made, tuple):
        return made[index]
    return made if len(made.specs) == 1 else item(made, index)


def _single(made: Node | tuple[Node, ...]) -> Node:
    assert isinstance(made, Node), "a call with several outputs is read through item()"
    return made


def signature(graph: Graph) -> Hashable:
    """A key that graphs share if and only if they are built alike, whatever their nodes are called: the same
    calls in the same order on the same leaves, with equal attributes, constants, outputs and updates."""
    nodes = graph.nodes()
    at = {node: i for i, node in enumerate(nodes)}
    given = [*graph.outputs.items(), *graph.updates.items()]
    keys = [_key(node, tuple(at[i] for i in node.inputs)) for node in nodes]
    leaves = tuple(node.specs for node in nodes if node.op in LEAVES)
    return tuple(keys), leaves, len(graph.outputs), tuple((name, at[node]) for name, node in given)


def _key(node: Node, inputs: tuple[int, ...]) -> Hashable:
    """What a call or leaf is, with its inputs as numbers."""
    if node.op == "constant":
        return node.op, node.specs, np.ascontiguousarray(node.value).tobytes()
    if node.op == "buffer":
        return node.op, id(node.value)
    if node.op in LEAVES:
        return node.op, node.attrs["name"]
    return node.op, inputs, tuple((k, _frozen(v)) for k, v in sorted(node.attrs.items()))


def _frozen(value: Any) -> Hashable:
    """An attribute as something that can be a key; 1, 1.0 and True stay apart, and 0.0 from -0.0."""
    kind = type(value)
    if kind is tuple or kind is list:
        return tuple(map(_frozen, value))
    if kind in (int, str, bool):
        return kind, value
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return kind, repr(value)
