"""Adapter files that are not what they claim: each is one typed error that names what is wrong."""

import json

import numpy as np
import pytest

import tiny_adapter
import tiny_model
from trivet.adapter import Adapter
from trivet.errors import FileError, ModelError, NonFiniteError, TrivetError, UnsupportedError
from trivet.formats.adapters import mlx, peft
from trivet.formats.gguf import GGUFFile, write_gguf
from trivet.formats.safetensors import SafetensorsFile
from trivet.formats.safetensors_save import write_safetensors
from trivet.models.checkpoint import open_checkpoint

Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return open_checkpoint(tiny_model.write(tmp_path_factory.mktemp("base") / "m.gguf"))


@pytest.fixture
def folder(base, tmp_path):
    return tiny_adapter.make(base).save(tmp_path / "adapter")


def change_config(folder, **changes):
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


def change_arrays(folder, changes, name=peft.WEIGHTS):
    file = SafetensorsFile.open(folder / name)
    arrays = {n: file.array(n) for n in file.tensors}
    for key, value in changes.items():
        arrays[key] = value(arrays.get(key)) if callable(value) else value
    write_safetensors(folder / name, {k: v for k, v in arrays.items() if v is not None})


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"peft_type": "IA3"}, UnsupportedError, "peft_type is 'IA3'"),
        ({"use_dora": True}, UnsupportedError, "use_dora"),
        ({"bias": "lora_only"}, UnsupportedError, "bias is 'lora_only'"),
        ({"lora_bias": True}, UnsupportedError, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, UnsupportedError, "modules_to_save"),
        ({"fan_in_fan_out": True}, UnsupportedError, "fan_in_fan_out"),
        ({"layer_replication": [[0, 2]]}, UnsupportedError, "layer_replication"),
        ({"target_parameters": ["x"]}, UnsupportedError, "target_parameters"),
        ({"a_setting_of_tomorrow": 1}, UnsupportedError, "a_setting_of_tomorrow"),
        ({"init_lora_weights": "pissa"}, UnsupportedError, "init_lora_weights is 'pissa'"),
        ({"r": 0}, FileError, "r: is 0; wanted an integer from 1 to 4096"),
        ({"r": 2.0}, FileError, "r: is 2.0"),
        ({"r": True}, FileError, "r: is True"),
        ({"r": 10**400}, FileError, "r: is 1000"),
        ({"r": ...}, FileError, "r: is None"),
        ({"r": 8}, FileError, "has rank 4; adapter_config.json says 8"),
        ({"lora_alpha": 0}, FileError, "lora_alpha: is 0"),
        ({"lora_alpha": float("nan")}, FileError, "lora_alpha: is nan"),
        ({"lora_alpha": float("inf")}, FileError, "lora_alpha: is inf"),
        ({"lora_alpha": "16"}, FileError, "lora_alpha: is '16'"),
        ({"lora_dropout": 1.5}, FileError, "lora_dropout: is 1.5"),
        ({"use_rslora": "yes"}, FileError, "use_rslora"),
        ({"target_modules": ["q_proj", "x_proj"]}, FileError, "target_modules 'x_proj'.*no tensors"),
        ({"target_modules": [3]}, FileError, "target_modules"),
        ({"rank_pattern": {"q_proj": 2}}, FileError, "has rank 4; adapter_config.json says 2"),
        ({"rank_pattern": {"q_proj": "x"}}, FileError, "rank_pattern: is 'x'"),
        ({"rank_pattern": [1]}, FileError, "rank_pattern: is not an object"),
        ({"alpha_pattern": {"q_proj": -1}}, FileError, "alpha_pattern: is -1"),
        ({"alpha_pattern": {"[": 1}}, FileError, "not a regular expression"),
        ({"alpha_pattern": {"(a+)+b": 1}}, UnsupportedError, "may take long"),
        ({"alpha_pattern": {"(a|a)(a|a)(a|a)": 1}}, UnsupportedError, "may take long"),
        ({"alpha_pattern": {"a?a?a?aaa": 1}}, UnsupportedError, "may take long"),
        ({"alpha_pattern": {r"(.)\1": 1}}, UnsupportedError, "may take long"),
        ({"base_model_name_or_path": 3}, FileError, "base_model_name_or_path"),
    ],
)
def test_peft_settings(base, folder, changes, error, says):
    change_config(folder, **changes)
    with pytest.raises(error, match=says):
        Adapter.open(folder, base)


