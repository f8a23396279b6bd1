"""Whole-model gradients against PyTorch and peft, and against finite differences in float64."""

from __future__ import annotations

import numpy as np
import pytest

from devices import DEVICES
from trivet import dtypes, graph, lora, ops, runtime
from trivet.backends.numpy import BACKEND as NUMPY
from trivet.blocks import from_bf16
from trivet.graph import Graph
from trivet.lora import Lora
from trivet.train.data import pack

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import hf_oracle as oracle

LENGTHS = (23, 2, 38)


def slopes(model, sequences):
    """Their loss, and the gradient of all that is trained."""
    model.zero_grad()
    loss = oracle.torch_loss(model, sequences)
    loss.backward()
    return loss.item(), {n: p.grad for n, p in model.named_parameters() if p.requires_grad}


def check(got, loss, wanted, bound):
    assert got.pop("loss") == pytest.approx(loss, rel=bound)
    assert got.keys() == wanted.keys()
    far = {name: oracle.distance(got[name], wanted[name]) for name in wanted}
    assert max(far.values()) < bound, far


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", oracle.FAMILIES)
def test_full(family, device, pairs):
    pair, sequences = pairs(family), oracle.examples(1, *LENGTHS)
    loss, wanted = slopes(pair.theirs, sequences)
    got = oracle.run(pair.method(), runtime.backend(device), pair.parameters(), sequences)
    check(got, loss, pair.arranged(wanted), 1e-4)


LORAS = {
    "all": (Lora(4, 8.0), oracle.ALL),
    "rslora": (Lora(3, 5.0, rslora=True), oracle.ALL),
    "attention": (Lora(2, 2.0, targets=("attn_q", "v_proj")), ["q_proj", "v_proj"]),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", ["llama", "llama-tied-bias"])
@pytest.mark.parametrize("kind", LORAS)
def test_lora(family, kind, device, pairs):
    pair, sequences = pairs(family), oracle.examples(2, *LENGTHS)
    settings, modules = LORAS[kind]
    model, values = oracle.adapted(pair, settings, modules)
    loss, wanted = slopes(model, sequences)
    got = oracle.run(pair.method(settings), runtime.backend(device), values, sequences)
    check(got, loss, pair.adapters(wanted), 1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", oracle.FUSED)
def test_lora_of_fused_matrices(family, device, pairs):
    pair, sequences = pairs(family), oracle.examples(2, *LENGTHS)
    model, values = oracle.adapted(pair, Lora(4, 8.0))
    loss, wanted = slopes(model, sequences)
    got = oracle.run(pair.method(Lora(4, 8.0)), runtime.backend(device), values, sequences)
    check(got, loss, pair.adapters(wanted), 1e-4)


@pytest.mark.parametrize("family", ["llama", "llama-tied-bias", "gpt2"])
def test_bfloat16_computes_the_same_to_its_precision(family, pairs):
    pair, sequences = pairs(family), oracle.examples(3, *LENGTHS)
    loss, wanted = slopes(pair.theirs, sequences)
    got = oracle.run(pair.method(compute=dtypes.bf16), runtime.backend("cpu"), pair.parameters(), sequences)
    got = {n: from_bf16(g) if g.dtype == np.uint16 else g for n, g in got.items()}
    check(got, loss, pair.arranged(wanted), 0.05)


@pytest.mark.parametrize("kind", ["full", "lora", "dropout"])
@pytest.mark.parametrize("family", ["llama-tied-bias", "mistral-window", "gpt2"])
def test_finite_differences(family, kind, pairs):
    """Along a random direction of each tensor, in float64; dropout with its masks held."""
    pair, rng = pairs(family), np.random.default_rng(4)
    settings = {"full": None, "lora": Lora(2, 3.0), "dropout": Lora(2, 3.0, dropout=0.4)}[kind]
    method = pair.method(settings)
    values = pair.parameters() if settings is None else lora.initial(method.shapes(), 1)
    given = {n: v + 0.1 * rng.standard_normal(v.shape) for n, v in values.items()}
    batch = oracle.tokens(pack(oracle.examples(4, 9, 6)))
    if kind == "dropout":
        batch["key"] = np.array([5, 6])
    program = NUMPY.compile(
        oracle.gradient_graph(method, training=True), weights=method.checkpoint.load, exact=True
    )
    forward = NUMPY.compile(
        Graph({"loss": ops.sum(method.trace(graph.input, training=True).losses)}),
        weights=method.checkpoint.load,
        exact=True,
    )
    slope = program.run(batch | given)
    step = 1e-5
    for name, value in given.items():
        along = rng.standard_normal(value.shape)
        up, down = (forward.run(batch | given | {name: value + s * along})["loss"] for s in (step, -step))
        by = np.abs(slope[name] * along).sum()
        assert (up - down) / (2 * step) == pytest.approx((slope[name] * along).sum(), abs=2e-6 * (1 + by)), (
            name
        )
