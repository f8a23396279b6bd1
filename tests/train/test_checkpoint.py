"""Checkpoints come back to the bit, are whole or refused by name, and pruning keeps the best."""

import fcntl
import hashlib
import json
import math
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch

from trivet.errors import CheckpointError, FileError, InputError, SafetensorsError, UnsupportedError
from trivet.train import checkpoint

FACTS = {
    "schedule": {"kind": "cosine", "steps": 300},
    "random": [2**64 - 1, -1],
    "best": [40, 0.1 + 0.2],
    "name": "žluť\ud800",
    "none": None,
    "flag": True,
}


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "bits": rng.integers(0, 2**16, (3, 5), np.uint16),
        "blk.0.w": rng.standard_normal((4, 6)).astype(np.float32),
        "m.blk.0.w": rng.standard_normal((4, 6)),
        "../../escape": np.arange(3, dtype=np.int64),
        "odd": np.array([True]),
        "empty": np.empty((0, 2), np.float16),
        "scalar": np.array(-0.0, np.float32),
        "strided": np.arange(24, dtype=np.float32).reshape(4, 6).T,
        "big-endian": np.arange(3, dtype=">i4"),
    }


def sealed(body: dict[str, Any]) -> bytes:
    """A checkpoint.json with a right sha256, whatever it says."""
    text = json.dumps(body, indent=1).encode().removesuffix(b"\n}") + b",\n"
    return text + b' "sha256": "' + hashlib.sha256(text).hexdigest().encode() + b'"\n}\n'


