"""Gradients: a reverse walk over a graph by the gradient column of the table. Graph in, graph out.

Only what depends on a wanted node is visited, and a rule is told which of its inputs are wanted. Nothing is
computed here: the gradients are nodes, built with the same op functions as any others.
"""

from __future__ import annotations

from collections.abc import Sequence

from trivet.errors import DTypeError, ShapeError, UnsupportedError
from trivet.graph import LEAVES, Node, item, walk
from trivet.ops import add, full, scatter_add
from trivet.ops.table import TABLE, GradientContext, NoGradient


def grad(
    outputs: Node | Sequence[Node], wrt: Sequence[Node], seeds: Sequence[Node] | None = None
) -> list[Node | None]:
    """The gradient of `outputs` in each node of `wrt`: a node of its shape and dtype, or None where no output
    depends on it by a path of floating values.

    `seeds` are the gradients of the outputs themselves, of their shapes and dtypes. Without them every output
    must be a single number (shape ()), and the gradient is that of their sum. Raises UnsupportedError, with
    the row's reason, where a path leads through a row without a gradient.

    >>> from trivet import dtypes, graph, ops
    >>> x, w = graph.input("x", (4, 8), dtypes.f32), graph.weight("w", (5, 8), dtypes.f32)
    >>> grad(ops.mean(ops.linear(x, w)), [w, x])
    [<matmul f32[5, 8]>, <linear_input_grad f32[4, 8]>]
    """
    nodes = [outputs] if isinstance(outputs, Node) else list(outputs)
    starts = _seeds(nodes, seeds)
    active = _active(nodes, wrt)
    sums = _Sums()
    for node, seed in zip(nodes, starts, strict=True):
        if node in active:
            sums.add(node, seed)
    for node in reversed(walk(nodes)):
        if node in active and node in sums.of and node.op not in LEAVES:
            _step(node, active, sums)
    return [sums.single(node) for node in wrt]


class _Sums:
    """What has arrived at each node so far, an entry per output."""

    def __init__(self) -> None:
        self.of: dict[Node, list[Node | None]] = {}

    def add(self, node: Node, g: Node, output: int = 0) -> None:
        entries = self.of.setdefault(node, [None] * len(node.specs))
        before = entries[output]
        entries[output] = g if before is None else _sum(before, g)

    def single(self, node: Node) -> Node | None:
        return self.of[node][0] if node in self.of else None


def _sum(a: Node, b: Node) -> Node:
    """a + b. Where one is rows added to zeros (the gradient of an embedding, which may also be the output
    matrix), they are added to the other: no array of the table's size is filled and read for them."""
    for whole, rows in ((a, b), (b, a)):
        if rows.op == "scatter_add" and _is_zero(rows.inputs[0]):
            _, indices, updates = rows.inputs
            return scatter_add(whole, indices, updates, rows.attrs["axis"])  # type: ignore[no-any-return]
    return add(a, b)  # type: ignore[no-any-return]


def _is_zero(node: Node) -> bool:
    return node.op == "broadcast_to" and node.inputs[0].op == "constant" and not node.inputs[0].value.any()


def _seeds(outputs: Sequence[Node], seeds: Sequence[Node] | None) -> Sequence[Node]:
    for node in outputs:
        if not node.dtype.is_float:
            raise DTypeError(f"[grad] the output {node!r} is not floating, so nothing has a slope")
    if seeds is None:
        for node in outputs:
            if node.shape != ():
                raise ShapeError(
                    f"[grad] the output {node!r} is not a single number; give seeds, or reduce it"
                )
        return [full((), 1.0, node.dtype) for node in outputs]
    if len(seeds) != len(outputs):
        raise ShapeError(f"[grad] {len(seeds)} seeds for {len(outputs)} outputs")
    for node, seed in zip(outputs, seeds, strict=True):
        _check("a seed", seed, node)
    return seeds


def _check(what: str, g: Node, node: Node) -> None:
    if g.spec != node.spec:
        raise ShapeError(f"[grad] {what} is {g.spec!r}, wanted {node.spec!r}")


def _active(outputs: Sequence[Node], wrt: Sequence[Node]) -> set[Node]:
    """The nodes that depend on a wanted node."""
    active = set(wrt)
    for node in walk(outputs):
        if any(i in active for i in node.inputs):
            active.add(node)
    return active


def _step(node: Node, active: set[Node], sums: _Sums) -> None:
    """Passes what has arrived at `node` on to its inputs."""
    if node.op == "item":
        g = sums.of[node][0]
        assert g is not None
        sums.add(node.inputs[0], g, node.attrs["index"])
        return
    needs = tuple(i in active and _floating(i) for i in node.inputs)
    if not any(needs):
        return
    rule = TABLE[node.op].gradient
    if isinstance(rule, NoGradient):
        raise UnsupportedError(f"[{node.op}] has no gradient: {rule.reason}")
    ys = (node,) if len(node.specs) == 1 else tuple(item(node, i) for i in range(len(node.specs)))
    grads = rule(GradientContext(node.inputs, node.attrs, ys, tuple(sums.of[node]), needs))
    assert len(grads) == len(node.inputs), f"{node.op}: {len(grads)} gradients for {len(node.inputs)} inputs"
    for source, g, need in zip(node.inputs, grads, needs, strict=True):
        if need and g is not None:
            assert g.spec == source.spec, f"{node.op}: the gradient of {source!r} is {g!r}"
            sums.add(source, g)


def _floating(node: Node) -> bool:
    """Whether a gradient can pass; a call with several outputs is asked item by item."""
    return len(node.specs) != 1 or node.dtype.is_float
