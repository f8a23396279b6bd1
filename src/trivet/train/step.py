"""A training step as one graph: forward, backward, accumulation, clipping and AdamW.

Inputs of a run, a flat list of T tokens that holds sequences one behind the other:

    ids, targets, positions, starts   i32 [T]; a target of -100 is not trained on
    tokens                            f32 (), the targets of the whole step, all its micro-batches
    rates                             f32 [3], see `optim.AdamW.rates`
    keep, apply                       f32 (), only with accumulation: keep is 0 in the first micro-batch, else
                                      1; apply is 1 in the last, else 0
    key                               i64 [2], only with dropout

Outputs: `loss`, the sum over targets; `peak` and `ratio`, of which the norm of the summed gradients is the
product; `scale`, what gradients were multiplied with, 0 where nothing was changed. States: the parameters
under their own names, their moments as `m.<name>` and `v.<name>`, and sums of gradients as `g.<name>`.

A step whose loss or gradients are not finite changes nothing: adamw reads its `scale` before it writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trivet import graph, ops
from trivet.autograd import grad
from trivet.dtypes import DType, f32, i32, i64
from trivet.graph import Dim, Graph, Node
from trivet.lora import Lora, adapt
from trivet.models.checkpoint import Checkpoint
from trivet.nn.attention import packed
from trivet.optim import AdamW

LARGEST = float(np.finfo(np.float32).max)
#: an averaged gradient whose square is still finite
LARGEST_GRADIENT = 1e18


class Parameters(Checkpoint):
    """A checkpoint whose tensors are trained: float32 states, computed with in `compute`."""

    def __init__(self, base: Checkpoint, compute: DType = f32) -> None:
        super().__init__(base.path, base.metadata, base.tensors, base.gguf)
        self.compute = compute
        self.states: dict[str, Node] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.used: dict[str, Node] = {}  # what a gradient is wanted of

    def find(self, name: str, shape: tuple[int, ...]) -> Node | None:
        if super().find(name, shape) is None:
            return None
        if name not in self.states:
            state = self.states[name] = graph.state(name, shape, f32)
            self.shapes[name] = shape
            wide = self.compute is f32 or len(shape) < 2
            self.used[name] = state if wide else ops.cast(state, self.compute)
        return self.used[name]


@dataclass(frozen=True, slots=True)
class Step:
    """The graph of a step, and the shapes of what it trains."""

    graph: Graph
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())


def inputs() -> dict[str, Node]:
    """The token inputs of a step or an evaluation."""
    return {n: graph.input(n, (Dim("T"),), i32) for n in ("ids", "targets", "positions", "starts")}


def losses(logits: Node, targets: Node) -> Node:
    """The loss of each token, f32 [T]: 0 where its target is -100. A last linear layer is fused with it, so
    that the logits are never held."""
    if logits.op == "linear" and len(logits.inputs) == 2:
        out: Node = ops.linear_cross_entropy(*logits.inputs, targets)
    else:
        out = ops.cross_entropy(logits, targets)
    return out


def full_step(
    architecture: Any, checkpoint: Checkpoint, optimiser: AdamW, compute: DType, accumulate: bool
) -> Step:
    """Every tensor of the model is trained."""
    parameters = Parameters(checkpoint, compute)
    model = architecture.Model(architecture.Config.from_metadata(checkpoint), parameters)
    given = inputs()
    logits = model(given["ids"], given["positions"], packed(given["starts"]))
    there = {n.attrs["name"] for n in graph.walk([logits]) if n.op == "state"}
    shapes = {name: shape for name, shape in parameters.shapes.items() if name in there}
    loss = losses(logits, given["targets"])
    return _step(loss, shapes, parameters.states, parameters.used, optimiser, accumulate)


def lora_step(model: Any, lora: Lora, optimiser: AdamW, accumulate: bool) -> Step:
    """Only adapters are trained; the model's weights are constant, dense or packed."""
    given = inputs()
    logits = model(given["ids"], given["positions"], packed(given["starts"]))
    key = graph.input("key", (2,), i64) if lora.dropout else None
    made = adapt([logits], lora, key=key)
    loss = losses(made.outputs[0], given["targets"])
    return _step(loss, made.shapes, made.leaves, made.leaves, optimiser, accumulate)


def _step(
    loss: Node,
    shapes: Mapping[str, tuple[int, ...]],
    states: Mapping[str, Node],
    used: Mapping[str, Node],
    optimiser: AdamW,
    accumulate: bool,
) -> Step:
    """`states` are the parameters, `used` what the model computes with, of which gradients are taken."""
    total: Node = ops.sum(loss)
    names = list(shapes)[::-1]  # the last layer's gradients come first
    gradients = dict(zip(names, grad(total, [used[n] for n in names]), strict=True))
    updates: dict[str, Node] = {}
    if accumulate:
        keep = graph.input("keep", (), f32)
        for name, g in gradients.items():
            held = graph.state(f"g.{name}", shapes[name], f32)
            updates[f"g.{name}"] = gradients[name] = ops.accumulate(held, g, keep)
    peak, ratio = ops.grad_norm([gradients[n] for n in names])
    scale = _scale(total, peak, ratio, optimiser.clip, accumulate)
    rates = graph.input("rates", (3,), f32)
    for name in names:
        m, v = (graph.state(f"{kind}.{name}", shapes[name], f32) for kind in "mv")
        made = ops.adamw(
            states[name], gradients[name], m, v, rates, scale,
            beta1=optimiser.beta1, beta2=optimiser.beta2, eps=optimiser.eps,
            decay=optimiser.decay if len(shapes[name]) > 1 else 0.0,
        )  # fmt: skip
        updates |= zip((name, f"m.{name}", f"v.{name}"), made, strict=True)
    outputs = {"loss": total, "peak": peak, "ratio": ratio, "scale": scale}
    return Step(Graph(outputs, updates), shapes)


def _scale(loss: Node, peak: Node, ratio: Node, clip: float, accumulate: bool) -> Node:
    """What gradients are multiplied with: by the number of targets, by the clip, and by 0 in place of a step
    that would make something infinite."""
    tokens = graph.input("tokens", (), f32)
    mean = ops.div(peak, tokens)  # the largest averaged gradient
    whole = ops.logical_and(ops.le(ops.abs(loss), LARGEST), ops.le(mean, LARGEST_GRADIENT))
    scale = ops.div(1.0, tokens)
    if clip:
        scale = ops.mul(scale, ops.minimum(1.0, ops.div(clip, ops.maximum(ops.mul(mean, ratio), 1e-30))))
    if accumulate:
        scale = ops.mul(scale, graph.input("apply", (), f32))
    out: Node = ops.where(whole, scale, 0.0)
    return out