def body_of(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((path / "checkpoint.json").read_bytes())
    del body["sha256"]
    return body


def visible(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name != ".lock")


def test_all_of_it_comes_back_to_the_bit(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path / "new" / "run", 100, arrays(), FACTS)
    assert path == tmp_path / "new" / "run" / "step-00000100"
    assert sorted(p.name for p in path.iterdir()) == ["checkpoint.json", "tensors.safetensors"]
    saved = checkpoint.load(path, {name: array.shape for name, array in arrays().items()})
    assert (saved.step, saved.facts) == (100, FACTS)
    assert set(saved.arrays) == set(arrays())
    for name, array in arrays().items():
        assert saved.arrays[name].dtype == array.dtype.newbyteorder("<")
        assert saved.arrays[name].shape == array.shape
        assert saved.arrays[name].tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()
        assert not saved.arrays[name].flags.writeable
        assert saved.arrays[name].flags.aligned


def test_other_programs_read_the_tensors(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, {"w": np.float32([1.5, 2]), "b": np.uint16([0x3FC0])}, {})
    with safetensors.safe_open(path / "tensors.safetensors", "pt") as file:
        assert file.get_tensor("w").tolist() == [1.5, 2]
        assert file.get_tensor("b").dtype == torch.bfloat16
        assert file.get_tensor("b").item() == 1.5


def test_facts_of_numpy_and_values_json_does_not_have(tmp_path: Path) -> None:
    facts = {"i": np.int64(-3), "t": (1, 2), "f": np.float32(0.5), "inf": math.inf, "nan": math.nan}
    back = checkpoint.load(checkpoint.save(tmp_path, 0, {}, facts)).facts
    assert math.isnan(back.pop("nan"))
    assert back == {"i": -3, "t": [1, 2], "f": 0.5, "inf": math.inf}


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 0


@pytest.mark.parametrize(
    ("arrays", "facts", "message"),
    [
        ({"w": np.zeros(1)}, {"a": {"b": [0, {1, 2}]}}, r"facts\.a\.b\[1\]: is a set"),
        ({}, {"a": {1: 2}}, r"facts\.a: a key is 1"),
        ({}, {"a": np.zeros(2)}, r"facts\.a: is a ndarray"),
        ({}, {"a": nested(200)}, "deeper"),
        ({}, {"a": "x" * (1 << 24)}, "at most 16777216"),
        ({"w": [1, 2]}, {}, "'w': is a list"),
        ({"w": np.zeros(2, np.complex64)}, {}, "'w': cannot hold NumPy's complex64"),
        ({"w": np.array(["a"])}, {}, "'w': cannot hold"),
        ({"": np.zeros(2)}, {}, "name ''"),
        ({"__metadata__": np.zeros(2)}, {}, "__metadata__"),
        ({3: np.zeros(2)}, {}, "name 3"),
    ],
    ids=lambda v: None if isinstance(v, dict) else v,
)
def test_what_cannot_be_saved_changes_nothing(tmp_path: Path, arrays: Any, facts: Any, message: str) -> None:
    checkpoint.save(tmp_path, 1, {"w": np.zeros(3)}, {})
    with pytest.raises(InputError, match=message):
        checkpoint.save(tmp_path, 2, arrays, facts)
    assert visible(tmp_path) == ["step-00000001"]


@pytest.mark.parametrize("step", [-1, 2**53, True, 1.0, "1", None])
def test_steps_that_are_not(tmp_path: Path, step: Any) -> None:
    with pytest.raises(InputError, match="step"):
        checkpoint.save(tmp_path, step, {}, {})
    assert visible(tmp_path) == []


@pytest.mark.parametrize("folder", ["", "a\0b", 3, None])
def test_folders_that_are_not(folder: Any) -> None:
    for call in (checkpoint.latest, checkpoint.checkpoints, checkpoint.best, checkpoint.load):
        with pytest.raises(InputError, match="folder"):
            call(folder)


def test_saving_copies_nothing_whole(tmp_path: Path) -> None:
    big = {name: np.ones(1 << 20, np.float32) for name in "abcd"}
    tracemalloc.start()
    try:
        path = checkpoint.save(tmp_path, 1, big, {})
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.reset_peak()
        saved = checkpoint.load(path)
        assert tracemalloc.get_traced_memory()[1] < 3 << 20  # the chunks that are hashed
    finally:
        tracemalloc.stop()
    assert saved.arrays["d"][-1] == 1


# --- the folder ---


def test_checkpoints_are_listed_by_step(tmp_path: Path) -> None:
    for step in (5, 300_000_000, 40, 0):
        checkpoint.save(tmp_path, step, {}, {})
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-00000007").write_text("a file")
    (tmp_path / "step-0000000000000009").mkdir()  # not how 9 is written
    (tmp_path / "notes").mkdir()
    names = [p.name for p in checkpoint.checkpoints(tmp_path)]
    assert names == ["step-00000000", "step-00000005", "step-00000040", "step-300000000"]
    assert checkpoint.latest(tmp_path) == tmp_path / "step-300000000"


def test_no_folder_has_no_checkpoints_and_a_file_is_none(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "nothing") is None
    assert checkpoint.checkpoints(tmp_path / "nothing") == []
    assert checkpoint.latest(tmp_path) is None
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="Not a directory"):
        checkpoint.latest(tmp_path / "file")
    with pytest.raises(FileError, match="cannot be saved"):
        checkpoint.save(tmp_path / "file", 1, {}, {})


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        path = checkpoint.save(tmp_path, 3, {"w": np.array([value])}, {"value": value})
    saved = checkpoint.load(path)
    assert (saved.facts, saved.arrays["w"].tolist()) == ({"value": 2.0}, [2.0])
    assert visible(tmp_path) == ["step-00000003"]


def test_pruning_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    for step in range(1, 8):
        checkpoint.save(tmp_path, step, {}, {})
    checkpoint.prune(tmp_path, 2, 3)
    assert visible(tmp_path) == ["best.json", "step-00000003", "step-00000006", "step-00000007"]
    assert checkpoint.best(tmp_path) == tmp_path / "step-00000003"
    checkpoint.prune(tmp_path, 1, None)  # the best is remembered
    assert visible(tmp_path) == ["best.json", "step-00000003", "step-00000007"]
    checkpoint.prune(tmp_path, 1, 5)  # no longer there: the best of those that are stays
    assert checkpoint.best(tmp_path) == tmp_path / "step-00000003"
    checkpoint.prune(tmp_path, 1, 7)
    assert visible(tmp_path) == ["best.json", "step-00000007"]
    checkpoint.prune(tmp_path / "nothing", 1, None)
    for bad in (0, -1, True, "1"):
        with pytest.raises(InputError, match="keep_last"):
            checkpoint.prune(tmp_path, bad, None)
    with pytest.raises(InputError, match="best step"):
        checkpoint.prune(tmp_path, 1, -1)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"step": -1}', '{"step": "1"}', "[" * 999])
