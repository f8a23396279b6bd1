"""Models whose metadata or tensors are wrong: one typed error, by every door, on every device."""

import numpy as np
import pytest

import tiny_model
import trivet as tv
from trivet.errors import ModelError, NonFiniteError, TokenizerError, TrivetError
from trivet.export import export
from trivet.generate.describe import describe

BAD_METADATA = {
    "block_count": ["2", np.uint32(0), np.uint32(3), -1, 2.5, True, np.array([2], np.uint32)],
    "attention.head_count": [np.uint32(0), np.uint32(3), "4"],
    "attention.head_count_kv": [np.uint32(3), np.uint32(8)],
    "rope.dimension_count": [np.uint32(15), np.uint32(64)],
    "context_length": [2**40, np.uint32(0)],
    "embedding_length": [np.uint32(2**31 - 1)],
    "attention.layer_norm_rms_epsilon": ["x", np.float32(-1), np.float32("nan"), np.float32("inf")],
    "attention.sliding_window": ["7", -5, 2.5, np.float32("nan"), np.array([1], np.uint32), 2**62],
    "rope.scaling.type": ["bogus", 5],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in BAD_METADATA.items() for value in values], ids=repr
)
def test_metadata(key, value, tmp_path):
    path = tiny_model.write(tmp_path / "m.gguf", {f"llama.{key}": value})
    with pytest.raises(ModelError):
        tv.load(path)
    with pytest.raises(ModelError):
        export(path, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()
    assert describe(path)["problem"]


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_broken_weights_are_not_scored_or_sampled(device, value, tmp_path):
    broken = np.full((tiny_model.WIDTH, tiny_model.WIDTH), value, np.float32)
    path = tiny_model.write(tmp_path / "m.gguf", weights={"blk.1.attn_output.weight": broken})
    m = tv.load(path, device=device)
    if device == "reference" and value == 3e38:
        return  # float64 holds it
    for call in (lambda: m.logits([1, 2]), lambda: m.nll([1, 2]), lambda: m.generate([1, 2])):
        with pytest.raises(NonFiniteError):
            call()


def test_a_chat_template_that_is_no_text(tmp_path):
    path = tiny_model.write(tmp_path / "m.gguf", {"tokenizer.chat_template": np.uint32(5)})
    with pytest.raises(ModelError, match="chat_template"):
        tv.load(path).encode_chat([{"role": "user", "content": "x"}])
    with pytest.raises(ModelError, match="chat_template"):
        export(path, tmp_path / "out.gguf")


@pytest.mark.parametrize("name", ["output_norm.weight", "blk.1.ffn_up.weight", "token_embd.weight"])
def test_a_missing_tensor(name, tmp_path):
    with pytest.raises(ModelError, match=name):
        tv.load(tiny_model.write(tmp_path / "m.gguf", weights={name: None}))


@pytest.mark.parametrize("name", ["output_norm.weight", "blk.1.ffn_up.weight", "token_embd.weight"])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_a_tensor_of_integers(name, dtype, tmp_path):
    whole = {name: tiny_model.tensors()[name].astype(dtype)}
    path = tiny_model.write(tmp_path / "m.gguf", weights=whole)
    with pytest.raises(ModelError, match=f"tensor '{name}' of m.gguf is i"):
        tv.load(path)
    assert name in describe(path)["problem"]


def test_a_vocabulary_of_another_size(tmp_path):
    path = tiny_model.write(tmp_path / "m.gguf", {"tokenizer.ggml.token_type": np.ones(3, np.int32)})
    with pytest.raises(TokenizerError, match="token_type"):
        _ = tv.load(path).tokenizer


def test_truncated_anywhere(tmp_path):
    path = tiny_model.write(tmp_path / "m.gguf")
    data = path.read_bytes()
    for size in [*range(0, 4000, 97), len(data) // 2, len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(TrivetError):
            tv.load(path)
