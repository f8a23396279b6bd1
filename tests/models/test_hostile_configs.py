"""Configurations and metadata that make no sense, of every architecture: a typed error names the field."""

import json

import numpy as np
import pytest

import trivet as tv
from trivet import models
from trivet.errors import ModelError
from trivet.formats.gguf import write_gguf
from trivet.models.checkpoint import Checkpoint, open_checkpoint

pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_every_architecture import NAMES

import variants

WRONG_SIZES = [0, -4, "6", 2.5, True, [4], {}, 2**40]
#: what config.json may say, and the words that an error has one of
CONFIG = {
    "num_attention_heads": ([*WRONG_SIZES, 7], ["num_attention_heads", "head_count", "attn_"]),
    "num_key_value_heads": ([*WRONG_SIZES, 5], ["num_key_value_heads", "head_count_kv"]),
    "hidden_size": ([*WRONG_SIZES, 50], ["hidden_size", "embedding_length"]),
    "intermediate_size": ([*WRONG_SIZES, 87], ["intermediate_size", "ffn_"]),
    "num_hidden_layers": ([*WRONG_SIZES, 9], ["num_hidden_layers", "layer_types", "no_rope_layers", "blk."]),
    "vocab_size": ([*WRONG_SIZES, 130], ["vocab_size"]),
    "max_position_embeddings": (WRONG_SIZES, ["max_position_embeddings"]),
    "head_dim": ([0, -4, "6", 2.5, 13, 2**40], ["head_dim", "key_length", "attn_", "dimension_count"]),
    "rms_norm_eps": (["x", -1.0, float("nan"), [1]], ["rms_norm_eps", "epsilon"]),
    "layer_norm_eps": (["x", -1.0, float("inf"), {}], ["layer_norm_eps", "epsilon"]),
    "hidden_act": (["relu", "bogus", 5, {}], ["hidden_act"]),
    "rope_parameters": (
        [
            "x", 5, {"rope_type": "bogus"}, {"rope_type": {}}, {"rope_theta": -1.0}, {"rope_theta": "x"},
            {"rope_type": "linear", "factor": 0}, {"rope_type": "linear"}, {"partial_rotary_factor": 0.01},
            {"partial_rotary_factor": 1e30}, {"rope_type": "yarn", "factor": "x"},
            {"rope_type": "longrope", "long_factor": [1.0], "short_factor": "x"},
        ],
        ["rope_", "factor"],
    ),
    "layer_types": (["x", [], ["bogus"] * 4], ["layer_types"]),
    "sliding_window": ([0, -1, "x", 2.5], ["sliding_window"]),
    "no_rope_layers": (["x", [1, 1, 1, 1, 1], [{}] * 5], ["no_rope_layers"]),
    "use_parallel_residual": (["x"], ["use_parallel_residual"]),
    "num_local_experts": ([*WRONG_SIZES, 7, 1], ["num_local_experts", "expert", "_exps", "ffn_gate_inp"]),
    "num_experts_per_tok": ([*WRONG_SIZES, 99], ["num_experts_per_tok", "expert_used_count"]),
    "moe_intermediate_size": ([*WRONG_SIZES, 9], ["moe_intermediate_size", "_exps"]),
    "norm_topk_prob": (["x", 3], ["norm_topk_prob"]),
    "residual_multiplier": (["x", -1.0, float("nan")], ["residual_multiplier"]),
    "logits_scaling": ([0.0, "x"], ["logits_scaling"]),
}  # fmt: skip


def unread(name, config):
    """Keys that say nothing there; those that Gemma spells otherwise are in test_gemma.py."""
    keys = {"hidden_act", "rope_parameters"} if name.startswith("gemma") else set()
    keys |= {"rms_norm_eps"} if "layer_norm_eps" in config else set()
    return keys | ({"layer_types"} if config.get("use_sliding_window") is False else set())


@pytest.fixture(scope="module", params=NAMES)
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    variants.saved(folder, request.param)
    return request.param, folder, json.loads((folder / "config.json").read_text())


def refused(build, what):
    """The message of the one typed error."""
    with pytest.raises(ModelError) as error:
        build()
    assert str(error.value).startswith("[load] "), what
    return str(error.value)


