"""What is written is read back, by our reader and by the safetensors package."""

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from transformers.utils.hub import get_checkpoint_shard_files

from trivet import dtypes
from trivet.blocks import to_bf16
from trivet.errors import FileError, InputError, UnsupportedError
from trivet.formats.gguf import TensorSource
from trivet.formats.safetensors import SafetensorsFile
from trivet.formats.safetensors_save import write_safetensors, write_sharded

ARRAYS = {
    "bytes": np.arange(7, dtype=np.uint8),
    "wide": np.arange(6, dtype=np.int64).reshape(2, 3),
    "half": np.linspace(-1, 1, 5).astype(np.float16),
    "full": np.linspace(-1, 1, 12).astype(np.float32).reshape(3, 4),
    "none": np.zeros((0, 3), np.float32),
    "one": np.float32(3).reshape(()),
}


def test_the_package_reads_what_we_write(tmp_path):
    write_safetensors(tmp_path / "x.safetensors", ARRAYS, {"format": "pt", "ü": "ö"})
    with safe_open(tmp_path / "x.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt", "ü": "ö"}
        assert set(file.keys()) == set(ARRAYS)
        for name, array in ARRAYS.items():
            found = file.get_tensor(name)
            assert found.dtype == array.dtype
            assert np.array_equal(found, array)


def test_a_transposed_array_is_written_in_rows(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    write_safetensors(tmp_path / "x.safetensors", {"x": array})
    assert np.array_equal(SafetensorsFile.open(tmp_path / "x.safetensors").array("x"), array)


def test_bf16_and_lazy_data(tmp_path):
    values = np.float32([1.0, -2.5, 3.0])
    source = TensorSource(dtypes.bf16, (3,), lambda: to_bf16(values))
    write_safetensors(tmp_path / "x.safetensors", {"x": source, "y": np.ones(3, np.uint8)})
    file = SafetensorsFile.open(tmp_path / "x.safetensors")
    assert file.tensors["x"].dtype is dtypes.bf16
    assert np.array_equal(file.array("x"), values)
    assert all(t.offset % t.dtype.nbytes == 0 for t in file.tensors.values())


def test_the_same_input_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_safetensors(tmp_path / name, ARRAYS)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(UnsupportedError, match="complex128"):
        write_safetensors(path, {"x": np.ones(2, np.complex128)})
    with pytest.raises(UnsupportedError, match="q4_0"):
        write_safetensors(path, {"x": TensorSource(dtypes.q4_0, (32,), np.zeros(18, np.uint8))})
    with pytest.raises(InputError, match="got 2"):
        write_safetensors(path, {"x": TensorSource(dtypes.f32, (3,), np.zeros(2, np.uint8))})
    with pytest.raises(InputError, match="metadata"):
        write_safetensors(path, ARRAYS, {"n": 3})
    with pytest.raises(FileError, match="nowhere"):
        write_safetensors(tmp_path / "nowhere" / "x", ARRAYS)
    assert list(tmp_path.iterdir()) == []  # all or nothing


def test_shards_load_in_transformers_and_as_one(tmp_path):
    tensors = {f"t{i}": np.full(8, i, np.float32) for i in range(5)}
    paths = write_sharded(tmp_path, tensors, {"format": "pt"}, 64)
    assert [p.name for p in paths[:-1]] == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    shards, facts = get_checkpoint_shard_files(tmp_path, str(paths[-1]))
    assert (sorted(shards), facts["total_size"]) == ([str(p) for p in paths[:-1]], 160)
    found = {name: array for shard in shards for name, array in load_file(shard).items()}
    assert {name: array.tolist() for name, array in found.items()} == {
        n: t.tolist() for n, t in tensors.items()
    }
    file = SafetensorsFile.open(tmp_path)
    assert all(np.array_equal(file.array(name), array) for name, array in tensors.items())
    assert file.metadata == {"format": "pt"}


def test_one_shard_is_a_plain_file_and_shards_are_all_or_none(tmp_path):
    assert write_sharded(tmp_path, ARRAYS, None, 1 << 20) == [tmp_path / "model.safetensors"]
    with pytest.raises(InputError, match=r"has model\.safetensors; write to another folder"):
        write_sharded(tmp_path, ARRAYS)
    with pytest.raises(InputError, match="max_bytes"):
        write_sharded(tmp_path, ARRAYS, None, 0)
    (tmp_path / "empty").mkdir()
    late = TensorSource(dtypes.f32, (8,), lambda: np.zeros(7, np.float32))
    with pytest.raises(InputError, match="'late'"):
        write_sharded(tmp_path / "empty", ARRAYS | {"late": late}, None, 16)
    assert list((tmp_path / "empty").iterdir()) == []
