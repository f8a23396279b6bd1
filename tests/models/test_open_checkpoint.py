"""Opening a folder or a file as a checkpoint, before any architecture looks at it: what is refused, how."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import tiny_model
import trivet as tv
from trivet.errors import FileError, ModelError, TrivetError, UnsupportedError
from trivet.models.checkpoint import open_checkpoint

CONFIG = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 4,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[1]", "is a list, not an object"),
        (b"{\xff}", "is not JSON"),
        (b'{"a":' * 100_000, "is not JSON"),
        (b'{"a":' + b"9" * 10_000 + b"}", "is not JSON"),
        (b'{"model_type":"llama","model_type":"gpt2"}', "'model_type' appears twice"),
        (b'{"a":[' + b"0," * 3_000_000 + b"0]}", "values; at most 2000000"),
        (b'{"hidden_size": 8}', "has no model_type"),
        (b'{"model_type": 7}', "has no model_type"),
        (b'{"model_type": ["llama"]}', "has no model_type"),
        (
            b'{"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}',
            "quantised (gptq): trivet opens folders of floats",
        ),
        (b'{"model_type": "llama", "quantization_config": [[]]}', "quantised (quantization_config)"),
        (b'{"model_type": "no-such-thing"}', "'no-such-thing'; known: "),
    ],
)
def test_a_config_that_is_none(tmp_path: Path, text: bytes, found: str) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises((FileError, ModelError, UnsupportedError)) as caught:
        open_checkpoint(tmp_path)
    assert found in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_config_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a folder without a config"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(FileError, match=r"config\.json: is a folder"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").rmdir()
    (tmp_path / "config.json").symlink_to(tmp_path / "gone")
    with pytest.raises(FileError, match="No such file"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").unlink()
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FileError, match=f"has {1 << 40} bytes"):
        open_checkpoint(tmp_path)


def folder(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    (path / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, path / "model.safetensors")
    return path


def test_tensors_of_a_type_that_is_not_read_are_named_by_type(tmp_path: Path) -> None:
    tensors = {
        "model.embed_tokens.weight": torch.zeros(4, 8),
        "model.norm.weight": torch.ones(8),
        "model.layers.0.input_layernorm.weight": torch.ones(8),
        "model.layers.0.self_attn.q_proj.weight": torch.zeros(8, 8).to(torch.float8_e4m3fn),
    }
    checkpoint = open_checkpoint(folder(tmp_path, tensors))
    assert [t.type_name for t in checkpoint.unsupported.values()] == ["F8_E4M3"]
    with pytest.raises(UnsupportedError, match="F8_E4M3, which trivet does not read"):
        checkpoint.find(next(iter(checkpoint.unsupported)), (8, 8))
    with pytest.raises(TrivetError):
        tv.load(tmp_path)


def test_a_gguf_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    record = (
        b"ffn_down.weight"
        + (2).to_bytes(4, "little")
        + (96).to_bytes(8, "little")
        + (64).to_bytes(8, "little")
    )
    at = data.index(record) + len(record)
    data[at : at + 4] = (25).to_bytes(4, "little")  # i16: half of the bytes
    path.write_bytes(data)
    with pytest.raises(UnsupportedError, match=r"'blk.0.ffn_down.weight' of m.gguf has type i16"):
        tv.load(path)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.rotary.weight", "", "x" * 10_000])
def test_tensors_that_no_such_model_has(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="is not one a llama model has") as caught:
        open_checkpoint(folder(tmp_path, {name: torch.ones(2)}))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("shape", [(), (4, 0), (2, 2, 2), (0, 8)])
def test_an_embedding_that_is_none(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """The tokenizer takes its size from it, before the model is looked at."""
    folder(tmp_path, {"model.embed_tokens.weight": torch.zeros(shape)})
    with pytest.raises(ModelError, match=r"the embedding has the shape \("):
        open_checkpoint(tmp_path)


def test_scalars_and_other_shapes_are_refused_by_name(tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": torch.zeros(4, 8), "model.norm.weight": torch.tensor(1.0)}
    with pytest.raises(ModelError, match=r"output_norm|attn_norm"):
        tv.load(folder(tmp_path, tensors))
    assert np.array_equal(open_checkpoint(tmp_path).tensors["token_embd.weight"].values(), np.zeros((4, 8)))
