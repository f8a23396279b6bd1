"""Importance matrices: what is collected, against PyTorch's view of the same model, and the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiny_model
import variants
from trivet import calibration
from trivet.errors import FileError, GGUFError, InputError, NonFiniteError
from trivet.formats.common import read_text
from trivet.formats.gguf import GGUFFile, write_gguf
from trivet.generate.model import load
from trivet.text.hf_tokenizer import tokenizer_files

TEXT = "hello, he said; " * 40


def test_sums_are_those_of_the_inputs(tmp_path: Path) -> None:
    weights = tiny_model.tensors()
    model = load(tiny_model.write(tmp_path / "m.gguf"), "reference")
    found = calibration.collect(model, TEXT)
    ids = model.tokenizer.encode(TEXT, add_special=True)
    assert found.tokens == len(ids)
    assert set(found.means) == {
        n for n, w in weights.items() if w.ndim == 2
    }  # the embedding, too: it is the output
    x = weights["token_embd.weight"][ids].astype(np.float64)
    h = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-5) * weights["blk.0.attn_norm.weight"]
    for name in ("attn_q", "attn_k", "attn_v"):
        assert np.allclose(found.means[f"blk.0.{name}.weight"], np.mean(h * h, axis=0), rtol=1e-5)
    assert found.means["blk.1.ffn_down.weight"].shape == (tiny_model.HIDDEN,)


def test_windows_are_sequences_of_their_own(tmp_path: Path) -> None:
    model = load(tiny_model.write(tmp_path / "m.gguf"), "cpu", threads=1)  # of a context of 128
    ids = model.tokenizer.encode(TEXT)
    assert len(ids) > 2 * tiny_model.CONTEXT
    told: list[int] = []
    whole = calibration.collect(model, TEXT, told.append)
    assert sum(told) == len(ids)
    reference = calibration.collect(load(tmp_path / "m.gguf", "reference"), TEXT)
    for name, mean in reference.means.items():
        assert np.allclose(whole.means[name], mean, rtol=1e-4)


def test_weights_are_about_one(tmp_path: Path) -> None:
    importance = calibration.Importance({"a": np.array([3.0, 1, 0, 0]), "nothing": np.zeros(4)}, 5)
    assert {k: v.tolist() for k, v in importance.weights().items()} == {
        "a": [3, 1, np.float32(1e-3), np.float32(1e-3)]
    }


def test_the_file(tmp_path: Path) -> None:
    importance = calibration.Importance({"blk.0.ffn_up.weight": np.array([2.0, 0.5])}, 600)
    calibration.save(tmp_path / "i.gguf", importance, "corpus.txt")
    import gguf

    reader = gguf.GGUFReader(tmp_path / "i.gguf")
    shapes = {t.name: (t.shape.tolist(), t.data.tolist()) for t in reader.tensors}
    assert shapes == {
        "blk.0.ffn_up.weight.in_sum2": ([2, 1], [[1200, 300]]),
        "blk.0.ffn_up.weight.counts": ([1, 1], [[600]]),
    }
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.chunk_count"].contents() == 2
    back = calibration.load(tmp_path / "i.gguf")
    assert back.tokens == 600
    assert back.means["blk.0.ffn_up.weight"].tolist() == [2, 0.5]


def test_files_of_experts(tmp_path: Path) -> None:
    tensors = {
        "a.in_sum2": np.array([[2, 4], [1, 1]], np.float32),
        "a.counts": np.array([[2], [0.5]], np.float32),
        "unseen.in_sum2": np.zeros((1, 2), np.float32),
        "unseen.counts": np.zeros((1, 1), np.float32),
    }
    write_gguf(tmp_path / "i.gguf", {"general.type": "imatrix"}, tensors)
    found = calibration.load(tmp_path / "i.gguf")
    assert {k: v.tolist() for k, v in found.means.items()} == {"a": [1.2, 2]}


def test_a_mixture_has_a_row_for_each_expert(tmp_path: Path) -> None:
    """As llama.cpp demands: columns times experts."""
    variants.saved(tmp_path / "m", "mixtral")
    for file, text in tokenizer_files(tiny_model.metadata()).items():
        (tmp_path / "m" / file).write_text(text)
    model = load(tmp_path / "m")
    collected = calibration.collect(model, "hello hell 12 heel " * 20)
    calibration.save(tmp_path / "i.gguf", collected, "t.txt")
    file = GGUFFile.open(tmp_path / "i.gguf")
    for name in ("blk.0.ffn_gate_exps.weight", "blk.2.ffn_down_exps.weight", "blk.1.attn_q.weight"):
        *several, _, columns = model.checkpoint.tensors[name].shape
        rows = several[0] if several else 1
        assert file.tensors[f"{name}.in_sum2"].shape == (rows, columns)
        assert file.array(f"{name}.counts").tolist() == [[collected.tokens]] * rows
    back = calibration.load(tmp_path / "i.gguf")
    assert back.tokens == collected.tokens
    assert all(np.allclose(back.means[name], mean) for name, mean in collected.means.items())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"a.counts": None}, "'a.counts': is missing"),
        ({"a.counts": np.ones((2, 1), np.float32)}, "'a.counts': is not of its sums"),
        (
            {"a.in_sum2": np.full((1, 2), np.nan, np.float32)},
            "'a.in_sum2': has values below 0, or not finite",
        ),
        ({"a.in_sum2": np.full((1, 2), -1, np.float32)}, "'a.in_sum2': has values below 0"),
        ({"a.in_sum2": np.zeros((1, 0), np.float32)}, "'a.in_sum2': is missing, or not a matrix"),
        ({"a.counts": np.zeros((1, 1), np.float32)}, "none ends in .in_sum2"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, changed: dict, message: str) -> None:
    tensors = {"a.in_sum2": np.ones((1, 2), np.float32), "a.counts": np.ones((1, 1), np.float32)} | changed
    kept = {k: v for k, v in tensors.items() if v is not None}
    write_gguf(tmp_path / "i.gguf", {"general.type": "imatrix"}, kept)
    with pytest.raises(FileError, match=message):
        calibration.load(tmp_path / "i.gguf")


def test_what_is_no_importance_matrix(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="not an importance matrix"):
        calibration.load(tiny_model.write(tmp_path / "m.gguf"))
    (tmp_path / "old.dat").write_bytes(b"\x05\0\0\0rest")
    with pytest.raises(GGUFError, match="magic"):
        calibration.load(tmp_path / "old.dat")


def test_texts_and_weights_that_will_not_do(tmp_path: Path) -> None:
    model = load(tiny_model.write(tmp_path / "m.gguf"), "reference")
    with pytest.raises(InputError, match="the text has 1 tokens"):
        calibration.collect(model, "h")
    broken = {"blk.0.ffn_up.weight": np.full((96, 64), 1e30, np.float32)}
    model = load(tiny_model.write(tmp_path / "b.gguf", weights=broken), "cpu")
    with pytest.raises(NonFiniteError, match="activations are infinite or NaN"):
        calibration.collect(model, TEXT)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(FileError, match="not UTF-8: byte 3"):
        read_text("quantize", tmp_path / "latin.txt")
