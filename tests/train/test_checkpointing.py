"""Checkpointed gradients: equal bits, less memory, for every model and method alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_model
from trivet import dtypes, graph, lora, models, ops
from trivet.autograd import grad
from trivet.backends import native, numpy
from trivet.graph import Dim, Graph, Node, walk
from trivet.models.checkpoint import open_checkpoint
from trivet.nn.attention import packed
from trivet.train.checkpointing import block_inputs, checkpointed, frugal

BLOCKS = 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tiny model with its first two blocks twice."""
    path: Path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    blocks = {n: w for n, w in tiny_model.tensors().items() if n.startswith("blk.")}
    more = {f"blk.{int(n[4]) + 2}.{n[6:]}": w for n, w in blocks.items()}
    tiny_model.write(path, {"llama.block_count": np.uint32(BLOCKS)}, more)
    return open_checkpoint(path)


def logits_of(checkpoint: Any, ids: Node) -> Node:
    positions, starts = (graph.input(n, (Dim("T"),), dtypes.i32) for n in ("positions", "starts"))
    out: Node = models.build(checkpoint)(ids, positions, packed(starts))
    return out


def loss_of(logits: Node) -> Node:
    targets = graph.input("targets", (Dim("T"),), dtypes.i32)
    out: Node = ops.sum(ops.linear_cross_entropy(*logits.inputs, targets))
    return out


def ids() -> Node:
    return graph.input("ids", (Dim("T"),), dtypes.i32)


def weights(loss: Node) -> list[Node]:
    return list({n.attrs["name"]: n for n in walk([loss]) if n.op in ("weight", "state")}.values())


def adapted(logits: Node, dropout: float) -> tuple[Node, list[Node]]:
    key = graph.input("key", (2,), dtypes.i64)
    made = lora.adapt([logits], lora.Lora(rank=4, dropout=dropout), key=key, leaf=graph.state)
    return made.outputs[0], list(made.leaves.values())


def batch(loss: Node, tokens: int = 7) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    names = {n.attrs["name"] for n in walk([loss]) if n.op == "input"}
    values = {
        "ids": rng.integers(0, 200, tokens).astype(np.int32),
        "targets": rng.integers(0, 200, tokens).astype(np.int32),
        "positions": np.arange(tokens, dtype=np.int32),
        "starts": np.array([0] * 3 + [3] * (tokens - 3), np.int32),
        "key": np.array([1, 2]),
    }
    return {n: v for n, v in values.items() if n in names}


def program(checkpoint: Any, gradients: Sequence[Node | None], backend: Any = native.BACKEND) -> Any:
    outputs = {str(i): g for i, g in enumerate(gradients) if g is not None}
    made = Graph(outputs)
    states = {n.attrs["name"]: n for n in made.nodes() if n.op == "state"}
    rng = np.random.default_rng(3)
    state = {n: rng.standard_normal(s.shape).astype(np.float32) for n, s in sorted(states.items())}
    return backend.compile(made, weights=checkpoint.load, state=state)


def same(checkpoint: Any, loss: Node, wrt: Sequence[Node], backend: Any = native.BACKEND) -> None:
    given = batch(loss)
    want = program(checkpoint, grad(loss, wrt), backend).run(given)
    for again in (checkpointed(loss, wrt), frugal(loss, wrt)):
        got = program(checkpoint, again, backend).run(given)
        assert want.keys() == got.keys()
        for name, value in want.items():
            assert np.any(value)
            np.testing.assert_array_equal(got[name], value)


def test_blocks_begin_where_their_weights_do(checkpoint: Any) -> None:
    loss = loss_of(logits_of(checkpoint, ids()))
    found = block_inputs(loss)
    assert [n.op for n in found] == ["embedding"] + ["add"] * BLOCKS
    for first, then in pairwise(found):
        assert first in walk([then])


def test_a_graph_without_blocks_has_no_boundaries() -> None:
    x, w = graph.input("x", (3, 4), dtypes.f32), graph.weight("w", (5, 4), dtypes.f32)
    loss = ops.sum(ops.linear(x, w))
    assert block_inputs(loss) == []
    assert checkpointed(loss, [w])[0] is not None


def test_full_gradients_have_equal_bits(checkpoint: Any) -> None:
    loss = loss_of(logits_of(checkpoint, ids()))
    same(checkpoint, loss, weights(loss))


