"""What `inspect` tells: of good models, of each thing that can be wrong, and of models that cannot be run."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny_model
import variants
from command import ok
from trivet.blocks import quantize
from trivet.dtypes import q8_0
from trivet.errors import FileError, GGUFError
from trivet.formats.gguf import TensorSource, write_gguf, write_split
from trivet.generate.describe import describe


def test_a_good_model(tmp_path: Path) -> None:
    found = describe(tiny_model.write(tmp_path / "m.gguf"), 64)
    values = sum(array.size for array in tiny_model.tensors().values())
    assert found["problems"] == []
    assert (found["problem"], found["format"], found["architecture"]) == (None, "GGUF v3", "llama")
    assert found["types"] == [{"type": "f32", "tensors": 20, "bytes": 4 * values, "parameters": values}]
    assert (found["bytes"], found["parameters"], found["bits_per_weight"]) == (4 * values, values, 32)
    assert found["memory"]["caches"] == {"f16": 2 * 2 * 2 * 64 * 16 * 2}  # no q8_0: heads of 16
    words = found["tokenizer"]
    end = {"id": tiny_model.TOKENS.index(tiny_model.END), "token": tiny_model.END}
    assert (words["kind"], words["pre"], words["tokens"]) == ("gpt2", "gpt2", len(tiny_model.TOKENS))
    assert words["special"]["eos"] == end
    assert end in words["ends"]
    assert (words["add_bos"], words["add_eos"], words["add_space_prefix"]) == (False, False, False)
    assert found["template"] == {"characters": len(tiny_model.TEMPLATE), "for_c": True}


def test_types_and_bits_of_mixed_tensors(tmp_path: Path) -> None:
    wide = tiny_model.tensors()["blk.0.ffn_up.weight"]
    tensors: dict[str, Any] = dict(tiny_model.tensors())
    tensors["blk.0.ffn_up.weight"] = TensorSource(q8_0, wide.shape, quantize(wide, q8_0))
    write_gguf(tmp_path / "m.gguf", tiny_model.metadata(), tensors)
    found = describe(tmp_path / "m.gguf")
    packed = {"type": "q8_0", "tensors": 1, "bytes": wide.size * 34 // 32, "parameters": wide.size}
    assert found["types"][1] == packed
    assert found["bits_per_weight"] == 8 * found["bytes"] / found["parameters"]


def test_parts(tmp_path: Path) -> None:
    paths = write_split(tmp_path / "m.gguf", tiny_model.metadata(), tiny_model.tensors(), 60000)
    found = describe(paths[0])
    assert found["format"] == f"GGUF v3 in {len(paths)} parts"
    assert (found["problems"], len(found["tensors"])) == ([], 20)


@pytest.mark.parametrize(
    ("metadata", "weights", "problem"),
    [
        ({"tokenizer.chat_template": "{{ 1 / 0 }}"}, {}, "C programs cannot chat with it"),
        ({"tokenizer.ggml.pre": "unheard-of"}, {}, "the tokenizer cannot be used: .*unheard-of"),
        ({"tokenizer.ggml.model": None}, {}, "there is no tokenizer"),
        ({}, {"extra.weight": np.ones(4, np.float32)}, "the architecture has no use for extra.weight"),
        ({}, {"rope_freqs.weight": np.ones(8, np.float32)}, None),
        ({}, {"output_norm.weight": None}, "cannot be run: .*'output_norm.weight' is missing"),
        ({"general.architecture": "rwkv9"}, {}, "cannot be run: .*'rwkv9'; known: gemma2, "),
        ({"llama.block_count": None}, {}, "cannot be run: .*llama.block_count is missing"),
        (
            {},
            {"output_norm.weight": np.full(64, np.nan, np.float32)},
            "output_norm.weight holds NaN .* 64 of 64",
        ),
    ],
)
def test_each_problem(
    tmp_path: Path, metadata: dict[str, Any], weights: dict[str, Any], problem: str | None
) -> None:
    found = describe(tiny_model.write(tmp_path / "m.gguf", metadata, weights))
    if problem is None:
        assert found["problems"] == []
    else:
        [told] = found["problems"]
        assert re.search(problem, told), told
        assert (found["problem"] is None) == (found["memory"] is not None) == ("cannot be run" not in told)


def test_a_tokenizer_of_more_tokens_than_rows(tmp_path: Path) -> None:
    rows = tiny_model.tensors()["token_embd.weight"][:-3]
    found = describe(tiny_model.write(tmp_path / "m.gguf", weights={"token_embd.weight": rows}))
    assert any(
        f"has {len(rows) + 3} tokens, the embedding {len(rows)} rows" in told for told in found["problems"]
    )


def test_every_tensor_is_read_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivet.generate.describe.SMALL", 1000)
    wide = tiny_model.tensors()["blk.1.ffn_up.weight"].copy()
    wide[3, 5], wide[4, 6] = np.inf, np.nan
    path = tiny_model.write(tmp_path / "m.gguf", weights={"blk.1.ffn_up.weight": wide})
    assert describe(path)["problems"] == []
    seen: list[int] = []
    told = describe(path, check=True, advance=seen.append)["problems"]
    assert told == [f"blk.1.ffn_up.weight holds NaN or infinity, 2 of {wide.size} values"]
    assert sum(seen) == 20


def test_a_type_that_is_not_read(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    at = data.index(b"ffn_down.weight") + len(b"ffn_down.weight") + 4 + 16
    data[at : at + 4] = (25).to_bytes(4, "little")  # i16: half of the bytes
    path.write_bytes(data)
    found = describe(path)
    assert found["problem"].endswith("has type i16, which trivet does not read")
    assert "trivet does not read i16: blk.0.ffn_down.weight" in found["problems"]
    assert {row["type"]: row["tensors"] for row in found["types"]} == {"f32": 19, "i16 (not supported)": 1}


@pytest.mark.parametrize(
    ("config", "name", "problem"),
    [
        ({"model_type": "rwkv9", "sizes": [1, 2]}, "x", "model_type is 'rwkv9'; known: "),
        ({"hidden_size": 8}, "x", "has no model_type"),
        ({"model_type": "llama", "hidden_size": 8}, "x", "missing|is not one a llama model has"),
    ],
)
def test_a_folder_that_cannot_be_opened(tmp_path: Path, config: Any, name: str, problem: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(
        {name: torch.zeros(4, 2), "f8": torch.zeros(3).to(torch.float8_e5m2)}, tmp_path / "model.safetensors"
    )
    found = describe(tmp_path, check=True)
    assert re.search(problem, found["problem"]), found["problem"]
    assert {t["name"]: t["dtype"] for t in found["tensors"]} == {"x": "f32", "f8": "F8_E5M2 (not supported)"}
    assert found["format"] == "folder of 1 safetensors"
    assert found["memory"] is None
    if "sizes" in config:
        assert found["metadata"] == {"model_type": "rwkv9", "sizes": "[1, 2]"}
    shown = ok("inspect", tmp_path)
    assert "problem: cannot be run: " in shown
    assert "problem: trivet does not read F8_E5M2: f8" in shown


@pytest.mark.parametrize(("name", "tensor"), [("llama", "self_attn.k_proj"), ("gptneox", "query_key_value")])
@pytest.mark.parametrize("shape", [(), (7,), (7, 48)])
def test_a_tensor_whose_rows_have_no_order(
    tmp_path: Path, name: str, tensor: str, shape: tuple[int, ...]
) -> None:
    variants.saved(tmp_path, name)
    tensors = load_file(tmp_path / "model.safetensors")
    (wrong,) = (key for key in tensors if f"layers.1.{tensor}.weight" in key.replace("attention.", ""))
    save_file({**tensors, wrong: torch.zeros(shape)}, tmp_path / "model.safetensors")
    found = describe(tmp_path, check=True)["problems"]
    assert len(found) == 3  # and there is no tokenizer
    assert "cannot be run" in found[0]
    assert f"has the shape {shape}; wanted" in found[1]


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileError, match=r"holds 0 \.safetensors"):
        describe(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(GGUFError):
        describe(tmp_path / "m.gguf")


def test_the_verb(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "m.gguf", {"tokenizer.chat_template": None})
    shown = ok("inspect", path, "--check", "--context", 100)
    assert "100 and f16: " in shown
    assert "gpt2, 261 tokens, pre-tokeniser gpt2" in shown
    assert "none: it completes text, and cannot chat" in shown
    assert json.loads(ok("inspect", path, "--json"))["problems"] == []
    assert ok("inspect", tiny_model.write(path)).endswith("no problems found; --check reads every tensor\n")
