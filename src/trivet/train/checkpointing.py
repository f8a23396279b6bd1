"""Activation checkpointing (arXiv:1604.06174) as a graph pass: gradients that compute a block's inner values
anew, from the block's input, in place of holding them since the forward pass.

The bits are those of `autograd.grad`: the same calls run on the same values, only later. What is held is the
input of each block and, at any time, the inside of one.

A block's input x and the gradient g that arrives at its output are one value each, whatever the model: so the
second computation is that of the first on `after(x, g)`, and cannot begin before it is needed.

Without checkpointing, too, what costs little more than reading it is computed anew: `frugal`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trivet.autograd import grad
from trivet.graph import LEAVES, Node, walk
from trivet.ops import after, full
from trivet.plan import rebuilt

_BLOCK = re.compile(r"blk\.(\d+)\.")
OUTSIDE = -1  # the block of what belongs to none
#: rows that take little more time than reading their inputs
CHEAP = frozenset(
    {"cast", "geglu", "gelu_erf", "gelu_tanh", "layer_norm", "relu", "rms_norm", "silu", "swiglu"}
)


def frugal(output: Node, wrt: Sequence[Node]) -> list[Node | None]:
    """The gradient of `output`, a single number, in each node of `wrt`, as `autograd.grad` gives it. The
    results of cheap rows whose inputs are held are not: the backward pass makes them anew."""
    seed = full((), 1.0, output.dtype)
    found = grad(output, wrt, [seed])
    order = walk([g for g in found if g is not None])
    backward = _descendants(order, lambda node: node is seed)
    read = {i for node in backward for i in node.inputs} - backward
    late: dict[Node, Node] = {}
    made: dict[Node, Node] = {}
    for node in order:
        if node in backward:
            for source in node.inputs:
                if source in read and source not in late and _is_cheap(source, read):
                    g = next(made[i] for i in node.inputs if i in backward)
                    late[source] = rebuilt(source, tuple(after(i, g) for i in source.inputs))
            made[node] = rebuilt(node, tuple(made.get(i) or late.get(i, i) for i in node.inputs))
    return [made.get(g, g) if g is not None else None for g in found]


def _is_cheap(node: Node, held: set[Node]) -> bool:
    """Whether a value may be made anew: of what is there, and not of a few numbers."""
    return node.op in CHEAP and node.ndim > 1 and all(i.op in LEAVES or i in held for i in node.inputs)


def checkpointed(
    output: Node, wrt: Sequence[Node], boundaries: Sequence[Node] | None = None
) -> list[Node | None]:
    """The gradient of `output`, a single number, in each node of `wrt`, as `autograd.grad` gives it.

    `boundaries` are values that the whole computation passes through, in order: what lies between two of them
    is computed anew. By default they are `block_inputs(output)`."""
    cuts = block_inputs(output) if boundaries is None else list(boundaries)
    seed = full((), 1.0, output.dtype)
    found = grad(output, [*wrt, *cuts], [seed])
    gradients, arriving = found[: len(wrt)], found[len(wrt) :]
    made = _Rewriting(seed, cuts, arriving).of([g for g in gradients if g is not None])
    return [made[g] if g is not None else None for g in gradients]


# --- where blocks begin ----------------------------------------------------------------------------------


def block_inputs(output: Node) -> list[Node]:
    """What enters each decoder block, and what leaves the last: nodes that every path from the token
    embedding to `output` passes, where the numbers N of the weights `blk.N.*` used there change."""
    order = walk([output])
    stream = _descendants(order, lambda node: node.op == "embedding")
    furthest = _last_uses(order, stream)
    numbers = _block_numbers(order, stream)
    reach, block = 0, OUTSIDE
    cut: Node | None = None
    found: list[Node] = []
    for at, node in enumerate(order):
        if node not in stream:
            continue
        number = numbers.get(node, block)
        if number != block and cut is not None and cut not in found:
            found.append(cut)
        block = number
        if reach <= at and len(node.specs) == 1:  # nothing before it is used after it
            cut = node
        reach = max(reach, furthest[node])
    return found


def _descendants(order: Sequence[Node], starts: Callable[[Node], bool]) -> set[Node]:
    """The first node that `starts` holds for, and all that depends on it."""
    found: set[Node] = set()
    for node in order:
        first = not found and starts(node)
        if first or any(i in found for i in node.inputs):
            found.add(node)
    return found


def _last_uses(order: Sequence[Node], stream: set[Node]) -> dict[Node, int]:
    last = dict.fromkeys(stream, 0)
    for at, node in enumerate(order):
        for source in node.inputs:
            if source in stream:
                last[source] = at
    return last


def _block_numbers(order: Sequence[Node], stream: set[Node]) -> dict[Node, int]:
    """The block whose weights a node of the stream uses, for those that use weights."""
    numbers: dict[Node, int] = {}
    for node in order:
        if node.op in ("weight", "state", "input"):
            match = _BLOCK.match(node.attrs["name"])
            if match or node.op != "input":  # a parameter may be an input, too
                numbers[node] = int(match[1]) if match else OUTSIDE
        else:
            beside = [numbers[i] for i in node.inputs if i in numbers and i not in stream]
            if beside:
                numbers[node] = max(beside)
    return numbers


# --- the rewriting ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Rewriting:
    """`cuts[k]` enters block k; `arriving[k]` is the gradient at cuts[k], None where there is none."""

    seed: Node
    cuts: list[Node]
    arriving: list[Node | None]
    members: dict[int, list[Node]] = field(default_factory=dict)  # block -> its inner values, in order
    copies: dict[int, Mapping[Node, Node]] = field(default_factory=dict)

    def of(self, gradients: Sequence[Node]) -> dict[Node, Node]:
        """Every node of the gradients' graph, and what stands in its place."""
        order = walk(gradients)
        backward = _descendants(order, lambda node: node is self.seed)
        blocks = self._blocks([n for n in order if n not in backward])
        ready: dict[Node, int] = {}  # node -> the blocks whose output gradients it depends on, as bits
        made: dict[Node, Node] = {}
        opens = {g: 1 << (k - 1) for k, g in enumerate(self.arriving) if k > 0 and g is not None}
        for node in order:
            if node not in backward:
                made[node] = node
                continue
            bits = 0
            for source in node.inputs:
                bits |= ready.get(source, 0)
            inputs = tuple(self._place(i, blocks.get(i), bits, made) for i in node.inputs)
            made[node] = rebuilt(node, inputs)
            ready[node] = bits | opens.get(node, 0)
        return made

    def _blocks(self, forward: Sequence[Node]) -> dict[Node, int]:
        """The block of each inner value: of what depends on the block's input, and of what only that uses
        (a dropout's mask, a weight cast to bf16). The cuts and what follows the last of them are held."""
        last, at = len(self.cuts) - 1, {cut: k for k, cut in enumerate(self.cuts)}
        level: dict[Node, int] = {}
        for node in forward:
            level[node] = at.get(node, max((level[i] for i in node.inputs), default=OUTSIDE))
        users: dict[Node, set[int]] = {}
        for node in reversed(forward):
            if level[node] == OUTSIDE and node.op not in LEAVES and len(users.get(node, ())) == 1:
                (level[node],) = users[node]
            own = level[node] - 1 if node in at else level[node]  # a cut is made in the block before
            for source in node.inputs:
                users.setdefault(source, set()).add(own)
        inner = {n: k for n, k in level.items() if 0 <= k < last and n not in at and n.op not in LEAVES}
        for node in forward:
            if node in inner:
                self.members.setdefault(inner[node], []).append(node)
        return inner

    def _place(self, source: Node, block: int | None, ready: int, made: Mapping[Node, Node]) -> Node:
        if block is None or not ready >> block & 1:
            return made[source]
        if block not in self.copies:
            self.copies[block] = self._again(block, made)
        return self.copies[block][source]

    def _again(self, block: int, made: Mapping[Node, Node]) -> Mapping[Node, Node]:
        """The inner values of a block, computed once more when the gradient of its output is known."""
        g = self.arriving[block + 1]
        assert g is not None
        g, cut = made[g], self.cuts[block]
        again: dict[Node, Node] = {cut: after(cut, g)}
        for node in self.members[block]:
            if not any(i in again for i in node.inputs):  # it does not depend on the input: its leaves wait
                late = {i: after(i, g) for i in node.inputs if i.op in ("input", "weight", "state")}
            else:
                late = again
            again[node] = rebuilt(node, tuple(late.get(i, i) for i in node.inputs))
        return again