def test_the_definition_agrees(checkpoint: Any) -> None:
    loss = loss_of(logits_of(checkpoint, ids()))
    same(checkpoint, loss, weights(loss)[:4], numpy.BACKEND)


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_adapters_have_equal_bits(checkpoint: Any, dropout: float) -> None:
    logits, leaves = adapted(logits_of(checkpoint, ids()), dropout)
    same(checkpoint, loss_of(logits), leaves)


def test_every_inner_value_is_computed_twice(checkpoint: Any) -> None:
    """What the backward pass reads of the forward pass is the input of each block, and of the last part."""
    logits, leaves = adapted(logits_of(checkpoint, ids()), 0.25)
    loss = loss_of(logits)
    forward = {n for n in walk([loss]) if n.op not in graph.LEAVES}
    order = walk([g for g in checkpointed(loss, leaves) if g is not None])
    backward = [n for n in order if n not in forward]
    held = {i for n in backward for i in n.inputs if i in forward}
    ops_held = {(i.inputs[0] if i.op == "item" else i).op for i in held}
    # the norm before the logits, the loss, and the rope table that all blocks share
    assert ops_held <= {"add", "embedding", "rms_norm", "linear_cross_entropy", "rope_table"}
    assert sum(n.op == "random_uniform" for n in order) == 2 * sum(n.op == "random_uniform" for n in forward)


def test_memory_grows_with_the_blocks_inputs_alone(checkpoint: Any) -> None:
    loss = loss_of(logits_of(checkpoint, ids()))
    wrt = weights(loss)[-2:1:-1]
    sizes = []
    for gradients in (grad(loss, wrt), checkpointed(loss, wrt)):
        made = program(checkpoint, [ops.sum(g) for g in gradients if g is not None])
        for tokens in (64, 128):
            made.run(batch(loss, tokens))
            sizes.append(made.arena_bytes)
    assert sizes[3] - sizes[2] < 0.5 * (sizes[1] - sizes[0])


def test_cheap_values_are_computed_twice_and_nothing_else(checkpoint: Any) -> None:
    logits, leaves = adapted(logits_of(checkpoint, ids()), 0.0)
    loss = loss_of(logits)

    def counts(gradients: Sequence[Node | None]) -> Counter[str]:
        return Counter(n.op for n in walk([g for g in gradients if g is not None]))

    more = counts(frugal(loss, leaves)) - counts(grad(loss, leaves))
    assert more["swiglu"] == BLOCKS
    assert more["rms_norm"] == 2 * BLOCKS
    assert more.keys() == {"swiglu", "rms_norm", "after"}


def test_casts_of_parameters_are_not_held(checkpoint: Any) -> None:
    x = graph.input("ids", (3, 8), dtypes.bf16)
    w = [graph.state(f"w{i}", (8, 8), dtypes.f32) for i in range(4)]
    h = x
    for s in w:
        h = ops.linear(h, ops.cast(s, dtypes.bf16))
    loss = ops.sum(ops.cast(h, dtypes.f32))
    order = walk([g for g in frugal(loss, w) if g is not None])
    assert sum(n.op == "cast" and n.inputs[0].op == "after" for n in order) == 3  # not of the first layer's


def test_a_value_that_reaches_over_a_block_is_held(checkpoint: Any) -> None:
    """Boundaries that are none for some paths: still the same gradients, and no cycle."""
    x = graph.input("ids", (5,), dtypes.f32)
    w = [graph.weight(f"w{i}", (5,), dtypes.f32) for i in range(3)]
    first = ops.exp(ops.mul(x, w[0]))
    cut = ops.mul(first, w[1])
    second = ops.mul(ops.tanh(cut), first)
    cut2 = ops.mul(second, first)
    loss = ops.sum(ops.mul(ops.mul(cut2, w[2]), first))
    plain, again = grad(loss, w), checkpointed(loss, w, [x, cut, cut2])
    rng = np.random.default_rng(0)
    values = {n.attrs["name"]: rng.standard_normal(5).astype(np.float32) for n in w}
    results = [
        native.BACKEND.compile(Graph({str(i): g for i, g in enumerate(gs)}), weights=values.__getitem__).run(
            {"ids": rng.standard_normal(5).astype(np.float32) * 0 + 0.5}
        )
        for gs in (plain, again)
    ]
    for name in results[0]:
        np.testing.assert_array_equal(results[1][name], results[0][name])
