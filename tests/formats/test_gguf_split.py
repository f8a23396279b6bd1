"""Split GGUF files: written so that others read them, read as one, and hostile ones."""

import resource
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_bytes import F32, I32, STRING, U16, U32, Header, pair, string, tensor

import tiny_model
import trivet as tv
from trivet import dtypes
from trivet.errors import FileError, GGUFError, InputError
from trivet.export import export
from trivet.formats.gguf import GGUFFile, TensorSource, write_gguf, write_split
from trivet.models.checkpoint import open_checkpoint

METADATA = {"general.architecture": "llama", "general.name": "split", "k": np.float32(0.5)}
TENSORS = {f"t{i}": np.arange(i, i + 8, dtype=np.float32) for i in range(5)}  # 32 bytes each


def in_groups(paths: list[Path]) -> list[list[str]]:
    return [[t.name for t in gguf.GGUFReader(path).tensors] for path in paths]


def test_the_gguf_package_reads_each_part(tmp_path: Path) -> None:
    paths = write_split(tmp_path / "m.gguf", METADATA, TENSORS, 64)
    assert [p.name for p in paths] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert sorted(tmp_path.iterdir()) == paths
    assert in_groups(paths) == [["t0", "t1"], ["t2", "t3"], ["t4"]]
    for number, path in enumerate(paths):
        fields = gguf.GGUFReader(path).fields
        found = {key: (field.types[0].name, field.contents()) for key, field in fields.items()}
        assert found["split.no"] == ("UINT16", number)
        assert found["split.count"] == ("UINT16", 3)
        assert found["split.tensors.count"] == ("INT32", 5)
        assert ("general.name" in found) == (number == 0)


def test_read_as_one(tmp_path: Path) -> None:
    paths = write_split(tmp_path / "m.gguf", METADATA, TENSORS, 64)
    write_gguf(tmp_path / "whole.gguf", METADATA, TENSORS)
    file, whole = GGUFFile.open(paths[0]), GGUFFile.open(tmp_path / "whole.gguf")
    assert (file.paths, whole.paths) == (tuple(paths), (tmp_path / "whole.gguf",))
    assert dict(file.metadata) == dict(whole.metadata)
    assert list(file.tensors) == list(whole.tensors)
    for name in TENSORS:
        assert np.array_equal(file.array(name), whole.array(name))
    file.release()
    with pytest.raises(InputError, match=r"no metadata 'split\.no'"):
        file.encoded("split.no")


def test_tensors_larger_than_a_part_and_what_fits_in_one(tmp_path: Path) -> None:
    assert in_groups(write_split(tmp_path / "a.gguf", {}, TENSORS, 1)) == [[name] for name in TENSORS]
    assert write_split(tmp_path / "b.gguf", {}, TENSORS, 160) == [tmp_path / "b.gguf"]
    assert "split.count" not in GGUFFile.open(tmp_path / "b.gguf").metadata
    assert write_split(tmp_path / "c.gguf", METADATA, {}, 1) == [tmp_path / "c.gguf"]
    with pytest.raises(InputError, match="max_bytes is 0"):
        write_split(tmp_path / "d.gguf", {}, TENSORS, 0)
    with pytest.raises(InputError, match=r"'split\.no'"):
        write_split(tmp_path / "d.gguf", {"split.no": 1}, TENSORS, 64)


def test_each_part_has_the_alignment(tmp_path: Path) -> None:
    paths = write_split(tmp_path / "m.gguf", {"general.alignment": np.uint32(64)}, TENSORS, 64)
    assert {GGUFFile(p, p.read_bytes()).alignment for p in paths} == {64}
    assert np.array_equal(GGUFFile.open(paths[0]).array("t4"), TENSORS["t4"])


