"""Writing GGUF files: read back by our reader and by the gguf package, byte for byte the same each time."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_bytes import ARRAY, F32, F64, I32, I64, STRING, U8, U32, U64, Header

from trivet import dtypes
from trivet.blocks import dequantize, quantize, tensor_bytes
from trivet.errors import DTypeError, FileError, InputError, UnsupportedError
from trivet.formats.gguf import GGUFFile, TensorSource, write_gguf
from trivet.formats.gguf.types import SCALARS, TENSOR_NUMBER, Value


def kind_of(path: Path, value: Any) -> tuple[int, ...]:
    """The type number written for a metadata value, and its element type if it is an array."""
    write_gguf(path, {"k": value}, {})
    encoded = GGUFFile.open(path).encoded("k")
    if encoded.type != Value.ARRAY:
        return (encoded.type,)
    return (encoded.type, struct.unpack_from("<I", encoded.data)[0])


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0, (U32,)),
        (2**32 - 1, (U32,)),
        (-1, (I32,)),
        (-(2**31), (I32,)),
        (2**32, (U64,)),
        (2**64 - 1, (U64,)),
        (-(2**31) - 1, (I64,)),
        (-(2**63), (I64,)),
        (True, (Value.BOOL,)),
        (0.5, (F32,)),
        (float("inf"), (F32,)),
        (1e300, (F64,)),
        ("x", (STRING,)),
        (np.float64(0.5), (F64,)),
        ([1, 2], (ARRAY, U32)),
        ([1, -2], (ARRAY, I32)),
        ([-1, 2**31], (ARRAY, I64)),
        ((1, 0.5), (ARRAY, F32)),
        ([True, False], (ARRAY, Value.BOOL)),
        (["a", "b"], (ARRAY, STRING)),
        ([np.int8(1), np.int8(2)], (ARRAY, Value.I8)),
        ([[1], ["x"]], (ARRAY, ARRAY)),
        (b"\x00\xff", (ARRAY, U8)),
        (np.array(["a", "bc"]), (ARRAY, STRING)),
        (np.array([], np.float32), (ARRAY, F32)),
        (np.array([], str), (ARRAY, STRING)),
    ],
)
def test_the_type_of_each_python_value(tmp_path: Path, value: Any, kind: tuple[int, ...]) -> None:
    assert kind_of(tmp_path / "f", value) == kind
    back = GGUFFile.open(tmp_path / "f").metadata["k"]
    if isinstance(value, bytes):
        assert back.tobytes() == value
    elif kind[0] == ARRAY:
        assert [x.tolist() if isinstance(x, np.ndarray) else x for x in back] == list(value)
    else:
        assert back == value


@pytest.mark.parametrize("kind", SCALARS, ids=lambda k: Value(k).name)
def test_numpy_scalars_and_arrays_keep_their_exact_type(tmp_path: Path, kind: int) -> None:
    for order in "<>":
        dtype = SCALARS[kind].newbyteorder(order)
        assert kind_of(tmp_path / "f", dtype.type(1)) == (kind,)
        assert kind_of(tmp_path / "f", np.array([0, 1], dtype)) == (ARRAY, kind)
        assert GGUFFile.open(tmp_path / "f").metadata["k"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "NoneType"),
        ({}, "dict"),
        (1j, "complex"),
        (np.float16(1), "float16"),
        ([], "empty list"),
        ([1, "a"], "mixes int, str"),
        ([True, 1], "mixes bool, int"),
        (2**64, "64-bit"),
        ([-1, 2**63], "64-bit"),
        (np.zeros((2, 2), np.int8), "one dimension"),
        ("\ud800", "UTF-8"),
        ([[[[[[[[[[1]]]]]]]]]], "deeper"),
    ],
)
def test_values_gguf_cannot_hold(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_gguf(tmp_path / "f", {"the.key": value}, {})
    assert list(tmp_path.iterdir()) == []


METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.tokens": ["<s>", "é", ""],
    "tokenizer.ggml.token_type": np.array([3, 1, 1], np.int32),
    "blob": np.arange(5, dtype=np.uint8),
}


def some_tensors() -> dict[str, TensorSource | np.ndarray]:
    rng = np.random.default_rng(0)
    tensors: dict[str, TensorSource | np.ndarray] = {
        "plain": rng.standard_normal((3, 5)).astype(np.float32),
        "strided": np.arange(24, dtype=np.float16).reshape(4, 6).T,
        "big-endian": np.arange(3, dtype=">i4"),
        "scalar": np.float64(2.5).reshape(()),
        "empty": np.empty((0, 4), np.float32),
    }
    for dtype in TENSOR_NUMBER:
        raw = rng.integers(0, 256, tensor_bytes(dtype, (3, 256)), np.uint8)
        tensors[f"raw {dtype}"] = TensorSource(dtype, (3, 256), raw)
    return tensors


def test_our_reader_reads_it_back(tmp_path: Path) -> None:
    write_gguf(tmp_path / "f", METADATA, some_tensors())
    file = GGUFFile.open(tmp_path / "f")
    assert list(file.metadata) == list(METADATA)
    assert list(file.tensors) == list(some_tensors())
    for name, tensor in some_tensors().items():
        info = file.tensors[name]
        assert info.offset % 32 == 0
        if isinstance(tensor, TensorSource):
            assert (info.dtype, info.shape) == (tensor.dtype, tensor.shape)
            assert np.array_equal(file.data(name), tensor.data)
        else:
            assert np.array_equal(file.array(name), tensor.astype(np.float32))
            assert info.shape == tensor.shape


def test_the_gguf_package_reads_it_back(tmp_path: Path) -> None:
    tensors = {name: t for name, t in some_tensors().items() if name not in ("scalar", "empty")}
    write_gguf(tmp_path / "f", METADATA, tensors)
    reader = gguf.GGUFReader(tmp_path / "f")
    for key, value in METADATA.items():
        got = reader.fields[key].contents()
        assert got == (value.tolist() if isinstance(value, np.ndarray) else value)
    assert [t.name for t in reader.tensors] == list(tensors)
    ours = GGUFFile.open(tmp_path / "f")
    for t in reader.tensors:
        assert tuple(t.shape.tolist()[::-1]) == ours.tensors[t.name].shape
        assert t.data_offset == ours.tensors[t.name].offset
        assert np.array_equal(t.data.reshape(-1).view(np.uint8), ours.data(t.name))


def test_quantised_round_trip(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    raw = quantize(values, dtypes.q4_1)
    write_gguf(tmp_path / "f", {}, {"w": TensorSource(dtypes.q4_1, (4, 64), raw)})
    assert np.array_equal(GGUFFile.open(tmp_path / "f").array("w"), dequantize(raw, dtypes.q4_1, (4, 64)))


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a", METADATA, some_tensors())
    write_gguf(tmp_path / "b", METADATA, some_tensors())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_a_file_copied_by_its_encoded_values_is_identical(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a", "llama")
    writer.add_uint8("u8", 7)
    writer.add_int32("positive i32", 7)
    writer.add_float64("f64", 0.5)
    writer.add_array("strings", ["x", "é"])
    writer.add_uint32("general.alignment", 64)
    writer.data_alignment = 64
    writer.add_tensor("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("v", np.arange(3, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile.open(tmp_path / "a")
    metadata = {key: file.encoded(key) for key in file.metadata}
    tensors = {n: TensorSource(t.dtype, t.shape, file.data(n)) for n, t in file.tensors.items()}
    write_gguf(tmp_path / "b", metadata, tensors)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with pytest.raises(InputError, match="no metadata 'absent'"):
        file.encoded("absent")


def test_alignment_is_obeyed_and_checked(tmp_path: Path) -> None:
    write_gguf(
        tmp_path / "f", {"general.alignment": 256}, {"a": np.zeros(1, np.int8), "b": np.ones(1, np.int8)}
    )
    file = GGUFFile.open(tmp_path / "f")
    assert file.alignment == 256
    assert file.tensors["b"].offset - file.tensors["a"].offset == 256
    for wrong in (0, 4, 48, -32, np.uint64(32), "32", [32]):
        with pytest.raises(InputError, match=r"general\.alignment"):
            write_gguf(tmp_path / "g", {"general.alignment": wrong}, {})


def test_tensors_are_made_one_at_a_time(tmp_path: Path) -> None:
    alive: list[str] = []

    class Tracked(np.ndarray):
        name = ""

        def __del__(self) -> None:
            if self.name:
                alive.remove(self.name)

    def source(name: str) -> TensorSource:
        def make() -> np.ndarray:
            assert alive == []
            alive.append(name)
            array = np.full(1000, len(name), np.float32).view(Tracked)
            array.name = name
            return array

        return TensorSource(dtypes.f32, (10, 100), make)

    write_gguf(tmp_path / "f", {}, {n: source(n) for n in ("a", "bb", "ccc")})
    assert GGUFFile.open(tmp_path / "f").array("bb")[0, 0] == 2


@pytest.mark.parametrize(
    ("name", "tensor", "error", "message"),
    [
        ("", np.zeros(1, np.float32), InputError, "tensor name"),
        ("n" * 64, np.zeros(1, np.float32), InputError, "63"),
        ("t", np.zeros((1,) * 5, np.float32), InputError, "4 dimensions"),
        ("t", np.zeros(1, np.uint16), UnsupportedError, "uint16"),
        ("t", TensorSource(dtypes.u8, (1,), np.zeros(1, np.uint8)), UnsupportedError, "u8"),
        ("t", TensorSource(dtypes.q8_0, (33,), np.zeros(34, np.uint8)), DTypeError, "33 elements"),
        ("t", TensorSource(dtypes.f32, (2,), np.zeros(3, np.float32)), InputError, "is 8 bytes, got 12"),
        ("t", TensorSource(dtypes.f32, (-1,), np.zeros(3, np.float32)), InputError, "negative"),
    ],
)
def test_tensors_gguf_cannot_hold(tmp_path: Path, name: str, tensor: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        write_gguf(tmp_path / "f", {}, {name: tensor})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = Header().save(tmp_path / "f")
    before = path.read_bytes()

    def fail() -> np.ndarray:
        raise KeyboardInterrupt

    good = TensorSource(dtypes.f32, (1,), np.zeros(1, np.float32))
    with pytest.raises(KeyboardInterrupt):
        write_gguf(path, {}, {"a": good, "b": TensorSource(dtypes.f32, (1,), fail)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileError, match="No such file"):
        write_gguf(tmp_path / "absent" / "f", {}, {})
