"""LoRA (arXiv:2106.09685): low-rank updates of a model's matrices, as a rewriting of its graph.

Any model can be adapted, with no word about it in the model: every `linear` of a chosen weight W becomes

    x @ W.T + scale * (dropout(x) @ A.T) @ B.T        A [rank, K], B [N, rank]

with scale = alpha / rank, or alpha / sqrt(rank) if `rslora` (arXiv:2312.03732). W stays as it is, packed or
not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trivet import arguments, graph, ops
from trivet.dtypes import DType, f32, i64
from trivet.errors import InputError
from trivet.graph import Node
from trivet.ops.rules import to_dtype
from trivet.plan import rebuilt, rewrite

#: "all" linears of a decoder block, by GGUF's names and by Hugging Face's
MODULES = {
    "attn_q": ("q_proj",),
    "attn_k": ("k_proj",),
    "attn_v": ("v_proj",),
    "attn_qkv": ("c_attn", "qkv_proj", "query_key_value"),
    "attn_output": ("o_proj", "dense"),
    "ffn_gate": ("gate_proj",),
    "ffn_up": ("up_proj", "gate_up_proj", "dense_h_to_4h"),
    "ffn_down": ("down_proj", "dense_4h_to_h"),
}
MOST_RANK = 4096
EMBEDDING = "token_embd.weight"


@dataclass(frozen=True, slots=True)
class Lora:
    """What to adapt and how. `targets` are module names ("attn_q", or Hugging Face's "q_proj") or patterns
    over whole tensor names ("blk.[0-9].ffn_*"); "all" is every matrix of the blocks. The embedding is not
    taken, even where it is the output's matrix, too."""

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    rslora: bool = False
    targets: Sequence[str] = ("all",)

    def __post_init__(self) -> None:
        arguments.integer(self.rank, "[lora] rank", 1, MOST_RANK)
        if not (isinstance(self.alpha, int | float) and 0 < self.alpha < 1e6):
            raise InputError(f"[lora] alpha is {self.alpha!r}; wanted 0 < alpha < 1e6")
        if not (isinstance(self.dropout, int | float) and 0 <= self.dropout < 1):
            raise InputError(f"[lora] dropout is {self.dropout!r}; wanted 0 <= dropout < 1")
        if isinstance(self.targets, str) or not self.targets:
            raise InputError(f"[lora] targets are {self.targets!r}; wanted a list of names or patterns")

    @property
    def scale(self) -> float:
        """What B @ A is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def takes(self, name: str) -> bool:
        """Whether the weight of that name is adapted."""
        return any(_matches(name, target) for target in self.targets)


def _matches(name: str, target: str) -> bool:
    if name == EMBEDDING:
        return False
    module = name.removesuffix(".weight").rpartition(".")[2]
    if target == "all":
        return name.startswith("blk.") and module in MODULES
    named = target in (module, *MODULES.get(module, ()))
    return named or fnmatchcase(name.removesuffix(".weight"), target)


@dataclass(slots=True)
class Adapted:
    """A rewritten graph: its outputs, and the adapters' leaves and their shapes by name, `<weight>.lora_a`
    and `<weight>.lora_b`."""

    outputs: list[Node]
    leaves: dict[str, Node] = field(default_factory=dict)
    used: dict[str, Node] = field(default_factory=dict)  # the leaves in the dtype that is computed with
    shapes: dict[str, tuple[int, int]] = field(default_factory=dict)

    def leaf(self, name: str, shape: tuple[int, int], make: Callable[..., Node], dtype: DType) -> Node:
        """The leaf of that name, as `dtype`; made when first asked for."""
        if name not in self.leaves:
            leaf, self.shapes[name] = make(name, shape, f32), shape
            self.leaves[name] = leaf
            self.used[name] = to_dtype(leaf, dtype)
        return self.used[name]


def adapt(
    outputs: Sequence[Node],
    lora: Lora,
    *,
    key: Node | None = None,
    leaf: Callable[[str, tuple[int, ...], DType], Node] = graph.weight,
) -> Adapted:
    """The outputs with adapters on what `lora` takes. `key` i64 [2] is the dropout's; without it there is
    none (as in use). `leaf` makes the adapters' leaves: graph.state where they are trained.

    Raises InputError if a target matches no linear of the graph."""
    made = Adapted([])
    unused = set(lora.targets)

    def rule(node: Node, inputs: tuple[Node, ...]) -> Node:
        node = rebuilt(node, inputs)
        weight = _weight(node)
        if weight is None or not lora.takes(weight.name):
            return node
        unused.difference_update(t for t in lora.targets if _matches(weight.name, t))
        return _adapted(node, weight, lora, key, leaf, made)

    made.outputs = rewrite(outputs, rule)
    if unused:
        raise InputError(
            f"[lora] no linear layer matches {', '.join(sorted(unused))} (the embedding is not adapted);"
            f" known names: all, {', '.join(MODULES)}, or a pattern such as blk.*.attn_q"
        )
    return made


class _Weight(NamedTuple):
    """The constant matrix [n, k] of a linear layer."""

    name: str
    n: int
    k: int


def _weight(node: Node) -> _Weight | None:
    """That of a call, if it is one of `linear` and its matrix is a weight."""
    if node.op != "linear" or node.inputs[1].op != "weight":
        return None
    n, k = node.inputs[1].shape
    assert isinstance(n, int), "weights have fixed shapes"
    assert isinstance(k, int), "weights have fixed shapes"
    return _Weight(node.inputs[1].attrs["name"], n, k)


def _adapted(
    node: Node, weight: _Weight, lora: Lora, key: Node | None, make: Callable[..., Node], made: Adapted
) -> Node:
    name, n, k = weight
    x = node.inputs[0]
    a = made.leaf(f"{name}.lora_a", (lora.rank, k), make, x.dtype)
    b = made.leaf(f"{name}.lora_b", (n, lora.rank), make, x.dtype)
    if lora.dropout and key is not None:
        x = dropout(x, lora.dropout, key, len(made.leaves) // 2)
    low = ops.linear(x, a)
    out: Node = ops.addmm(node, low, b, transpose_b=True, alpha=lora.scale)
    return out


def attach(outputs: Sequence[Node], ranks: Mapping[str, int], prefix: str) -> list[Node]:
    """The outputs with `x @ A.T @ B.T` added to every `linear` of a weight in `ranks`, for use: A and B are
    the weights `<prefix><weight>.lora_a` and `.lora_b`, and B holds the scale.

    Raises InputError for a weight of no linear layer."""
    unused = set(ranks)

    def rule(node: Node, inputs: tuple[Node, ...]) -> Node:
        node = rebuilt(node, inputs)
        weight = _weight(node)
        if weight is None or weight.name not in ranks:
            return node
        name, n, k = weight
        unused.discard(name)
        rank = ranks[name]
        a = graph.weight(f"{prefix}{name}.lora_a", (rank, k), f32)
        b = graph.weight(f"{prefix}{name}.lora_b", (n, rank), f32)
        out: Node = ops.addmm(node, ops.linear(node.inputs[0], a), b, transpose_b=True)
        return out

    made = rewrite(outputs, rule)
    if unused:
        raise InputError(f"[lora] {min(unused)!r} is the weight of no linear layer of this model")
    return made


def dropout(x: Node, p: float, key: Node, site: int) -> Node:
    """`x` with each element 0 with probability p, the rest divided by 1 - p. `key` i64 [2] is the run's;
    `site` tells the places of one run apart."""
    drawn = ops.random_uniform(ops.add(key, graph.constant(np.array([0, site << 40]), i64)), x.shape)
    out: Node = ops.mul(x, ops.cast(ops.ge(drawn, p), x.dtype))
    return ops.mul(out, 1 / (1 - p))  # type: ignore[no-any-return]


def initial(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """First values: A uniform in ±1/sqrt(K) (as PEFT draws it), B zero, so that nothing changes yet.
    A's numbers depend on the seed and its name only."""
    values = {}
    for index, (name, shape) in enumerate(sorted(shapes.items())):
        values[name] = np.zeros(shape, np.float32)
        if name.endswith(".lora_a"):
            bound = 1 / math.sqrt(shape[1])
            rng = np.random.Generator(np.random.Philox(key=[seed, index]))
            values[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
    return values
