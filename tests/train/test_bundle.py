"""Bundles: a GGUF like any other, in which no byte can be changed unseen."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_model
import trivet
from trivet import dtypes
from trivet.blocks import quantize
from trivet.errors import FileError, GGUFError, InputError, UnsupportedError
from trivet.formats.gguf import GGUFFile, TensorSource, write_gguf
from trivet.train import bundle

STAGE = {"recipe": "pretrain", "steps": 300, "data": "ab" * 32, "loss": 0.1 + 0.2}


def mixed() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    packed = quantize(rng.standard_normal((2, 64)).astype(np.float32), dtypes.q4_0)
    bits = rng.integers(0, 2**16, (3, 5), np.uint16)
    return {
        "f": rng.standard_normal((3, 5)).astype(np.float32),
        "odd": np.arange(3, dtype=np.int8),
        "packed": TensorSource(dtypes.q4_0, (2, 64), packed),
        "bf16": TensorSource(dtypes.bf16, (3, 5), lambda: bits),
        "strided": np.arange(24, dtype=np.float16).reshape(4, 6).T,
    }


def tiny(path: Path, **given: Any) -> bundle.Bundle:
    return bundle.write(path, tiny_model.metadata(), tiny_model.tensors(), stage=STAGE, **given)


def test_it_says_what_made_it(tmp_path: Path) -> None:
    one = tiny(tmp_path / "one.gguf")
    assert bundle.verify(tmp_path / "one.gguf") == one == bundle.Bundle(one.id, None, STAGE)
    two = bundle.write(tmp_path / "two.gguf", {}, mixed(), stage={"of": ("one",)}, parent=one.id)
    assert bundle.verify(tmp_path / "two.gguf") == two
    assert (two.parent, two.stage) == (one.id, {"of": ["one"]})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.gguf", "two.gguf"]


def test_the_same_input_gives_the_same_id_and_any_other_another(tmp_path: Path) -> None:
    def made(**given: Any) -> str:
        plain = {"metadata": {}, "tensors": mixed(), "stage": {}}
        return bundle.write(tmp_path / "f", **(plain | given)).id

    changed = mixed()
    changed["f"] = changed["f"].reshape(5, 3)
    ids = [
        made(),
        made(metadata={"a": 1}),
        made(metadata={"a": np.int32(1)}),
        made(tensors=changed),
        made(tensors=dict(reversed(mixed().items()))),
        made(stage={"a": 1}),
        made(parent="0" * 64),
    ]
    assert len(set(ids)) == len(ids)
    assert made() == ids[0]


def test_trivet_loads_it(tmp_path: Path) -> None:
    tiny_model.write(tmp_path / "plain.gguf")
    tiny(tmp_path / "bundle.gguf")
    said = []
    for name in ("plain.gguf", "bundle.gguf"):
        model = trivet.load(tmp_path / name)
        said.append(model.generate("hello", max_tokens=8, temperature=0).text)
    assert said[0] == said[1]


def test_llama_cpp_loads_it(tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    metadata = tiny_model.metadata() | {"tokenizer.ggml.pre": "gpt-2"}
    bundle.write(tmp_path / "bundle.gguf", metadata, tiny_model.tensors(), stage=STAGE)
    model = llama_cpp.Llama(str(tmp_path / "bundle.gguf"), n_ctx=32, verbose=False)
    assert json.loads(model.metadata["trivet.bundle.stage"]) == STAGE
    assert model.create_completion("hello", max_tokens=1)["choices"]


def test_metadata_of_another_bundle_is_left_out(tmp_path: Path) -> None:
    one = tiny(tmp_path / "one")
    file = GGUFFile.open(tmp_path / "one")
    kept = {key: file.encoded(key) for key in file.metadata}
    tensors = {n: TensorSource(t.dtype, t.shape, file.data(n)) for n, t in file.tensors.items()}
    again = bundle.write(tmp_path / "two", kept, tensors, stage={"copied": True}, parent=one.id)
    assert bundle.verify(tmp_path / "two") == again
    assert again.stage == {"copied": True}
    same = bundle.write(tmp_path / "three", kept, tensors, stage=STAGE)
    assert same.id == one.id


def test_each_tensor_is_made_once(tmp_path: Path) -> None:
    calls = []

    def make() -> np.ndarray:
        calls.append(1)
        return np.ones(4, np.float32)

    bundle.write(tmp_path / "f", {}, {"w": TensorSource(dtypes.f32, (4,), make)}, stage={})
    assert len(calls) == 1
    bundle.verify(tmp_path / "f")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"parent": "abc"}, "parent: is 'abc'"),
        ({"parent": "A" * 64}, "parent"),
        ({"parent": 3}, "parent"),
        ({"stage": {"a": object()}}, r"stage\.a: is a object"),
        ({"tensors": {}}, "there are none"),
        ({"tensors": {"w": np.zeros(2, np.complex64)}}, "'w'"),
        ({"tensors": {"w": TensorSource(dtypes.f32, (3,), np.zeros(2, np.float32))}}, "'w'"),
        ({"metadata": {"a": None}}, "NoneType"),
    ],
    ids=str,
)
def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, given: Any, message: str) -> None:
    arguments = {"metadata": {}, "tensors": {"w": np.zeros(2, np.float32)}, "stage": {}} | given
    with pytest.raises(InputError, match=message):
        bundle.write(tmp_path / "f", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_disk_leaves_what_was_there(tmp_path: Path) -> None:
    def fail() -> np.ndarray:
        raise OSError(28, "No space left on device")

    tiny(tmp_path / "f")
    before = (tmp_path / "f").read_bytes()
    with pytest.raises(FileError, match="No space left"):
        bundle.write(tmp_path / "f", {}, {"w": TensorSource(dtypes.f32, (4,), fail)}, stage={})
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == before


def test_the_tensor_whose_byte_changed_is_named(tmp_path: Path) -> None:
    tiny(tmp_path / "f")
    whole = (tmp_path / "f").read_bytes()
    for name, info in GGUFFile.open(tmp_path / "f").tensors.items():
        for at in (0, info.nbytes // 2, info.nbytes - 1):
            changed = bytearray(whole)
            changed[info.offset + at] ^= 1
            (tmp_path / "f").write_bytes(changed)
            with pytest.raises(FileError, match=f"tensor '{name}': sha256 differs"):
                bundle.verify(tmp_path / "f")


def test_a_flipped_bit_anywhere_is_refused(tmp_path: Path) -> None:
    bundle.write(tmp_path / "f", tiny_model.metadata(), mixed(), stage=STAGE, parent="1" * 64)
    whole = (tmp_path / "f").read_bytes()
    head = min(info.offset for info in GGUFFile.open(tmp_path / "f").tensors.values())
    rng = random.Random(0)
    places = [*range(200), *rng.sample(range(head), 400), *range(head, len(whole))]
    for at in places:
        changed = bytearray(whole)
        changed[at] ^= 1 << rng.randrange(8)
        (tmp_path / "f").write_bytes(changed)
        with pytest.raises((FileError, UnsupportedError)):
            bundle.verify(tmp_path / "f")
    for cut in (*range(1, 40), len(whole) // 2, len(whole) - 3):
        (tmp_path / "f").write_bytes(whole[:-cut])
        if whole[-cut:].strip(b"\0"):  # the last padding may be missing, as in any GGUF
            with pytest.raises(FileError):
                bundle.verify(tmp_path / "f")
    (tmp_path / "f").write_bytes(whole + b"\0" * 32)
    with pytest.raises(FileError, match="padding"):
        bundle.verify(tmp_path / "f")


def test_what_is_no_bundle(tmp_path: Path) -> None:
    tiny_model.write(tmp_path / "plain")
    with pytest.raises(FileError, match="not a bundle"):
        bundle.verify(tmp_path / "plain")
    (tmp_path / "text").write_text("a text that is long enough for a header")
    with pytest.raises(GGUFError, match="magic"):
        bundle.verify(tmp_path / "text")
    with pytest.raises(FileError, match="No such file"):
        bundle.verify(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"trivet.bundle.version": np.uint32(2)}, UnsupportedError, "version 2; this build reads 1"),
        ({"trivet.bundle.version": "1"}, FileError, "id"),
        ({"trivet.bundle.sha256": "0"}, FileError, "sha256"),
        ({"trivet.bundle.sha256": ["0"] * 3}, FileError, "sha256"),
        ({"trivet.bundle.sha256": np.zeros(1)}, FileError, "sha256"),
        ({"trivet.bundle.id": 3}, FileError, "id"),
        ({"trivet.bundle.id": "0" * 64}, FileError, "id"),
    ],
    ids=str,
)
def test_hostile_metadata(tmp_path: Path, changed: Any, error: type[Exception], message: str) -> None:
    ours = {
        "trivet.bundle.id": "0" * 64,
        "trivet.bundle.sha256": ["0" * 64],
        "trivet.bundle.version": np.uint32(1),
    }
    write_gguf(tmp_path / "f", ours | changed, {"w": np.zeros(2, np.float32)})
    with pytest.raises(error, match=message):
        bundle.verify(tmp_path / "f")
