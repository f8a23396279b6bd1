"""Tiny random GPT-2s of transformers: our logits against theirs, from folders and from files we write, which
llama.cpp reads, too."""

import json

import numpy as np
import pytest

import tiny_model
import trivet as tv
from devices import DEVICES
from trivet import models
from trivet.errors import ModelError
from trivet.formats.gguf import write_gguf
from trivet.models.checkpoint import Checkpoint, open_checkpoint

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

BASE = {"vocab_size": len(tiny_model.TOKENS), "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 160}
CASES = {
    "gpt2": {},
    "gpt2-hidden": {"n_inner": 100},
    "gpt2-untied": {"tie_word_embeddings": False},
    "gpt2-gelu": {"activation_function": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-3},
    "gpt2-square": {"n_inner": 48, "n_head": 3},
}
LENGTH = 150  # over two pages of the cache


def saved(folder, changes):
    """A model whose biases and norms are not 0 and 1, saved."""
    torch.manual_seed(3)
    config = transformers.GPT2Config(**(BASE | {"initializer_range": 0.2} | changes))
    model = transformers.GPT2LMHeadModel._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias") or "ln_" in name:
                p.add_(torch.randn_like(p) * 0.2)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    """A folder, a GGUF file of the same tensors, ids, and the logits transformers gives for them."""
    folder = tmp_path_factory.mktemp(request.param)
    model = saved(folder, CASES[request.param])
    ids = np.random.default_rng(5).integers(0, BASE["vocab_size"], LENGTH)
    with torch.no_grad():
        want = model(torch.tensor(ids)[None]).logits[0].numpy()
    return folder, as_gguf(folder), ids.tolist(), want


def as_gguf(folder):
    checkpoint = open_checkpoint(folder)
    words = {k: v for k, v in tiny_model.metadata().items() if k.startswith("tokenizer.")}
    words["tokenizer.ggml.pre"] = "gpt-2"  # as llama.cpp spells it
    arrays = {name: checkpoint.load(name) for name in checkpoint.tensors}
    sizes = {k: np.float32(v) if isinstance(v, float) else v for k, v in checkpoint.metadata.items()}
    write_gguf(folder / "model.gguf", {**sizes, **words}, arrays)
    return folder / "model.gguf"


def near(got, want, bound=2e-4):
    return got.shape == want.shape and np.abs(got - want).max() < bound * max(1.0, np.abs(want).max())


@pytest.mark.parametrize("device", DEVICES)
def test_logits(pair, device):
    folder, file, ids, want = pair
    assert near(tv.load(folder, device, kv="f32").logits(ids), want)
    assert near(tv.load(file, device, kv="f32").logits(ids), want)


def test_token_by_token_equals_at_once(pair):
    _, file, ids, _ = pair
    model = tv.load(file, device="cpu")
    session = model.session()
    rows = [model.engine.forward(session, [i], [0])[0] for i in ids[:80]]
    assert np.array_equal(np.stack(rows), model.logits(ids[:80]))


def test_llama_cpp_gives_the_same_logits(pair):
    llama_cpp = pytest.importorskip("llama_cpp")
    _, file, ids, want = pair
    theirs = llama_cpp.Llama(
        str(file), n_ctx=LENGTH, logits_all=True, verbose=False, type_k=0, type_v=0, n_threads=1
    )
    theirs.eval(ids)
    assert near(np.array(theirs.scores[:LENGTH]), want, 2e-3)


def test_names_go_both_ways(pair):
    folder, _, _, _ = pair
    module = models.by_architecture("gpt2")
    checkpoint = open_checkpoint(folder)
    config = json.loads((folder / "config.json").read_text())
    for name in checkpoint.tensors:
        assert module.hf_rename(module.hf_original(name)) == name
    made = module.hf_config(checkpoint)
    assert module.hf_metadata(made) == checkpoint.metadata
    assert {k: config[k] for k in ("n_embd", "n_layer", "n_head")} == {
        k: made[k] for k in ("n_embd", "n_layer", "n_head")
    }


def test_early_files_hold_masks_and_lack_the_prefix(tmp_path):
    from safetensors.torch import load_file, save_file

    model = saved(tmp_path, {})
    tensors = {
        k.removeprefix("transformer."): v for k, v in load_file(tmp_path / "model.safetensors").items()
    }
    tensors |= {f"h.{i}.attn.bias": torch.ones(1, 1, 160, 160).tril() for i in range(3)}
    tensors |= {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(3)}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with torch.no_grad():
        want = model(torch.tensor([[1, 2, 3]])).logits[0].numpy()
    assert near(tv.load(tmp_path, "cpu", kv="f32").logits([1, 2, 3]), want)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("activation_function", "relu"), ("scale_attn_weights", False), ("add_cross_attention", True),
        ("scale_attn_by_inverse_layer_idx", True), ("n_embd", "48"), ("n_head", 0), ("n_head", 7),
        ("layer_norm_epsilon", "x"), ("layer_norm_epsilon", -1), ("n_positions", 12), ("n_inner", 7),
        ("n_layer", 4),
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit(tmp_path, key, value):
    saved(tmp_path, {})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(ModelError):
        tv.load(tmp_path)


@pytest.mark.parametrize("gone", ["blk.1.attn_qkv.bias", "blk.0.ffn_up.bias", "output_norm.bias"])
def test_every_layer_has_a_bias(pair, gone):
    whole = open_checkpoint(pair[0])
    kept = {name: entry for name, entry in whole.tensors.items() if name != gone}
    with pytest.raises(ModelError, match=gone):
        models.build(Checkpoint(whole.path, whole.metadata, kept))


def test_a_position_past_the_table_is_refused(pair):
    _, file, _, _ = pair
    with pytest.raises(tv.TrivetError, match="160"):
        tv.load(file).logits([1] * 161)
