"""`trivet quantize` as a user runs it."""

import json

import pytest

import tiny_model
from command import ok, trivet


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    (folder / "t.txt").write_text("hello, he said; " * 40)
    return tiny_model.write(folder / "m.gguf"), folder / "t.txt"


def test_what_is_said(made, tmp_path):
    model, text = made
    out = tmp_path / "q.gguf"
    said = ok("quantize", model, out, "--type", "q4_k", "--calibrate", text, "--eval", text)
    assert "bits a weight; error" in said
    assert "mean NLL" in said
    assert sum(line.startswith("blk.") for line in said.splitlines()) == 5
    told = json.loads(ok("quantize", model, out, "--type", "q4_k", "--json"))
    assert told["type"] == "q4_k_m"
    assert len(told["tensors"]) == 20
    assert told["nll_before"] is None
    assert len(ok("run", out, "hello", "--raw", "--max-tokens", 3, "--temperature", 0)) > 0


def test_few_bits_want_a_text(made, tmp_path):
    model, text = made
    for type, more, noted in (
        ("Q4_0", (), True),
        ("q8_0", (), False),
        ("q4_0", ("--calibrate", text), False),
    ):
        done = trivet("quantize", model, tmp_path / "q.gguf", "--type", type, *more)
        assert done.returncode == 0, done.stderr
        assert ("--calibrate TEXT" in done.stderr) is noted


def test_mistakes_are_one_line(made, tmp_path):
    model, _ = made
    done = trivet("quantize", model, tmp_path / "q.gguf", "--type", "q9")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "known: f32, f16" in done.stderr
    done = trivet("quantize", model, model)
    assert done.returncode == 2
    assert "the model itself" in done.stderr