def test_patterns_of_many_expressions(base, folder):
    change_config(folder, alpha_pattern={f"[{c}]_proj": 2 for c in "abcdefghijklmnopqrs"})
    with pytest.raises(UnsupportedError, match="more than 16"):
        Adapter.open(folder, base)


A, B = f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"
ARRAYS = [
    ({A: None}, FileError, "q_proj.lora_A.weight.*missing; its other half"),
    ({B: None}, FileError, "q_proj.lora_B.weight.*missing; its other half"),
    ({A: lambda x: x[:2]}, FileError, "has rank 2 in lora_A.weight and 4 in lora_B.weight"),
    ({A: lambda x: x[:, :3]}, ModelError, r"blk.0.attn_q.weight \(64, 3\); in m.gguf it is \(64, 64\)"),
    ({B: lambda x: x[:3]}, ModelError, r"\(3, 64\); in m.gguf it is \(64, 64\)"),
    ({A: lambda x: x.T}, FileError, "has rank 64"),
    ({A: lambda x: x.astype(np.int32)}, FileError, "is i32; wanted f32, f16 or bf16"),
    ({A: lambda x: x.reshape(-1)}, FileError, r"shape \(256,\); wanted a matrix"),
    ({A: lambda x: x[:0]}, FileError, "wanted a matrix"),
    ({B: lambda x: x * np.float32("nan")}, NonFiniteError, "q_proj.lora_B.weight.*infinity or NaN"),
    ({B: lambda x: x + np.float32("inf")}, NonFiniteError, "q_proj.lora_B.weight.*infinity or NaN"),
    ({"x": np.ones((2, 2), np.float32)}, FileError, "'x'.*not LoRA's"),
    ({"base_model.model.lm_head.base_layer.weight": np.ones((2, 2), np.float32)}, UnsupportedError,
     "lm_head.base_layer.weight' is a weight of the model itself"),
    ({f"{Q}.lora_magnitude_vector": np.ones(2, np.float32)}, FileError, "wanted a matrix"),
    ({Q.replace(".0.", ".7.") + end: np.ones((4, 4), np.float32) for end in peft.ENDS}, ModelError,
     "blk.7.attn_q.weight', which m.gguf does not have"),
    ({Q.replace("q_proj", "z_proj") + end: np.ones((4, 4), np.float32) for end in peft.ENDS}, ModelError,
     "z_proj' is not one a llama model has"),
    ({"base_model.model.model.embed_tokens" + end: np.ones((4, 4), np.float32) for end in peft.ENDS},
     UnsupportedError, "not embeddings"),
    ({"base_model.model." + "x" * 300 + end: np.ones((4, 4), np.float32) for end in peft.ENDS}, FileError,
     "over 128 characters"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "says"), ARRAYS)
def test_peft_arrays(base, folder, changes, error, says):
    change_arrays(folder, changes)
    with pytest.raises(error, match=says):
        Adapter.open(folder, base)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b"[]", "not an object"),
        (b"[" * 100000, "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
    ],
)
def test_configurations_that_are_none(base, folder, content, says):
    (folder / "adapter_config.json").write_bytes(content)
    with pytest.raises(FileError, match=says):
        Adapter.open(folder, base)


def test_missing_files(base, folder, tmp_path):
    (folder / peft.WEIGHTS).unlink()
    with pytest.raises(FileError, match=peft.WEIGHTS):
        Adapter.open(folder, base)
    (folder / "adapter_config.json").unlink()
    with pytest.raises(FileError, match=r"adapter_config\.json"):
        Adapter.open(folder, base)
    with pytest.raises(FileError, match="nothing"):
        Adapter.open(tmp_path / "nothing", base)
    with pytest.raises(FileError, match="an adapter is a folder"):
        Adapter.open(tmp_path / "x.safetensors", base)
    with pytest.raises(FileError, match="'adapter'"):
        Adapter.open(base.path, base)  # a model, not an adapter


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"fine_tune_type": "dora"}, UnsupportedError, "fine_tune_type is 'dora'"),
        ({"fine_tune_type": "full"}, UnsupportedError, "fine_tune_type is 'full'"),
        ({"lora_parameters": 3}, FileError, "lora_parameters: is not an object"),
        ({"lora_parameters": {"rank": 4}}, FileError, "lora_parameters.scale: is None"),
        ({"lora_parameters": {"rank": 4, "scale": "x"}}, FileError, "lora_parameters.scale: is 'x'"),
        ({"lora_parameters": {"rank": 4, "scale": 1e300}}, FileError, "lora_parameters.scale"),
        ({"lora_parameters": {"rank": 10**9, "scale": 1.0}}, FileError, "lora_parameters.rank"),
        ({"model": []}, FileError, "model"),
    ],
)
def test_mlx_settings(base, tmp_path, changes, error, says):
    if changes == {"model": []}:
        changes = {"model": [1]}
    folder = tiny_adapter.make(base).save(tmp_path / "mlx", "mlx")
    change_config(folder, **changes)
    with pytest.raises(error, match=says):
        Adapter.open(folder, base)


