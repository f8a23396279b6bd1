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
under their own names, their moments as `m.<name>` and `v.<name>`, large ones in pages (moments.py), and sums
of gradients as `g.<name>`.

A step whose loss or gradients are not finite changes nothing: adamw reads its `scale` before it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import ModuleType

import numpy as np

from trivet import graph, ops
from trivet.backends.base import Backend, bucket
from trivet.dtypes import DType, f32, i32, i64
from trivet.graph import Dim, Graph, Node
from trivet.lora import Lora, adapt
from trivet.models.checkpoint import Checkpoint
from trivet.nn.attention import packed
from trivet.ops.rules import to_dtype
from trivet.optim import AdamW
from trivet.train.checkpointing import checkpointed, frugal
from trivet.train.data import Batch
from trivet.train.moments import page_name, pages

LARGEST = float(np.finfo(np.float32).max)
#: an averaged gradient whose square is still finite
LARGEST_GRADIENT = 1e18

Leaf = Callable[[str, tuple[int, ...], DType], Node]  # graph.state, or graph.input


class Parameters(Checkpoint):
    """A checkpoint whose tensors are trained: float32 leaves, matrices computed with in `compute`."""

    def __init__(self, base: Checkpoint, leaf: Leaf, compute: DType) -> None:
        super().__init__(base.path, base.metadata, base.tensors, base.gguf)
        self._leaf, self._compute = leaf, compute
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.leaves: dict[str, Node] = {}
        self.used: dict[str, Node] = {}  # what the model computes with

    def find(self, name: str, shape: tuple[int, ...]) -> Node | None:
        if super().find(name, shape) is None:
            return None
        if name not in self.used:
            leaf = self.leaves[name] = self._leaf(name, shape, f32)
            self.shapes[name] = shape
            self.used[name] = leaf if len(shape) < 2 else to_dtype(leaf, self._compute)
        return self.used[name]


def token_inputs() -> dict[str, Node]:
    """The inputs of a batch, by the names of its fields."""
    return {f.name: graph.input(f.name, (Dim("T"),), i32) for f in fields(Batch)}


def fitted(batch: Batch, backend: Backend) -> Batch:
    """The batch, rounded up to a size that comes again where each size costs a compilation."""
    return batch.padded(bucket(len(batch.ids))) if backend.compiles_per_size else batch


@dataclass(frozen=True, slots=True)
class Traced:
    """The losses of a batch, f32 [T], and what they are trained by: shapes and leaves of the parameters, and
    the nodes that the model computes with in their place."""

    losses: Node
    shapes: Mapping[str, tuple[int, ...]]
    leaves: Mapping[str, Node]
    used: Mapping[str, Node]


