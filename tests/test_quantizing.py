"""`trivet.quantize`: what is written, what is told, and what others make of the files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import tiny_model
import trivet as tv
from llama_quantize import llama_quantize
from trivet import calibration, dtypes, mixes
from trivet.errors import (
    DeviceUnavailable,
    FileError,
    InputError,
    ModelError,
    NonFiniteError,
    UnsupportedError,
)
from trivet.export import export
from trivet.formats.gguf import GGUFFile, TensorSource, write_gguf
from trivet.models import by_architecture
from trivet.models.checkpoint import open_checkpoint
from trivet.quantizing import Watch

TEXT = "hello, he said; what a tall tale it is that she tells! " * 30
GOLDEN = Path(__file__).parent / "golden/nll_text.txt"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("source") / "m.gguf")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "t.txt"
    path.write_text(TEXT)
    return path


def test_what_is_told(source: Path, text: Path, tmp_path: Path) -> None:
    tensors: list[int] = []
    done = tv.quantize(
        source, tmp_path / "q.gguf", type="q8_0", evaluate=text, watch=Watch(written=tensors.append)
    )
    out = GGUFFile.open(tmp_path / "q.gguf")
    assert out.metadata["general.file_type"] == 7
    assert out.metadata["general.quantization_version"] == 2
    assert sum(tensors) == len(done.tensors) == len(out.tensors)
    assert done.bytes_after == sum(t.nbytes for t in out.tensors.values())
    assert done.bytes_before == 4 * sum(w.size for w in tiny_model.tensors().values())
    assert done.bits_per_weight == pytest.approx(8.6, abs=0.1)
    assert 0.001 < done.error < 0.01
    for path, told in ((source, done.nll_before), (tmp_path / "q.gguf", done.nll_after)):
        model = tv.load(path, "reference")
        ids = model.tokenizer.encode(TEXT)
        assert told == pytest.approx(model.nll(ids, window=tiny_model.CONTEXT).mean(), abs=1e-3)


def test_the_same_input_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    sums = set()
    for threads in (1, 2):
        tv.quantize(source, tmp_path / "q.gguf", type="q4_k_m", threads=threads)
        sums.add(hashlib.sha256((tmp_path / "q.gguf").read_bytes()).hexdigest())
    assert len(sums) == 1


def test_calibration_is_kept_and_read(source: Path, text: Path, tmp_path: Path) -> None:
    imatrix = tmp_path / "i.gguf"
    tv.quantize(source, tmp_path / "a.gguf", type="q4_0", calibrate=text, imatrix=imatrix)
    tv.quantize(source, tmp_path / "b.gguf", type="q4_0", imatrix=imatrix)
    tv.quantize(source, tmp_path / "plain.gguf", type="q4_0")
    a, plain = (GGUFFile.open(tmp_path / f"{n}.gguf") for n in ("a", "plain"))
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert not np.array_equal(a.data("blk.0.attn_q.weight"), plain.data("blk.0.attn_q.weight"))
    means = calibration.load(imatrix).means["blk.0.attn_q.weight"]
    exact = tiny_model.tensors()["blk.0.attn_q.weight"]
    cost = [float((np.square(f.array("blk.0.attn_q.weight") - exact) @ means).sum()) for f in (a, plain)]
    assert cost[0] < cost[1]


def test_packed_sources_lose_twice_and_say_so(source: Path, tmp_path: Path) -> None:
    tv.quantize(source, tmp_path / "q8.gguf", type="q8_0")
    done = tv.quantize(tmp_path / "q8.gguf", tmp_path / "q4.gguf", type="q4_0")
    assert done.notes[1:] == ["14 tensors were packed before, and have lost twice: start from the original"]
    again = tv.quantize(tmp_path / "q8.gguf", tmp_path / "same.gguf", type="q8_0")
    assert again.error == 0


def test_keys_of_an_earlier_file_go(source: Path, tmp_path: Path) -> None:
    export(source, tmp_path / "exported.gguf")
    tv.quantize(tmp_path / "exported.gguf", tmp_path / "q.gguf", type="q8_0")
    assert not [k for k in GGUFFile.open(tmp_path / "q.gguf").metadata if k.startswith("trivet.")]
    assert tv.load(tmp_path / "q.gguf", "cpu").generate("hello", max_tokens=2).ids


def test_what_blocks_do_not_divide_is_told(source: Path, tmp_path: Path) -> None:
    done = tv.quantize(source, tmp_path / "q.gguf", type="Q4_K_S")  # rows of 64 and 96
    others = {str(t.after) for t in done.tensors if len(t.shape) == 2}
    assert done.type == "q4_k_s"
    assert done.notes == [
        f"15 matrices have rows that blocks of 256 do not divide: they are {', '.join(sorted(others))}"
    ]
    assert tv.quantize(source, tmp_path / "q.gguf", type="q8_0").notes == []


def test_texts_are_not_written_over(source: Path, text: Path, tmp_path: Path) -> None:
    for out, more in (
        (text.with_suffix(".gguf"), {}),
        (tmp_path / "q.gguf", {"calibrate": text, "imatrix": text.with_suffix(".gguf")}),
    ):
        text.with_suffix(".gguf").write_text("mine")
        with pytest.raises(InputError, match="is there and is no GGUF file"):
            tv.quantize(source, out, **more)
        assert text.with_suffix(".gguf").read_text() == "mine"
    with pytest.raises(InputError, match=r"ends in \.gguf"):
        tv.quantize(source, text)
    with pytest.raises(FileError, match="No such file"):  # and not the text, which is read later
        tv.quantize(source, tmp_path / "none/q.gguf", calibrate=text.with_suffix(".none"))


def test_arguments_that_are_wrong(source: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "q.gguf"
    with pytest.raises(InputError, match="type is 'q9'; known: f32, f16"):
        tv.quantize(source, out, type="q9")
    with pytest.raises(InputError, match="no device 'gpu'"):
        tv.quantize(source, out, device="gpu")
    with pytest.raises(DeviceUnavailable, match="tpu is not available"):
        tv.quantize(source, out, device="tpu")
    with pytest.raises(InputError, match="empty name"):
        tv.quantize(source, "")
    with pytest.raises(InputError, match="is the model itself"):
        tv.quantize(source, source)
    with pytest.raises(FileError, match="no file or folder"):
        tv.quantize(tmp_path / "none.gguf", out)
    with pytest.raises(FileError, match="is a folder"):
        tv.quantize(source, tmp_path)
    with pytest.raises(FileError, match="No such file"):
        tv.quantize(source, out, calibrate=tmp_path / "none.txt")
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    with pytest.raises(InputError, match="the text to score is 0 tokens"):
        tv.quantize(source, out, evaluate=empty)
    other = calibration.Importance({"blk.0.attn_q.weight": np.ones(32)}, 5)
    calibration.save(tmp_path / "other.gguf", other, "t")
    with pytest.raises(InputError, match="of another model"):
        tv.quantize(source, out, imatrix=tmp_path / "other.gguf")
    assert not out.exists()


@pytest.mark.parametrize(
    ("out", "more", "message"),
    [
        ("q.gguf", {"calibrate": "t.txt", "imatrix": "m.gguf"}, "is the model itself"),
        ("q.gguf", {"calibrate": "t.txt", "imatrix": "link"}, "is the model itself"),
        ("q.gguf", {"calibrate": "t.txt", "imatrix": "q.gguf"}, "cannot be both"),
        ("q.gguf", {"calibrate": "t.txt", "imatrix": "t.txt"}, "is a text that is read"),
        ("t.txt", {"calibrate": "t.txt"}, "is a text that is read"),
        ("t.txt", {"evaluate": "t.txt"}, "is a text that is read"),
        ("i.gguf", {"imatrix": "i.gguf"}, "cannot be both"),
        ("folder/model.safetensors", {}, "is the model itself"),
    ],
)
def test_what_is_read_is_not_written(
    source: Path, text: Path, tmp_path: Path, out: str, more: dict[str, str], message: str
) -> None:
    (tmp_path / "m.gguf").write_bytes(source.read_bytes())
    (tmp_path / "t.txt").write_bytes(text.read_bytes())
    (tmp_path / "i.gguf").write_bytes(b"x")
    (tmp_path / "link").hardlink_to(tmp_path / "m.gguf")
    tv.convert(source, tmp_path / "folder")
    model = tmp_path / ("folder" if "/" in out else "m.gguf")
    before = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    with pytest.raises(InputError, match=message):
        tv.quantize(model, tmp_path / out, **{k: tmp_path / v for k, v in more.items()})
    assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == before


def test_models_that_will_not_do(tmp_path: Path) -> None:
    unknown = tiny_model.write(tmp_path / "u.gguf", {"general.architecture": "parrot"})
    with pytest.raises(ModelError, match="'parrot'"):
        tv.quantize(unknown, tmp_path / "q.gguf")
    spoilt = tiny_model.tensors()["blk.0.attn_q.weight"].copy()
    spoilt[3, 4] = np.nan
    broken = tiny_model.write(tmp_path / "b.gguf", weights={"blk.0.attn_q.weight": spoilt})
    with pytest.raises(NonFiniteError, match=r"'blk.0.attn_q.weight': 1 of .* row 3, column 4"):
        tv.quantize(broken, tmp_path / "q.gguf")
    assert not (tmp_path / "q.gguf").exists()


def test_types_that_trivet_does_not_read(source: Path, tmp_path: Path) -> None:
    file = GGUFFile.open(source)
    tensors = {n: TensorSource(t.dtype, t.shape, file.data(n)) for n, t in file.tensors.items()}
    tensors["extra.weight"] = TensorSource(dtypes.i8, (256,), np.zeros(256, np.int8))
    write_gguf(tmp_path / "m.gguf", {k: file.encoded(k) for k in file.metadata}, tensors)
    data = bytearray((tmp_path / "m.gguf").read_bytes())
    at = data.index(b"extra.weight") + len("extra.weight") + 4 + 8
    data[at : at + 4] = (23).to_bytes(4, "little")  # iq4_xs, 136 bytes of 256 elements
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(UnsupportedError, match=r"'extra.weight' has type iq4_xs"):
        tv.quantize(tmp_path / "m.gguf", tmp_path / "q.gguf")


def test_a_folder_becomes_a_file(source: Path, tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5, "vocab_size": len(tiny_model.TOKENS), "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "hf/config.json").write_text(json.dumps(config))
    original = by_architecture("llama").hf_original
    save_file({original(n): w for n, w in tiny_model.tensors().items()}, tmp_path / "hf/model.safetensors")
    tv.quantize(tmp_path / "hf", tmp_path / "q.gguf", type="f32")
    folder, out = open_checkpoint(tmp_path / "hf"), open_checkpoint(tmp_path / "q.gguf")
    for name, entry in folder.tensors.items():
        assert np.array_equal(entry.values(), out.tensors[name].values())
    assert out.metadata["llama.attention.head_count_kv"] == 2


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("type", mixes.MIXES)
def test_llama_cpp_reads_what_is_written(type: str, smollm2_path: Path, tmp_path: Path) -> None:
    llama = pytest.importorskip("llama_cpp")
    tv.quantize(smollm2_path, tmp_path / "q.gguf", type=type)
    ours = tv.load(tmp_path / "q.gguf", "cpu")
    text = GOLDEN.read_text()[:3000]
    ids = ours.tokenizer.encode(text)
    theirs = llama.Llama(str(tmp_path / "q.gguf"), n_ctx=len(ids), logits_all=True, verbose=False)
    assert theirs.tokenize(text.encode(), add_bos=False) == ids
    theirs.eval(ids)
    logits = theirs.scores[: len(ids) - 1].astype(np.float64)
    peak = logits.max(axis=1)
    total = peak + np.log(np.exp(logits - peak[:, None]).sum(axis=1))
    nll = np.mean(total - logits[np.arange(len(ids) - 1), ids[1:]])
    assert nll == pytest.approx(ours.nll(ids).mean(), rel=5e-3)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("type", [t for t in mixes.MIXES if mixes.MIXES[t].base.is_packed])
def test_errs_no_more_than_llama_quantize(type: str, smollm2_path: Path, tmp_path: Path) -> None:
    tv.quantize(smollm2_path, tmp_path / "f32.gguf", type="f32")
    llama_quantize(tmp_path / "f32.gguf", tmp_path / "theirs.gguf", type)
    done = tv.quantize(tmp_path / "f32.gguf", tmp_path / "ours.gguf", type=type)
    exact, theirs = open_checkpoint(tmp_path / "f32.gguf"), GGUFFile.open(tmp_path / "theirs.gguf")
    assert (tmp_path / "ours.gguf").stat().st_size <= 1.001 * (tmp_path / "theirs.gguf").stat().st_size
    errors = squares = 0.0
    for name, entry in exact.tensors.items():
        values = entry.values().astype(np.float64)
        errors += float(np.square(theirs.array(name) - values).sum())
        squares += float(np.square(values).sum())
    assert done.error <= (errors / squares) ** 0.5 * (1 + 1e-9)