def test_a_broken_record_of_the_best_removes_nothing(tmp_path: Path, text: str) -> None:
    for step in (1, 2):
        checkpoint.save(tmp_path, step, {}, {})
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"best\.json"):
        checkpoint.prune(tmp_path, 1, None)
    assert visible(tmp_path) == ["best.json", "step-00000001", "step-00000002"]
    checkpoint.prune(tmp_path, 1, 2)
    assert visible(tmp_path) == ["best.json", "step-00000002"]


def test_a_linked_checkpoint_is_unlinked_not_followed(tmp_path: Path) -> None:
    kept = checkpoint.save(tmp_path / "other", 1, {}, {})
    checkpoint.save(tmp_path / "run", 2, {}, {})
    (tmp_path / "run" / "step-00000001").symlink_to(kept)
    checkpoint.prune(tmp_path / "run", 1)
    assert visible(tmp_path / "run") == ["step-00000002"]
    assert checkpoint.load(kept).step == 1


def leave(folder: Path, name: str, step: int = 9) -> Path:
    """What a killed process would have left under `name`."""
    path = folder / name
    checkpoint.save(folder / "made", step, {"w": np.array([step])}, {}).rename(path)
    return path


@pytest.mark.parametrize("then", ["save", "latest", "prune and list"])
def test_what_killed_processes_left_goes(tmp_path: Path, then: str) -> None:
    leave(tmp_path, ".step-00000009.partial-1")
    leave(tmp_path, f".step-00000009.partial-{os.getpid()}")
    leave(tmp_path, ".step-00000001.removed-7")
    leave(tmp_path, ".step-00000004.replaced-7", 4)
    leave(tmp_path, ".step-00000002.replaced-7", 1)
    checkpoint.save(tmp_path / "made", 2, {}, {}).rename(tmp_path / "step-00000002")
    (tmp_path / ".best.json.0123456789ab.partial").write_text("{")
    (tmp_path / "made" / ".lock").unlink()
    (tmp_path / "made").rmdir()
    (tmp_path / ".mine.partial-1").mkdir()
    if then == "save":
        checkpoint.save(tmp_path, 9, {}, {})
    elif then == "prune and list":
        checkpoint.prune(tmp_path, 5)
    assert checkpoint.latest(tmp_path) == tmp_path / ("step-00000009" if then == "save" else "step-00000004")
    assert checkpoint.load(tmp_path / "step-00000004").step == 4  # put back: its successor never came
    assert checkpoint.load(tmp_path / "step-00000002").step == 2
    left = {".mine.partial-1", "step-00000002", "step-00000004"}
    assert set(visible(tmp_path)) == left | ({"step-00000009"} if then == "save" else set())


def test_what_a_living_process_writes_stays(tmp_path: Path) -> None:
    left = leave(tmp_path, ".step-00000009.partial-1")
    lock = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert checkpoint.latest(tmp_path) is None
        assert left.exists()
    finally:
        os.close(lock)
    assert checkpoint.latest(tmp_path) is None
    assert not left.exists()