@dataclass(frozen=True, slots=True)
class Method:
    """What is trained: every tensor of the model, or adapters on top of it as `lora` says. `compute` is the
    dtype of matrices and activations, f32 or bf16; parameters, moments and sums are float32. With
    `checkpointing` the backward pass computes each block anew in place of remembering its inside."""

    architecture: ModuleType
    checkpoint: Checkpoint
    lora: Lora | None = None
    compute: DType = f32
    checkpointing: bool = False

    def trace(self, leaf: Leaf, *, training: bool) -> Traced:
        """The losses as a graph, with parameters that `leaf` makes. Dropout is for training."""
        parameters = Parameters(self.checkpoint, leaf, self.compute)
        source = parameters if self.lora is None else self.checkpoint
        model = self.architecture.Model(self.architecture.Config.from_metadata(self.checkpoint), source)
        given = token_inputs()
        logits = model(given["ids"], given["positions"], packed(given["starts"]), dtype=self.compute)
        if self.lora is None:
            there = set(graph.walk([logits]))
            shapes = {n: s for n, s in parameters.shapes.items() if parameters.used[n] in there}
            return Traced(losses(logits, given["targets"]), shapes, parameters.leaves, parameters.used)
        key = graph.input("key", (2,), i64) if training and self.lora.dropout else None
        made = adapt([logits], self.lora, key=key, leaf=leaf)
        found = losses(made.outputs[0], given["targets"], frozen=training)
        return Traced(found, made.shapes, made.leaves, made.used)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """What is trained."""
        return dict(self.trace(graph.state, training=False).shapes)

    def evaluation(self) -> Graph:
        """Parameters and a batch to the sum of its losses, `loss`."""
        return Graph({"loss": ops.sum(self.trace(graph.input, training=False).losses)})

    def training(self, optimiser: AdamW, *, accumulate: bool) -> Graph:
        """One whole step, or one micro-batch of it."""
        traced = self.trace(graph.state, training=True)
        loss: Node = ops.sum(traced.losses)
        names = list(traced.shapes)[::-1]  # the last layer's gradients come first
        of = checkpointed if self.checkpointing else frugal
        gradients = dict(zip(names, of(loss, [traced.used[n] for n in names]), strict=True))
        updates: dict[str, Node] = {}
        if accumulate:
            keep = graph.input("keep", (), f32)
            for name, g in gradients.items():
                held = graph.state(f"g.{name}", traced.shapes[name], f32)
                updates[f"g.{name}"] = gradients[name] = ops.accumulate(held, g, keep)
        peak, ratio = ops.grad_norm([gradients[n] for n in names])
        scale = _scale(loss, peak, ratio, optimiser.clip, accumulate)
        given = graph.input("rates", (3,), f32)
        rates: dict[float, Node] = {1.0: given}
        for name in names:
            factor, decay = optimiser.of(name, len(traced.shapes[name]))
            if factor not in rates:
                rates[factor] = ops.mul(given, np.array([factor, 1, 1], np.float32))
            shape, p = traced.shapes[name], traced.leaves[name]
            split = pages(shape, optimiser.page)
            for first, rows in split:
                names_ = [page_name(kind, name, first, len(split) == 1) for kind in "mv"]
                m, v = (graph.state(n, (rows, *shape[1:]) if shape else (), f32) for n in names_)
                p, *moments = ops.adamw(
                    p, gradients[name], m, v, rates[factor], scale, beta1=optimiser.beta1,
                    beta2=optimiser.beta2, eps=optimiser.eps, decay=decay, first=first,
                )  # fmt: skip
                updates |= zip(names_, moments, strict=True)
            updates[name] = p
        return Graph({"loss": loss, "peak": peak, "ratio": ratio, "scale": scale}, updates)


def losses(logits: Node, targets: Node, *, frozen: bool = False) -> Node:
    """The loss of each token: 0 where its target is -100. A last linear layer is fused with it, so that the
    logits are never held; and with its gradient, where its weight is `frozen`."""
    if logits.op == "linear" and len(logits.inputs) == 2:
        if frozen and logits.ndim == 2 and logits.inputs[1].op == "weight":
            found: Node = ops.linear_cross_entropy_slopes(*logits.inputs, targets)[0]
            return found
        out: Node = ops.linear_cross_entropy(*logits.inputs, targets)
    else:
        out = ops.cross_entropy(logits, targets)
    return out


def _scale(loss: Node, peak: Node, ratio: Node, clip: float, accumulate: bool) -> Node:
    """What gradients are multiplied with: by the number of targets, by the clip, and by 0 in place of a step
    that would make something infinite."""
    tokens = graph.input("tokens", (), f32)
    scale = ops.div(1.0, tokens)
    largest = ops.mul(tokens, LARGEST_GRADIENT)
    if clip:  # any finite gradients: factor by factor, their norm cannot overflow
        scale = ops.minimum(scale, ops.div(ops.div(clip, peak), ratio))
        largest = LARGEST
    whole = ops.logical_and(ops.le(ops.abs(loss), LARGEST), ops.le(peak, largest))
    if accumulate:
        scale = ops.mul(scale, graph.input("apply", (), f32))
    out: Node = ops.where(whole, scale, 0.0)
    return out
