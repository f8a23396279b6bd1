"""Tiny random transformers models, saved as safetensors: our logits against theirs, in float32."""

import numpy as np
import pytest

import trivet as tv
from devices import DEVICES

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

BASE = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

CASES = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-multi-query": ("Llama", {"num_key_value_heads": 1}),
    "llama-no-grouping": ("Llama", {"num_key_value_heads": 6}),
    "llama-odd-head": (
        "Llama",
        {"head_dim": 10, "hidden_size": 50, "num_attention_heads": 5, "num_key_value_heads": 5},
    ),
    "llama-bias": ("Llama", {"attention_bias": True}),
    "llama-linear-rope": ("Llama", {"rope_parameters": LINEAR}),
    "llama-llama3-rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-yarn-rope": ("Llama", {"rope_parameters": YARN}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 7}),
    "mistral-long-window": ("Mistral", {"sliding_window": 70}),
    "llama-bf16": ("Llama", {"dtype": "bfloat16", "attention_bias": True}),
    "llama-f16": ("Llama", {"dtype": "float16", "attention_bias": True, "tie_word_embeddings": True}),
}
LENGTH = 150  # over two pages of the cache, and past every window and original context


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    """The folder of a saved model, ids, and the logits transformers gives for them."""
    family, changes = CASES[request.param]
    stored = getattr(torch, changes.get("dtype", "float32"))  # what the file holds; the oracle is float32
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**(BASE | changes | {"dtype": "float32"}))
    model = (
        getattr(transformers, f"{family}ForCausalLM")._from_config(config, attn_implementation="eager").eval()
    )
    with torch.no_grad():
        for name, p in model.named_parameters():  # biases and norms start as 0 and 1: make them matter
            if name.endswith("bias") or "norm" in name:
                p.add_(torch.randn_like(p) * 0.2)
            p.copy_(p.to(stored))
        ids = np.random.default_rng(5).integers(0, 131, LENGTH)
        want = model(torch.tensor(ids)[None]).logits[0].numpy()
    folder = tmp_path_factory.mktemp(request.param)
    model.to(stored).save_pretrained(folder)
    return folder, ids.tolist(), want


@pytest.mark.parametrize("device", DEVICES)
def test_logits(pair, device):
    folder, ids, want = pair
    got = tv.load(folder, device=device, kv="f32").logits(ids)
    assert got.shape == want.shape
    assert np.abs(got - want).max() < 2e-4 * max(1.0, np.abs(want).max())


def test_token_by_token_equals_at_once(pair):
    folder, ids, _ = pair
    model = tv.load(folder, device="cpu")
    session = model.session()
    rows = [model.engine.forward(session, [i], [0])[0] for i in ids[:80]]
    assert np.array_equal(np.stack(rows), model.logits(ids[:80]))
