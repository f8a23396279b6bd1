"""Reading GGUF files: what valid files mean, against bytes written by hand and by the gguf package."""

import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    Header,
    array,
    pair,
    string,
    tensor,
)

from trivet import dtypes
from trivet.blocks import dequantize
from trivet.errors import FileError, GGUFError, InputError, UnsupportedError
from trivet.formats.gguf import GGUFFile
from trivet.formats.gguf.types import TENSOR_TYPES

SCALARS = [
    (U8, "B", 200),
    (I8, "b", -3),
    (U16, "H", 65535),
    (I16, "h", -32768),
    (U32, "I", 2**32 - 1),
    (I32, "i", -(2**31)),
    (F32, "f", 0.5),
    (BOOL, "?", True),
    (U64, "Q", 2**64 - 1),
    (I64, "q", -(2**63)),
    (F64, "d", 0.1),
]


def test_every_scalar_type(tmp_path: Path) -> None:
    pairs = [pair(f"k{kind}", kind, struct.pack("<" + code, value)) for kind, code, value in SCALARS]
    metadata = GGUFFile.open(
        Header([*pairs, pair("s", STRING, string("naïve"))]).save(tmp_path / "f")
    ).metadata
    for kind, _, value in SCALARS:
        assert metadata[f"k{kind}"] == value
        assert type(metadata[f"k{kind}"]) is type(value)
    assert metadata["s"] == "naïve"


def test_every_array_type(tmp_path: Path) -> None:
    pairs = [pair("x", U8, b"\1")]  # puts the arrays at odd offsets
    pairs += [pair(f"k{k}", ARRAY, array(k, 3, struct.pack(f"<3{c}", 0, v, 1))) for k, c, v in SCALARS]
    metadata = GGUFFile.open(Header(pairs).save(tmp_path / "f")).metadata
    for kind, code, value in SCALARS:
        got = metadata[f"k{kind}"]
        assert got.dtype == np.dtype(code)
        assert got.tolist() == [0, value, 1]
        assert got.flags.aligned
        assert not got.flags.writeable


def test_string_nested_and_empty_arrays(tmp_path: Path) -> None:
    nested = array(I32, 2, struct.pack("<2i", 1, -2)) + array(STRING, 1, string("x")) + array(U8, 0, b"")
    pairs = [
        pair("strings", ARRAY, array(STRING, 3, string("") + string("é\n") + string("\0"))),
        pair("nested", ARRAY, array(ARRAY, 3, nested)),
        pair("none", ARRAY, array(STRING, 0, b"")),
    ]
    metadata = GGUFFile.open(Header(pairs).save(tmp_path / "f")).metadata
    assert metadata["strings"] == ["", "é\n", "\0"]
    assert metadata["none"] == []
    numbers, words, empty = metadata["nested"]
    assert numbers.tolist() == [1, -2]
    assert words == ["x"]
    assert empty.tolist() == []


@pytest.mark.parametrize("version", [2, 3])
def test_tensors_of_both_versions(tmp_path: Path, version: int) -> None:
    file = GGUFFile.open(Header(version=version).save(tmp_path / "f"))
    assert file.version == version
    assert file.alignment == 32
    assert list(file.tensors) == ["a", "b.weight"]
    b = file.tensors["b.weight"]
    assert (b.dtype, b.shape, b.nbytes) == (dtypes.q8_0, (2, 32), 68)
    assert file.data("b.weight").tobytes() == bytes(range(32, 100))
    assert file.array("a").tobytes() == bytes(range(32))
    assert (
        file.array("b.weight").tobytes() == dequantize(file.data("b.weight"), dtypes.q8_0, (2, 32)).tobytes()
    )
    assert not file.data("a").flags.writeable
    with pytest.raises(InputError, match="no tensor 'c'"):
        file.data("c")


def test_alignment_scalars_zero_sizes_and_gaps(tmp_path: Path) -> None:
    header = Header(
        pairs=[pair("general.alignment", U32, struct.pack("<I", 64))],
        tensors=[
            tensor("later", (2,), 0, 128),
            tensor("scalar", (), 0, 0),
            tensor("none", (4, 0), 0, 0),
            tensor("also none", (0,), 8, 0),
        ],
        alignment=64,
        data=struct.pack("<f", 7.0).ljust(128, b"\0") + struct.pack("<2f", 1, 2),
    )
    file = GGUFFile.open(header.save(tmp_path / "f"))
    assert file.alignment == 64
    assert file.array("scalar") == 7.0
    assert file.array("scalar").shape == ()
    assert file.array("none").shape == (0, 4)
    assert file.array("later").tolist() == [1, 2]


