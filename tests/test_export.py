"""Exported files: the same model, with the plan and the chat format added."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from trivet.errors import InputError, UnsupportedError
from trivet.export import export
from trivet.formats.gguf import GGUFFile


@pytest.fixture(scope="module")
def exported(smollm2_path, tmp_path_factory):
    return export(smollm2_path, tmp_path_factory.mktemp("export") / "out.gguf")


@pytest.mark.model
def test_keeps_every_key_and_every_byte(exported, smollm2_path):
    old, new = GGUFFile.open(smollm2_path), GGUFFile.open(exported.path)
    added = {key for key in new.metadata if key.startswith("trivet.")}
    assert set(new.metadata) - added == set(old.metadata)
    assert all(new.encoded(key) == old.encoded(key) for key in old.metadata)
    assert list(new.tensors) == list(old.tensors)
    for name in old.tensors:
        assert np.array_equal(old.data(name), new.data(name)), name


@pytest.mark.model
def test_adds_the_plan_and_the_chat_format(exported):
    metadata = GGUFFile.open(exported.path).metadata
    assert exported.chat is None
    assert len(metadata["trivet.plan.serve"]) == exported.plan_bytes > 1000
    assert "trivet.chat.refused" not in metadata


@pytest.mark.model
def test_exporting_again_changes_nothing(exported, tmp_path):
    again = export(exported.path, tmp_path / "again.gguf")
    assert again.path.read_bytes() == exported.path.read_bytes()


@pytest.mark.model
def test_never_writes_over_the_model(exported):
    with pytest.raises(InputError, match="the model itself"):
        export(exported.path, exported.path.parent / "." / exported.path.name)
    assert GGUFFile.open(exported.path).tensors


def test_a_folder_is_not_exported(tmp_path):
    config = {
        "model_type": "llama", "num_attention_heads": 1, "hidden_size": 2, "num_hidden_layers": 1,
        "intermediate_size": 2, "vocab_size": 2,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"model.norm.weight": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedError, match="not a GGUF file"):
        export(tmp_path, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()
