"""safetensors against the safetensors package, whole folders, and malformed files."""

import contextlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from trivet import dtypes
from trivet.errors import FileError, InputError, SafetensorsError, UnsupportedError
from trivet.formats.safetensors import SafetensorsFile


def build(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), begin: Any = 0, end: Any = 8) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def refused(path: Path, content: bytes, field: str) -> None:
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(SafetensorsError) as caught:
            SafetensorsFile.open(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert field in str(caught.value), str(caught.value)
    assert len(str(caught.value)) < 2000
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (torch.float32, dtypes.f32),
        (torch.float16, dtypes.f16),
        (torch.bfloat16, dtypes.bf16),
        (torch.float64, dtypes.f64),
        (torch.int8, dtypes.i8),
        (torch.uint8, dtypes.u8),
        (torch.int32, dtypes.i32),
        (torch.int64, dtypes.i64),
        (torch.bool, dtypes.bool_),
    ],
    ids=str,
)
def test_every_dtype_equals_torch(tmp_path: Path, theirs: torch.dtype, ours: dtypes.DType) -> None:
    torch.manual_seed(0)
    tensor = (torch.randn(3, 5) * 10).abs().to(theirs)
    save_file({"w": tensor, "byte": torch.ones(1, dtype=torch.uint8)}, tmp_path / "f", {"format": "pt"})
    file = SafetensorsFile.open(tmp_path / "f")
    assert (file.tensors["w"].dtype, file.tensors["w"].shape) == (ours, (3, 5))
    assert np.array_equal(file.array("w"), tensor.to(torch.float32).numpy())
    assert file.data("w").tobytes() == tensor.view(torch.uint8).numpy().tobytes()
    assert not file.data("w").flags.writeable
    assert file.metadata == {"format": "pt"}


def test_scalars_empty_tensors_and_odd_offsets(tmp_path: Path) -> None:
    tensors = {"s": torch.tensor(2.5), "e": torch.zeros(0, 3), "b": torch.ones(3, dtype=torch.int8)}
    save_file(tensors, tmp_path / "f")
    file = SafetensorsFile.open(tmp_path / "f")
    assert file.array("s") == 2.5
    assert file.array("e").shape == (0, 3)
    odd = {"b": entry("U8", [1], 0, 1), "f": entry("F32", [2], 1, 9)}
    (tmp_path / "g").write_bytes(build(odd, b"\x07" + np.float32([1, 2]).tobytes()))
    assert SafetensorsFile.open(tmp_path / "g").array("f").tolist() == [1, 2]
    (tmp_path / "h").write_bytes(build({}))
    assert dict(SafetensorsFile.open(tmp_path / "h").tensors) == {}
    with pytest.raises(InputError, match="no tensor 'x'"):
        file.data("x")


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int16, torch.complex64], ids=str
)
def test_unsupported_dtypes_are_listed_and_named(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"odd": torch.zeros(4).to(dtype), "w": torch.ones(2)}, tmp_path / "f")
    file = SafetensorsFile.open(tmp_path / "f")
    assert list(file.tensors) == ["w"]
    kind = file.unsupported["odd"].type_name
    with pytest.raises(UnsupportedError, match=f"'odd' has dtype {kind}"):
        file.array("odd")