def test_all_parts_or_none(tmp_path: Path) -> None:
    late = TensorSource(dtypes.f32, (8,), lambda: np.zeros(7, np.float32))
    with pytest.raises(InputError, match="'late'"):
        write_split(tmp_path / "m.gguf", METADATA, TENSORS | {"late": late}, 64)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def split_model(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("split")
    return write_split(folder / "m.gguf", tiny_model.metadata(), tiny_model.tensors(), 60000)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_split_model_runs_as_the_whole_does(split_model: list[Path], tmp_path: Path, device: str) -> None:
    split, whole = tv.load(split_model[0], device), tv.load(tiny_model.write(tmp_path / "w.gguf"), device)
    ids = split.tokenizer.encode("hello")
    assert ids == whole.tokenizer.encode("hello")
    assert np.array_equal(split.logits(ids), whole.logits(ids))


def test_export_makes_one_file_of_parts(split_model: list[Path], tmp_path: Path) -> None:
    export(split_model[0], tmp_path / "one.gguf")
    one = GGUFFile.open(tmp_path / "one.gguf")
    assert set(one.tensors) == set(tiny_model.tensors())
    assert not any(key.startswith("split.") for key in one.metadata)
    with pytest.raises(InputError, match="is the model itself"):
        export(split_model[0], split_model[2])


def test_a_part_replaces_gguf_files_alone(tmp_path: Path) -> None:
    (precious := tmp_path / "m-00002-of-00003.gguf").write_text("precious")
    with pytest.raises(InputError, match=r"m-00002-of-00003\.gguf is there and is no GGUF file"):
        write_split(tmp_path / "m.gguf", METADATA, TENSORS, 64)
    assert precious.read_text() == "precious"
    assert [*tmp_path.iterdir()] == [precious]
    write_gguf(precious, {}, {})
    assert len(write_split(tmp_path / "m.gguf", METADATA, TENSORS, 64)) == 3


def test_the_part_that_failed_is_named(tmp_path: Path) -> None:
    tensors = {"small": np.zeros(8, np.float32), "large": np.zeros(1 << 18, np.float32), **TENSORS}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(FileError, match=r"m-00002-of-00003\.gguf: File too large"):
            write_split(tmp_path / "m.gguf", METADATA, tensors, 160)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [*tmp_path.iterdir()] == []


def test_the_hash_is_of_all_parts(tmp_path: Path) -> None:
    paths = write_split(tmp_path / "m.gguf", tiny_model.metadata(), tiny_model.tensors(), 60000)
    before = open_checkpoint(paths[0]).sha256
    data = bytearray(paths[-1].read_bytes())
    data[-1] ^= 1
    paths[-1].write_bytes(data)
    assert open_checkpoint(paths[0]).sha256 != before


@pytest.mark.model
@pytest.mark.slow
def test_llama_cpp_reads_the_parts(smollm2_path: Path, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    source = GGUFFile.open(smollm2_path)
    tensors = {n: TensorSource(t.dtype, t.shape, source.data(n)) for n, t in source.tensors.items()}
    metadata = {key: source.encoded(key) for key in source.metadata}
    paths = write_split(tmp_path / "m.gguf", metadata, tensors, 30 << 20)
    assert len(paths) > 2
    options = {"verbose": False, "n_ctx": 32, "logits_all": True, "n_threads": 1}
    scores = []
    for path in (paths[0], smollm2_path):
        model = llama_cpp.Llama(str(path), **options)
        model.eval([1, 2, 3])
        scores.append(np.array(model._scores)[:3])
    assert np.array_equal(*scores)


def u16(key: str, value: int) -> bytes:
    return pair(key, U16, value.to_bytes(2, "little"))


def part(number: int, count: int = 2, total: int | None = 2, name: str | None = None) -> Header:
    pairs = [u16("split.no", number), u16("split.count", count)]
    if total is not None:
        pairs.append(pair("split.tensors.count", I32, total.to_bytes(4, "little")))
    return Header(pairs, [tensor(name or f"t{number}")], bytes(32))


FIRST, SECOND = "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"


@pytest.mark.parametrize(
    ("first", "second", "field"),
    [
        (part(0), part(1, name="t0"), "tensor 't0': is also in an earlier part"),
        (part(0), part(0, name="x"), "split.no: is 0; by its name it is 1"),
        (part(0), part(1, count=3), "split.count: is 3; the first part says 2"),
        (part(0, total=3), part(1), "split.tensors.count: is 3; the parts hold 2"),
        (part(0, count=3), part(1), "split.count: is 3 and this is part 1"),
        (part(1), part(1), "split.count: is 2 and this is part 2"),
        (part(2), part(1), "split.no: is 2; wanted an integer from 0 to 1"),
        (part(0, count=0), part(1), "split.count: is 0; wanted an integer from 1"),
        (Header([pair("split.count", F32, bytes(4))]), part(1), "split.count: is 0.0"),
        (Header([pair("split.count", STRING, string("2"))]), part(1), "split.count: is '2'"),
        (Header([pair("split.count", U32, b"\xff" * 4)]), part(1), "split.count: is 4294967295"),
        (part(0), Header(), "split.no: is 0; by its name it is 1"),
    ],
)
def test_parts_that_do_not_fit(tmp_path: Path, first: Header, second: Header, field: str) -> None:
    first.save(tmp_path / FIRST)
    second.save(tmp_path / SECOND)
    with pytest.raises(GGUFError) as caught:
        GGUFFile.open(tmp_path / FIRST)
    assert field in str(caught.value)


def test_a_part_that_is_missing_or_renamed(tmp_path: Path) -> None:
    part(0).save(tmp_path / FIRST)
    with pytest.raises(FileError, match=f"{SECOND}: No such file"):
        GGUFFile.open(tmp_path / FIRST)
    part(1).save(tmp_path / SECOND)
    with pytest.raises(GGUFError, match=f"this is part 2 of 2; open the first, {FIRST}"):
        GGUFFile.open(tmp_path / SECOND)
    (tmp_path / FIRST).rename(tmp_path / "model.gguf")
    with pytest.raises(GGUFError, match=f"its name ends in -{FIRST[2:]}; it was renamed"):
        GGUFFile.open(tmp_path / "model.gguf")


def test_without_a_total_the_parts_are_what_there_is(tmp_path: Path) -> None:
    part(0, total=None).save(tmp_path / FIRST)
    part(1, total=None).save(tmp_path / SECOND)
    assert list(GGUFFile.open(tmp_path / FIRST).tensors) == ["t0", "t1"]