def test_config_json(case, tmp_path):
    name, folder, config = case
    (tmp_path / "model.safetensors").hardlink_to(folder / "model.safetensors")
    for key, (values, words) in CONFIG.items():
        if key not in config or (config[key] is None and key != "head_dim") or key in unread(name, config):
            continue
        for value in values:
            (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
            message = refused(lambda: tv.load(tmp_path), (key, value))
            assert any(word in message for word in words), (key, value, message)


def test_a_missing_key(case, tmp_path):
    _, folder, config = case
    (tmp_path / "model.safetensors").hardlink_to(folder / "model.safetensors")
    for key in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"):
        (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != key}))
        assert key in refused(lambda: tv.load(tmp_path), key)


METADATA = {
    "block_count": ["2", np.uint32(0), np.uint32(9), -1, 2.5, True, np.array([2], np.uint32)],
    "attention.head_count": [np.uint32(0), np.uint32(7), "4"],
    "attention.head_count_kv": [np.uint32(0), np.uint32(5), np.uint32(8)],
    "attention.key_length": [np.uint32(0), np.uint32(13), "x"],
    "context_length": [2**40, np.uint32(0), None],
    "embedding_length": [np.uint32(2**31 - 1), None],
    "feed_forward_length": [np.uint32(1), None],
    "attention.layer_norm_rms_epsilon": ["x", np.float32(-1), np.float32("nan"), None],
    "attention.layer_norm_epsilon": ["x", np.float32(-1), np.float32("inf"), None],
    "expert_count": [np.uint32(3), np.uint32(7), "x", -1],
    "expert_used_count": [np.uint32(0), np.uint32(99), "x", None],
    "expert_feed_forward_length": [np.uint32(0), np.uint32(9), "x"],
    "expert_weights_norm": ["x", 3],
    "rope.dimension_count": [np.uint32(1), np.uint32(2**20), "x"],
    "rope.freq_base": ["x", np.float32(0), np.float32(-5), np.float32("nan")],
    "rope.scaling.type": ["bogus", 5],
    "use_parallel_residual": ["x"],
    "logit_scale": ["x", np.float32(-1), np.float32("inf")],
    "attention.sliding_window": ["7", -5, 2.5, np.array([1], np.uint32), 2**62],
    "attention.sliding_window_pattern": ["x", [True], -1, 2.5],
}


def test_metadata(case):
    whole = open_checkpoint(case[1])
    architecture = whole.architecture
    for key, values in METADATA.items():
        full = f"{architecture}.{key}"
        if full not in whole.metadata or full == "stablelm.use_parallel_residual":  # its tensors say so
            continue
        for value in values:
            kept = {k: v for k, v in (whole.metadata | {full: value}).items() if v is not None}
            changed = Checkpoint(whole.path, kept, whole.tensors)
            message = refused(lambda changed=changed: models.build(changed), (full, value))
            words = (full, key.partition(".")[2] or key, "tensor", "pattern")
            assert any(word in message for word in words), (full, value, message)


def test_a_missing_tensor(case):
    name, folder, _ = case
    whole = open_checkpoint(folder)
    for gone in whole.tensors:
        optional = gone.endswith(".bias") and "norm" not in gone
        optional &= not (name == "gptneox" and "ffn" in gone)
        optional |= gone == "output.weight" or gone.startswith("rope_")
        optional |= "stablelm" in name and gone == "blk.0.attn_q_norm.weight"
        if not optional:
            kept = Checkpoint(
                whole.path, whole.metadata, {n: e for n, e in whole.tensors.items() if n != gone}
            )
            assert gone in refused(lambda kept=kept: models.build(kept), gone)


def test_an_unknown_architecture_is_told_with_the_known(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "rwkv7"}))
    with pytest.raises(ModelError, match=r"'rwkv7'; known: gemma2, .*gpt_neox.*stablelm"):
        tv.load(tmp_path)
    write_gguf(tmp_path / "m.gguf", {"general.architecture": "rwkv7"}, {})
    with pytest.raises(ModelError, match=r"'rwkv7'; known: gemma2, .*gptneox.*stablelm"):
        tv.load(tmp_path / "m.gguf")
