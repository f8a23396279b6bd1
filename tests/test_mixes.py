"""Which tensor becomes what: the rules by their names, and llama.cpp's own choice for every type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiny_model
from llama_quantize import llama_quantize
from trivet import dtypes, mixes
from trivet.models.checkpoint import Checkpoint, Entry, open_checkpoint


def checkpoint(layers: int = 16, width: int = 512, heads: int = 8, kv: int = 4, **facts: int) -> Checkpoint:
    """A model of names and shapes."""
    shapes = {"token_embd.weight": (1000, width), "output_norm.weight": (width,)}
    for i in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            shapes[f"blk.{i}.{name}.weight"] = (width, width)
        shapes[f"blk.{i}.attn_norm.weight"] = (width,)
        shapes[f"blk.{i}.attn_q.bias"] = (width,)
    keys = {"block_count": layers, "attention.head_count": heads, "attention.head_count_kv": kv, **facts}
    metadata = {"general.architecture": "llama", **{f"llama.{k}": v for k, v in keys.items()}}
    entries = {name: Entry(dtypes.bf16, shape, lambda: np.empty(0)) for name, shape in shapes.items()}
    return Checkpoint(Path("model"), metadata, entries)


def of(found: dict, part: str) -> list[str]:
    return [str(kind) for name, kind in found.items() if f".{part}.weight" in name]


def test_q4_k_m() -> None:
    found = mixes.kinds(checkpoint(), "q4_k_m")
    more = [0, 1, 4, 7, 10, 13, 14, 15]  # the first and last two, and every third between
    want = ["q6_k" if i in more else "q4_k" for i in range(16)]
    assert of(found, "ffn_down") == of(found, "attn_v") == want
    assert set(of(found, "attn_q") + of(found, "ffn_up") + of(found, "attn_output")) == {"q4_k"}
    assert str(found["token_embd.weight"]) == "q6_k"
    assert {found["output_norm.weight"], found["blk.0.attn_norm.weight"], found["blk.3.attn_q.bias"]} == {
        dtypes.f32
    }


def test_q3_k_m_and_q2_k() -> None:
    found = mixes.kinds(checkpoint(), "q3_k_m")
    assert of(found, "attn_v") == ["q5_k"] * 2 + ["q4_k"] * 14
    assert of(found, "ffn_down") == ["q5_k"] + ["q4_k"] * 15
    found = mixes.kinds(checkpoint(), "q2_k")
    assert set(of(found, "attn_v")) == set(of(found, "ffn_down")) == {"q3_k"}
    assert set(of(mixes.kinds(checkpoint(kv=2), "q2_k"), "attn_v")) == {"q4_k"}


def test_rows_that_do_not_divide() -> None:
    narrow = {
        "q2_k": "iq4_nl", "q3_k_s": "iq4_nl", "q4_k_s": "q5_0", "q5_k_s": "q5_1", "q6_k": "q8_0",
        "q8_0": "q8_0",
    }  # fmt: skip
    for type, want in narrow.items():
        found = mixes.kinds(checkpoint(width=576), type)
        assert set(of(found, "ffn_up")) == {want}
        assert str(found["token_embd.weight"]) == "q8_0"
        assert set(mixes.kinds(checkpoint(width=20), type).values()) == {dtypes.f16, dtypes.f32}


def test_eight_experts() -> None:
    found = mixes.kinds(checkpoint(expert_count=8), "q4_k_m")
    assert set(of(found, "attn_v") + of(found, "attn_k")) == {"q8_0"}
    assert set(of(found, "attn_output")) == {"q5_k"}


def test_floats_are_of_one_kind() -> None:
    for type in ("f32", "f16", "bf16"):
        found = mixes.kinds(checkpoint(), type)
        assert {str(kind) for name, kind in found.items() if "norm" not in name and "bias" not in name} == {
            type
        }


@pytest.mark.parametrize("type", mixes.MIXES)
def test_as_llama_cpp_chooses(type: str, tmp_path: Path) -> None:
    wide = {
        name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        for name, shape in {
            "token_embd.weight": (len(tiny_model.TOKENS), 256), "output_norm.weight": (256,),
            **{f"blk.{i}.{n}.weight": (256,) for i in range(9) for n in ("attn_norm", "ffn_norm")},
            **{f"blk.{i}.{n}.weight": (64, 256) for i in range(9) for n in ("attn_k", "attn_v")},
            **{
                f"blk.{i}.{n}.weight": (256, 256)
                for i in range(9)
                for n in ("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
            },
        }.items()
    }  # fmt: skip
    sizes = {
        "llama.block_count": np.uint32(9),
        "llama.embedding_length": np.uint32(256),
        "llama.feed_forward_length": np.uint32(256),
        "llama.attention.head_count": np.uint32(16),
        "llama.attention.head_count_kv": np.uint32(4),
    }
    source = tiny_model.write(tmp_path / "source.gguf", sizes, wide)
    llama_quantize(source, tmp_path / "theirs.gguf", type)
    theirs = open_checkpoint(tmp_path / "theirs.gguf")
    ours = mixes.kinds(open_checkpoint(source), type)
    assert {name: entry.dtype for name, entry in theirs.tensors.items()} == ours
    if type != "f32":  # llama.cpp calls that what it was
        assert theirs.metadata["general.file_type"] == mixes.MIXES[type].number