def test_a_file_without_tensors_may_end_with_the_header(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(Header(tensors=[], data=b"", alignment=1).build())
    assert GGUFFile.open(tmp_path / "f").metadata["general.architecture"] == "llama"


def test_the_type_table_equals_the_gguf_package() -> None:
    theirs = {int(t): (t.name.lower(), *size) for t, size in gguf.GGML_QUANT_SIZES.items()}
    ours = {number: (t.name, t.block, t.nbytes) for number, t in TENSOR_TYPES.items()}
    assert ours == theirs


@pytest.mark.parametrize("number", [n for n, t in TENSOR_TYPES.items() if t.dtype is None])
def test_unsupported_types_are_listed_and_named(tmp_path: Path, number: int) -> None:
    kind = TENSOR_TYPES[number]
    header = Header(
        tensors=[tensor("odd", (kind.block,), number, 0), tensor("a", (8,), 0, 512)], data=bytes(544)
    )
    file = GGUFFile.open(header.save(tmp_path / "f"))
    assert list(file.tensors) == ["a"]
    assert file.unsupported["odd"].type_name == kind.name
    assert file.unsupported["odd"].nbytes == kind.nbytes
    for read in (file.data, file.array):
        with pytest.raises(UnsupportedError, match=f"'odd' has type {kind.name}"):
            read("odd")


@pytest.mark.parametrize("dtype", [*dtypes.IN_GGUF, dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
def test_files_of_the_gguf_package(tmp_path: Path, dtype: dtypes.DType) -> None:
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (3, 512 // dtype.block * dtype.nbytes), np.uint8)
    kind = gguf.GGMLQuantizationType[dtype.name.upper()]
    writer = gguf.GGUFWriter(tmp_path / "f", "llama")
    writer.add_tensor("w", raw, raw_dtype=kind)
    writer.add_tensor("bias", np.arange(5, dtype=np.float32))
    writer.add_array("tokens", ["a", "b", "ü"])
    writer.add_array("scores", [0.5, -1.0])
    writer.add_float64("f64", 0.1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile.open(tmp_path / "f")
    assert file.metadata["tokens"] == ["a", "b", "ü"]
    assert file.metadata["scores"].tolist() == [0.5, -1.0]
    assert file.metadata["f64"] == 0.1
    assert file.tensors["w"].shape == (3, 512)
    assert file.tensors["w"].dtype is dtype
    assert np.array_equal(file.data("w"), raw.reshape(-1))
    assert file.array("bias").tolist() == [0, 1, 2, 3, 4]
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(raw, kind)
    assert np.array_equal(file.array("w").view(np.uint32), want.view(np.uint32))


def test_views_outlive_the_file_object(tmp_path: Path) -> None:
    view = GGUFFile.open(Header().save(tmp_path / "f")).data("a")
    assert view.tobytes() == bytes(range(32))


def test_paths_that_are_not_files(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        GGUFFile.open(tmp_path / "absent")
    with pytest.raises(FileError, match="folder"):
        GGUFFile.open(tmp_path)
    with pytest.raises(FileError):
        GGUFFile.open("a\0b")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="not a regular file"):
        GGUFFile.open(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("head", "hint"),
    [
        (b"PK\x03\x04" + bytes(60), "zip"),
        (b"version https://git-lfs.github.com/spec/v1\n", "LFS"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b'\x40\0\0\0\0\0\0\0{"a": {}}', "safetensors"),
        (b"tjgg" + bytes(60), "GGML"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, head: bytes, hint: str) -> None:
    (tmp_path / "f").write_bytes(head)
    with pytest.raises(GGUFError, match=hint):
        GGUFFile.open(tmp_path / "f")


@pytest.mark.model
def test_smollm2(smollm2_path: Path) -> None:
    file = GGUFFile.open(smollm2_path)
    reader = gguf.GGUFReader(smollm2_path)
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            got = file.metadata[key]
            assert (got.tolist() if isinstance(got, np.ndarray) else got) == field.contents()
    assert list(file.tensors) == [t.name for t in reader.tensors]
    assert file.unsupported == {}
    for t in reader.tensors:
        assert file.tensors[t.name].shape == tuple(t.shape.tolist()[::-1])
        assert np.array_equal(file.data(t.name), t.data.view(np.uint8).reshape(-1))
    for name in ("token_embd.weight", "blk.3.ffn_down.weight", "output_norm.weight"):
        t = next(t for t in reader.tensors if t.name == name)
        assert np.array_equal(file.array(name), gguf.quants.dequantize(t.data, t.tensor_type))
