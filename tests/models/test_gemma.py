"""Gemma 2 and 3: what only they have in configurations and metadata, and what makes no sense there."""

import json

import pytest

import trivet as tv
from trivet.errors import ModelError
from trivet.formats.gguf import write_gguf
from trivet.models import gemma
from trivet.models.checkpoint import open_checkpoint

pytest.importorskip("torch")
pytest.importorskip("transformers")

import variants


@pytest.fixture(scope="module", params=["gemma2", "gemma3"])
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    variants.saved(folder, request.param)
    return folder


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_activation", "relu"), ("use_bidirectional_attention", True), ("query_pre_attn_scalar", 0),
        ("attn_logit_softcapping", "x"), ("final_logit_softcapping", -3.0), ("num_hidden_layers", 2**31 - 1),
        ("rope_parameters", "x"), ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4}),
        ("rope_parameters", {"full_attention": "x"}),
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit(folder, tmp_path, key, value):
    config = json.loads((folder / "config.json").read_text()) | {key: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").hardlink_to(folder / "model.safetensors")
    with pytest.raises(ModelError):
        tv.load(tmp_path)


@pytest.mark.parametrize("change", [{"rope_type": "linear", "factor": 2.0}, {"rope_theta": "x"}, "x"])
def test_a_local_rotation_that_does_not_fit(folder, tmp_path, change):
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] == "gemma2":
        return  # has one rotation
    near = config["rope_parameters"]["sliding_attention"]
    config["rope_parameters"]["sliding_attention"] = near | change if isinstance(change, dict) else change
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").hardlink_to(folder / "model.safetensors")
    with pytest.raises(ModelError):
        tv.load(tmp_path)


@pytest.mark.parametrize("pattern", [0, -1, [True], "x", 2.5])
def test_a_pattern_that_does_not_fit(folder, tmp_path, pattern):
    checkpoint = open_checkpoint(folder)
    key = f"{checkpoint.architecture}.attention.sliding_window_pattern"
    tensors = {name: checkpoint.load(name) for name in checkpoint.tensors}
    write_gguf(tmp_path / "m.gguf", {**checkpoint.metadata, key: pattern}, tensors)
    if pattern == 0:  # no layer sees all
        assert all(tv.load(tmp_path / "m.gguf").config.windows)
        return
    with pytest.raises(ModelError, match="sliding_window_pattern"):
        tv.load(tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["gemma2-deep", "gemma3-deep"])
def test_early_configurations_say_the_same(name, tmp_path):
    variants.saved(tmp_path, name)
    config = json.loads((tmp_path / "config.json").read_text())
    early = {k: v for k, v in config.items() if k not in ("layer_types", "rope_parameters")}
    early |= {"rope_theta": 1e4, "rope_scaling": None}
    if name == "gemma3-deep":
        early |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6}
    want = gemma.hf_metadata(config)
    key = f"{want['general.architecture']}.attention.sliding_window"
    assert (
        want[f"{key}_pattern"].count(False) == len(want[f"{key}_pattern"]) // gemma.FAMILIES[name[:6]].period
    )
    assert gemma.hf_metadata(early) == want