# --- loading ---


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such folder"):
        checkpoint.load(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"is not a checkpoint: it has no checkpoint\.json"):
        checkpoint.load(tmp_path)
    path = checkpoint.save(tmp_path, 1, arrays(), {})
    (path / "tensors.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"tensors\.safetensors: is missing"):
        checkpoint.load(path)
    (path / "tensors.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="missing"):
        checkpoint.load(path)


def test_a_truncated_or_longer_file(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, arrays(), {})
    whole = (path / "tensors.safetensors").read_bytes()
    for content in (whole[:-1], whole[:100], whole[:4], b"", whole + b"\0"):
        (path / "tensors.safetensors").write_bytes(content)
        with pytest.raises(SafetensorsError, match=r"tensors\.safetensors"):
            checkpoint.load(path)
    (path / "tensors.safetensors").write_bytes(whole)
    assert checkpoint.load(path).step == 1
    text = (path / "checkpoint.json").read_bytes()
    for content in (text[:-1], text[:-40], text[:50], b"", text + b" "):
        (path / "checkpoint.json").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"checkpoint\.json"):
            checkpoint.load(path)


def test_the_tensor_whose_byte_changed_is_named(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, arrays(), {})
    data = bytearray((path / "tensors.safetensors").read_bytes())
    at = bytes(data).index(arrays()["blk.0.w"].tobytes())
    data[at + 7] ^= 0x10
    (path / "tensors.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"tensor 'blk\.0\.w': sha256 differs"):
        checkpoint.load(path)


def test_tensors_of_another_checkpoint(tmp_path: Path) -> None:
    one = checkpoint.save(tmp_path, 1, {"w": np.zeros((2, 3))}, {})
    for other in ({"w": np.zeros((3, 2))}, {"w": np.zeros(6, np.int64)}, {"v": np.zeros(6)}, {}):
        two = checkpoint.save(tmp_path, 2, other, {})
        (one / "tensors.safetensors").write_bytes((two / "tensors.safetensors").read_bytes())
        with pytest.raises(CheckpointError, match=r"header: sha256|'w': is in checkpoint\.json"):
            checkpoint.load(one)


def test_names_and_shapes_a_run_expects(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, {"a": np.zeros((2, 3)), "b": np.zeros(1)}, {})
    assert checkpoint.load(path, {"a": (2, 3), "b": (1,)}).step == 1
    for shapes, message in [
        ({"a": (2, 3)}, "'b': is in tensors.safetensors, but not in this run"),
        ({"a": (2, 3), "b": (1,), "c": ()}, "'c': is in this run, but not"),
        ({"a": (3, 2), "b": (1,)}, r"'a': is \(2, 3\), wanted \(3, 2\)"),
    ]:
        with pytest.raises(CheckpointError, match=message):
            checkpoint.load(path, shapes)


def test_a_newer_version_and_a_renamed_folder(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, {}, {})
    moved = path.rename(tmp_path / "kept")
    assert checkpoint.load(moved).step == 1
    with pytest.raises(CheckpointError, match="step: is 1, which is not what the folder's name says"):
        checkpoint.load(moved.rename(tmp_path / "step-00000002"))
    path = tmp_path / "step-00000002"
    (path / "checkpoint.json").write_text('{"format": "trivet.checkpoint", "version": 2}')
    with pytest.raises(UnsupportedError, match="version 2; this build reads 1"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "other"),
        ("format", None),
        ("version", 0),
        ("version", True),
        ("version", "1"),
        ("version", 1.0),
        ("step", -1),
        ("step", 2**70),
        ("step", 1.0),
        ("step", None),
        ("facts", []),
        ("facts", None),
        ("header", 3),
        ("header", "00"),
        ("tensors", []),
        ("tensors", {"w": 3}),
        ("tensors", {"w": "00"}),
        ("tensors", {"v": "00"}),
        ("tensors", {}),
        ("tensors", {f"{i}": "" for i in range(10**5)}),
    ],
    ids=lambda v: str(v)[:20],
)
def test_hostile_json_with_a_right_hash(tmp_path: Path, field: str, value: Any) -> None:
    path = checkpoint.save(tmp_path, 1, {"w": np.zeros(3)}, {"a": 1})
    (path / "checkpoint.json").write_bytes(sealed(body_of(path)))
    assert checkpoint.load(path).facts == {"a": 1}  # `sealed` makes what `save` does
    (path / "checkpoint.json").write_bytes(sealed(body_of(path) | {field: value}))
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(path)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "text",
    [b"", b"null", b"[]", b'"x"', b"\xff\xfe", b"[" * 10**5, b'{"format": ' + b"9" * 10**5 + b"}", b"{}"],
    ids=lambda t: repr(t[:12]),
)
def test_hostile_bytes_for_json(tmp_path: Path, text: bytes) -> None:
    path = checkpoint.save(tmp_path, 1, {}, {})
    (path / "checkpoint.json").write_bytes(text)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(path)
    assert len(str(caught.value)) < 500


def test_a_huge_or_unreadable_json_is_not_read(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, {}, {})
    with (path / "checkpoint.json").open("wb") as file:
        file.truncate(1 << 40)  # sparse: no such bytes
    with pytest.raises(CheckpointError, match="size"):
        checkpoint.load(path)
    (path / "checkpoint.json").unlink()
    os.mkfifo(path / "checkpoint.json")  # opening it would wait for ever
    with pytest.raises(FileError, match="not a regular file"):
        checkpoint.load(path)
