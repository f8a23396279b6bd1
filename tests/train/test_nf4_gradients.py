"""Whole-model gradients of LoRA on a base in NF4 against PyTorch and peft, with weights that bitsandbytes
dequantises."""

import copy

import numpy as np
import pytest

from trivet import dtypes, runtime
from trivet.blocks import from_bf16
from trivet.lora import Lora
from trivet.models.checkpoint import transposed
from trivet.train import base

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("bitsandbytes")

import hf_oracle as oracle
import torch
from bitsandbytes import functional

LENGTHS = (23, 2, 38)


def dequantised(entry):
    """A tensor in our bytes, by their function."""
    raw, kind = entry.load(), entry.dtype
    blocks = raw.size // kind.nbytes if not kind.group else kind.blocks_in(raw.size)
    rows = raw[: blocks * kind.nbytes].reshape(blocks, -1)
    head = rows.shape[1] - kind.block // 2
    scales, settings = torch.tensor(rows[:, :head].copy()), {}
    if kind.group:
        behind = torch.tensor(raw[blocks * kind.nbytes :].view("<f4").copy())
        inner = functional.QuantState(
            absmax=behind[1:], blocksize=kind.group, code=functional.create_dynamic_map(), dtype=torch.float32
        )
        settings = {"offset": behind[0], "state2": inner}
    state = functional.QuantState(
        absmax=scales.reshape(-1) if kind.group else scales.view(torch.float32).reshape(-1),
        shape=torch.Size(entry.shape), code=functional.get_4bit_type("nf4", device="cpu"),
        blocksize=kind.block, quant_type="nf4", dtype=torch.float32, **settings,
    )  # fmt: skip
    codes = torch.tensor(rows[:, head:].reshape(-1, 1).copy())
    return functional.dequantize_4bit(codes, state).numpy()


def on_nf4(pair, block, double):
    """Both sides of a pair with the matrices of the blocks in NF4."""
    made, model = base.nf4(pair.checkpoint, dtypes.f32, block, double), copy.deepcopy(pair.theirs)
    changed = 0
    for name, parameter in model.named_parameters():
        ours = pair.module.hf_rename(name)
        if not made.tensors[ours].dtype.is_packed:
            continue
        values = dequantised(made.tensors[ours])
        places = np.broadcast_to(np.arange(len(values))[:, None], values.shape)
        order = pair.module.hf_arrange(ours, places, pair.checkpoint.metadata)[:, 0]
        values = values[np.argsort(order)]
        with torch.no_grad():
            parameter.copy_(torch.tensor(values.T if transposed(pair.module, ours) else values))
        changed += 1
    return oracle.Pair(model, made), changed


KINDS = [("llama-64", 64, True), ("llama-64", 64, False), ("llama-64", 32, True), ("gpt2", 32, True)]


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize(("family", "block", "double"), KINDS)
def test_lora_on_nf4(family, block, double, device, pairs):
    (pair, changed), sequences = on_nf4(pairs(family), block, double), oracle.examples(2, *LENGTHS)
    assert changed == (6 if family == "gpt2" else 14)  # gpt2's last has rows of 56
    model, values = oracle.adapted(pair, Lora(4, 8.0))
    loss = oracle.torch_loss(model, sequences)
    loss.backward()
    wanted = pair.adapters({n: p.grad for n, p in model.named_parameters() if p.requires_grad})
    got = oracle.run(pair.method(Lora(4, 8.0)), runtime.backend(device), values, sequences)
    assert got.pop("loss") == pytest.approx(loss.item(), rel=1e-4)
    assert got.keys() == wanted.keys()
    far = {name: oracle.distance(got[name], wanted[name]) for name in wanted}
    assert max(far.values()) < 1e-4, far


def test_bfloat16_computes_the_same_to_its_precision(pairs):
    (pair, _), sequences = on_nf4(pairs("llama-64"), 64, True), oracle.examples(3, *LENGTHS)
    model, values = oracle.adapted(pair, Lora(4, 8.0))
    loss = oracle.torch_loss(model, sequences)
    loss.backward()
    wanted = pair.adapters({n: p.grad for n, p in model.named_parameters() if p.requires_grad})
    method = pair.method(Lora(4, 8.0), compute=dtypes.bf16)
    got = oracle.run(method, runtime.backend("cpu"), values, sequences)
    assert got.pop("loss") == pytest.approx(loss.item(), rel=0.05)
    got = {n: from_bf16(g) if g.dtype == np.uint16 else g for n, g in got.items()}
    far = {name: oracle.distance(got[name], wanted[name]) for name in wanted}
    assert max(far.values()) < 0.15, far


def test_the_weights_are_what_bitsandbytes_makes_of_the_same_matrix(pairs):
    """Of matrices whose rows do not stand in another order here."""
    pair = pairs("llama-64")
    made = base.nf4(pair.checkpoint, dtypes.f32, 64, False)
    for module in ("mlp.up_proj", "mlp.down_proj", "self_attn.v_proj"):
        name = f"model.layers.1.{module}.weight"
        weight = dict(pair.theirs.named_parameters())[name].detach()
        codes, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4")
        theirs = functional.dequantize_4bit(codes, state).numpy()
        assert np.array_equal(made.tensors[pair.module.hf_rename(name)].values(), theirs)