def test_sub_byte_dtypes_are_measured_in_bits(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(build({"w": entry("F4", [3, 2], 0, 3)}, bytes(3)))
    assert SafetensorsFile.open(tmp_path / "f").unsupported["w"].type_name == "F4"
    refused(tmp_path / "f", build({"w": entry("F4", [3], 0, 1)}, bytes(1)), "F4 [3] is 1.5")


def shards(folder: Path, weight_map: Any = None) -> Path:
    save_file({"a": torch.ones(2), "b": torch.zeros(3)}, folder / "model-00001-of-00002.safetensors")
    save_file({"c": torch.full((4,), 3.0)}, folder / "model-00002-of-00002.safetensors", {"k": "v"})
    if weight_map is None:
        weight_map = {n: f"model-0000{1 + (n == 'c')}-of-00002.safetensors" for n in "abc"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_a_sharded_folder_reads_as_one(tmp_path: Path) -> None:
    file = SafetensorsFile.open(shards(tmp_path))
    assert sorted(file.tensors) == ["a", "b", "c"]
    assert file.array("c").tolist() == [3, 3, 3, 3]
    assert file.array("a").tolist() == [1, 1]
    assert file.metadata == {"k": "v"}


def test_a_folder_with_one_file(tmp_path: Path) -> None:
    with pytest.raises(SafetensorsError, match=r"holds 0 \.safetensors files"):
        SafetensorsFile.open(tmp_path)
    save_file({"a": torch.ones(2)}, tmp_path / "weights.safetensors")
    assert list(SafetensorsFile.open(tmp_path).tensors) == ["a"]
    save_file({"b": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(SafetensorsError, match="holds 2"):
        SafetensorsFile.open(tmp_path)
    save_file({"c": torch.ones(2)}, tmp_path / "model.safetensors")
    assert list(SafetensorsFile.open(tmp_path).tensors) == ["c"]


FIRST = "model-00001-of-00002.safetensors"


@pytest.mark.parametrize(
    ("weight_map", "field"),
    [
        ({}, "weight_map"),
        ([FIRST], "weight_map"),
        ({"a": 3}, "weight_map 'a'"),
        ({"a": "../" + FIRST}, "not a plain file name"),
        ({"a": "/etc/passwd"}, "not a plain file name"),
        ({"a": ".."}, "not a plain file name"),
        ({"a": "x\0"}, "not a plain file name"),
        ({"z": FIRST}, "'z': is not in " + FIRST),
        ({"c": FIRST}, "'c': is not in " + FIRST),
    ],
)
def test_an_index_that_is_wrong(tmp_path: Path, weight_map: Any, field: str) -> None:
    shards(tmp_path, weight_map)
    with pytest.raises(SafetensorsError, match="index") as caught:
        SafetensorsFile.open(tmp_path)
    assert field in str(caught.value)


def test_shards_that_are_missing_or_repeat_a_tensor(tmp_path: Path) -> None:
    shards(tmp_path, {"a": "absent.safetensors"})
    with pytest.raises(FileError, match="No such file"):
        SafetensorsFile.open(tmp_path)
    shards(tmp_path)
    save_file({"c": torch.ones(1), "a": torch.ones(1)}, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(SafetensorsError, match="'a': is also in"):
        SafetensorsFile.open(tmp_path)


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 200])
def test_header_lengths(tmp_path: Path, length: int) -> None:
    refused(tmp_path / "f", build({"w": entry()}, bytes(8), length), "header length")


def test_truncation_at_every_byte(tmp_path: Path) -> None:
    whole = build({"w": entry(), "v": entry("U8", [3], 8, 11)}, bytes(11))
    path = tmp_path / "f"
    path.write_bytes(whole)
    assert len(SafetensorsFile.open(path).tensors) == 2
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(SafetensorsError, match=r"\[safetensors\] .*: .+: "):
            SafetensorsFile.open(path)


@pytest.mark.parametrize(
    ("header", "data", "field"),
    [
        (b"[]", b"", "header"),
        (b" {}", b"", "header"),
        (b"{", b"", "header"),
        (b"{\xff}", b"", "not JSON"),
        (b'{"w":' + b"[" * 100000, b"", "not JSON"),
        (b'{"w":' + b"9" * 10000 + b"}", b"", "not JSON"),
        (b'{"\\ud800":1}', b"", "not JSON"),
        (b'{"__metadata__":{"k":"\\uDfff"}}', b"", "not JSON"),
        (b'{"w":1,"w":1}', b"", "'w' appears twice"),
        (b'{"w":{"dtype":"F32","dtype":"F32"}}', b"", "'dtype' appears twice"),
        ({"__metadata__": {"k": 1}}, b"", "__metadata__"),
        ({"__metadata__": "x"}, b"", "__metadata__"),
        ({"w": 1}, b"", "tensor 'w'"),
        ({"w": {"dtype": "F32"}}, b"", "tensor 'w'"),
        ({"w": entry() | {"more": 1}}, bytes(8), "tensor 'w'"),
        ({"w": entry("F33")}, bytes(8), "tensor 'w' dtype"),
        ({"w": entry(["F32"])}, bytes(8), "tensor 'w' dtype"),
        ({"w": entry("x" * 5000)}, bytes(8), "tensor 'w' dtype"),
        ({"w": entry(shape=2)}, bytes(8), "tensor 'w' shape"),
        ({"w": entry(shape=[-2])}, bytes(8), "tensor 'w' shape"),
        ({"w": entry(shape=[2.0])}, bytes(8), "tensor 'w' shape"),
        ({"w": entry(shape=[True, 2])}, bytes(8), "tensor 'w' shape"),
        ({"w": entry(shape=[2**32, 2**32])}, bytes(8), "tensor 'w' shape"),
        ({"w": entry(shape=[2**62, 2**62, 0], end=0)}, b"", "tensor 'w' shape"),
        ({"w": entry(shape=[2**60, 0], end=0)}, b"", "tensor 'w' shape"),
        ({"w": entry(shape=[10**4000])}, bytes(8), "tensor 'w' shape"),
        ({"w": entry(shape=[1] * 33 + [2])}, bytes(8), "tensor 'w' shape"),
        ({"w": entry(shape=[3])}, bytes(8), "tensor 'w' data_offsets"),
        ({"w": entry(begin=-8, end=0)}, bytes(8), "tensor 'w' data_offsets"),
        ({"w": entry(begin=8, end=0)}, bytes(8), "tensor 'w' data_offsets"),
        ({"w": entry(end=7)}, bytes(8), "tensor 'w' data_offsets"),
        ({"w": entry(begin=2**64, end=2**64 + 8)}, bytes(8), "tensor 'w' data_offsets"),
        ({"w": entry(begin=2**62, end=2**62 + 8)}, bytes(8), "tensor 'w' data_offsets"),
        ({"w": entry() | {"data_offsets": [0, 8, 8]}}, bytes(8), "tensor 'w' data_offsets"),
        ({"w": entry(), "v": entry()}, bytes(8), "overlaps"),
        ({"w": entry(), "v": entry(begin=4, end=12)}, bytes(12), "overlaps"),
        ({"w": entry(), "v": entry(begin=12, end=20)}, bytes(20), "hole"),
        ({"w": entry()}, bytes(7), "data"),
        ({"w": entry()}, bytes(9), "data"),
    ],
)
def test_malformed_headers(tmp_path: Path, header: Any, data: bytes, field: str) -> None:
    refused(tmp_path / "f", build(header, data), field)


@pytest.mark.parametrize("unit", [b'"a":0,', b'"":[],', b'"":{},', b'"w":"x",'], ids=repr)
def test_a_header_of_too_many_values_is_refused_before_it_grows(tmp_path: Path, unit: bytes) -> None:
    """What it would become in memory is many times its bytes."""
    text = b"{" + unit * 2_000_000 + b'"w":0}'
    (tmp_path / "f").write_bytes(build(text))
    tracemalloc.start()
    try:
        with pytest.raises(SafetensorsError, match=r"header: holds some \d+ values; at most 2000000"):
            SafetensorsFile.open(tmp_path / "f")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.1 * len(text)


def test_a_header_of_100_mb(tmp_path: Path) -> None:
    """The most that is read, and one byte more; all of it one name."""
    text = b'{"%s":0}' % (b"x" * (100_000_000 - 6))
    with (tmp_path / "f").open("wb") as file:
        file.write(build(text))
    with pytest.raises(SafetensorsError, match=r"tensor 'xxx.*: is not an object of dtype") as caught:
        SafetensorsFile.open(tmp_path / "f")
    assert len(str(caught.value)) < 1000
    with (tmp_path / "f").open("r+b") as file:
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(100_000_100)
    with pytest.raises(SafetensorsError, match="header length: is 100000001; 2 to 100000000"):
        SafetensorsFile.open(tmp_path / "f")


def test_an_index_of_more_than_100_mb_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors.index.json").open("wb") as file:
        file.truncate(1 << 40)  # holds nothing
    with pytest.raises(SafetensorsError, match=f"index: has {1 << 40} bytes; at most"):
        SafetensorsFile.open(tmp_path)


def test_many_names_with_one_repeated_are_refused_in_linear_time(tmp_path: Path) -> None:
    names = [*range(20000), 19999]
    (tmp_path / "f").write_bytes(build(("{" + ",".join(f'"{n}":0' for n in names) + "}").encode()))
    with pytest.raises(SafetensorsError, match="'19999' appears twice"):
        SafetensorsFile.open(tmp_path / "f")


VALID = build({"__metadata__": {"k": "v"}, "a": entry(), "b": entry("BF16", [2, 2], 8, 16)}, bytes(16))


@settings(deadline=None, max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_what_opens_the_safetensors_package_reads_alike(tmp_path: Path, edits: list[tuple[int, int]]) -> None:
    content = bytearray(VALID)
    for at, value in edits:
        content[at] = value
    path = tmp_path / "f"
    path.write_bytes(content)
    with contextlib.suppress(SafetensorsError):  # any other exception fails the test
        file = SafetensorsFile.open(path)
        theirs = {name: bytes(found["data"]) for name, found in safetensors.deserialize(bytes(content))}
        assert set(theirs) == set(file.tensors) | set(file.unsupported)
        for name in file.tensors:
            assert file.data(name).tobytes() == theirs[name]
            assert file.array(name).shape == file.tensors[name].shape