def test_mlx_arrays(base, tmp_path):
    folder = tiny_adapter.make(base).save(tmp_path / "mlx", "mlx")
    change_arrays(folder, {"model.layers.0.self_attn.q_proj.lora_a": None}, mlx.WEIGHTS)
    with pytest.raises(FileError, match=r"lora_a.*missing"):
        Adapter.open(folder, base)
    folder = tiny_adapter.make(base).save(tmp_path / "dora", "mlx")
    change_arrays(folder, {"model.layers.0.self_attn.q_proj.m": np.ones((1, 4), np.float32)}, mlx.WEIGHTS)
    with pytest.raises(FileError, match="not LoRA's"):
        Adapter.open(folder, base)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"general.type": "model"}, FileError, "general.type: is 'model'"),
        ({"general.type": None}, FileError, "general.type: is 'None'"),
        ({"adapter.type": "ia3"}, UnsupportedError, "adapter.type is 'ia3'"),
        ({"general.architecture": None}, FileError, "general.architecture"),
        ({"general.architecture": "gemma"}, ModelError, "is for gemma; m.gguf is llama"),
        ({"adapter.lora.alpha": np.float32("nan")}, FileError, "adapter.lora.alpha: is 'nan'"),
        ({"adapter.lora.alpha": "x"}, FileError, "adapter.lora.alpha: is 'x'"),
        ({"adapter.lora.alpha": np.float32(-1)}, FileError, "adapter.lora.alpha"),
        ({"adapter.alora.invocation_tokens": np.uint32([1])}, UnsupportedError, "adapter.alora"),
    ],
)
def test_gguf_settings(base, tmp_path, changes, error, says):
    path = tiny_adapter.make(base).save(tmp_path / "a.gguf")
    file = GGUFFile.open(path)
    metadata = {
        k: v for k, v in ({k: file.encoded(k) for k in file.metadata} | changes).items() if v is not None
    }
    write_gguf(tmp_path / "b.gguf", metadata, {n: file.array(n) for n in file.tensors})
    with pytest.raises(error, match=says):
        Adapter.open(tmp_path / "b.gguf", base)


def test_a_gguf_without_alpha_is_scaled_by_one(base, tmp_path):
    path = tiny_adapter.make(base).save(tmp_path / "a.gguf")
    file = GGUFFile.open(path)
    metadata = {k: file.encoded(k) for k in file.metadata if k != "adapter.lora.alpha"}
    write_gguf(tmp_path / "b.gguf", metadata, {n: file.array(n) for n in file.tensors})
    opened = Adapter.open(tmp_path / "b.gguf", base)
    assert {opened.scale(weight) for weight in opened.pairs} == {1.0}


@pytest.mark.parametrize("name", ["adapter_config.json", peft.WEIGHTS])
def test_a_changed_byte_is_refused_or_changes_a_number(base, folder, name):
    """Whatever byte of the files is another: a typed error, or an adapter of the same shapes."""
    whole = (folder / name).read_bytes()
    rng = np.random.default_rng(1)
    for at in rng.integers(0, min(len(whole), 3000), 150):
        broken = bytearray(whole)
        broken[at] ^= 1 << int(rng.integers(0, 8))
        (folder / name).write_bytes(broken)
        try:
            found = Adapter.open(folder, base)
        except TrivetError:
            continue
        assert {w: p.b.shape for w, p in found.pairs.items()}.items() <= {
            w: (e.shape[0], 4) for w, e in base.tensors.items() if len(e.shape) == 2
        }.items()
