"""Mapped files that another program cuts short: an error when they are next used, and no SIGBUS."""

import os

import numpy as np
import pytest

import tiny_model
import trivet as tv
from trivet.errors import FileError
from trivet.formats.gguf import GGUFFile
from trivet.formats.safetensors import SafetensorsFile
from trivet.formats.safetensors_save import write_sharded

SAID = "was cut short while it was open: it has 4096 of"


@pytest.fixture
def path(tmp_path):
    return tiny_model.write(tmp_path / "m.gguf")


def test_gguf(path):
    file = GGUFFile.open(path)
    os.truncate(path, 4096)
    with pytest.raises(FileError, match=SAID):
        file.array("output_norm.weight")
    with pytest.raises(FileError, match=SAID):
        file.encoded("tokenizer.ggml.tokens")


def test_a_shard(tmp_path):
    arrays = {name: np.full(4096, i, np.float32) for i, name in enumerate("ab")}
    write_sharded(tmp_path, arrays, {}, 10_000)
    file = SafetensorsFile.open(tmp_path)
    os.truncate(tmp_path / "model-00002-of-00002.safetensors", 4096)
    assert not file.array("a").any()
    with pytest.raises(FileError, match=f"model-00002-of-00002.safetensors {SAID}"):
        file.array("b")


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_before_the_weights_are_loaded(path, device):
    model = tv.load(path, device)
    os.truncate(path, 4096)
    with pytest.raises(FileError, match=f"{SAID}|the file has room for"):
        model.logits([1, 2])


def test_while_it_generates(path):
    model = tv.load(path, "cpu")
    chunks = model.stream([1, 2], max_tokens=50, temperature=0)
    next(chunks)
    session = model.session()
    os.truncate(path, 4096)
    with pytest.raises(FileError, match=SAID):
        for _ in chunks:
            pass
    with pytest.raises(FileError, match=SAID):
        model.tokenizer.encode("hello")
    with pytest.raises(FileError, match=SAID):
        model.engine.forward(session, [1], [0])
    assert session.length == 0


def test_another_file_under_its_name_is_no_harm(path, tmp_path):
    model = tv.load(path, "cpu")
    before = model.generate("hello", 4, temperature=0).ids
    (tmp_path / "new").write_bytes(b"GGUF")
    os.replace(tmp_path / "new", path)
    assert model.generate("hello", 4, temperature=0).ids == before
