"""Merging: only what changed is made anew, and what that cost is told."""

import json

import numpy as np
import pytest

import tiny_adapter
import tiny_model
import trivet as tv
from trivet.blocks import quantize
from trivet.dtypes import BY_NAME, q6_k
from trivet.errors import FileError, InputError, ModelError, NonFiniteError, UnsupportedError
from trivet.export import export
from trivet.formats.gguf import GGUFFile, TensorSource, write_gguf
from trivet.formats.safetensors import SafetensorsFile
from trivet.merging import FILE_TYPES
from trivet.models.checkpoint import open_checkpoint
from trivet.train import bundle

IDS = [(7 * i) % 250 for i in range(40)]


def packed(path, changed=None, weights=None, **kinds):
    """The tiny model with matrices packed: kind by the last part of a name, else q8_0."""
    tensors = {}
    for name, array in (tiny_model.tensors() | (weights or {})).items():
        kind = BY_NAME["f32" if array.ndim == 1 else kinds.get(name.split(".")[-2], "q8_0")]
        tensors[name] = TensorSource(kind, array.shape, quantize(array, kind))
    metadata = tiny_model.metadata() | {"general.name": "tiny", "trivet.version": np.uint32(1)}
    write_gguf(path, metadata | (changed or {}), tensors)
    return path


def q4_k_m(path, **changed):
    """One whose rows are 256 long in its feed-forward layers, packed as llama.cpp's Q4_K_M has them: q4_k and
    q6_k, and q5_0 and q8_0 for shorter rows."""
    rng = np.random.default_rng(1)
    weights = {
        f"blk.{i}.{name}.weight": (rng.standard_normal(shape) * 0.1).astype(np.float32)
        for i in range(2)
        for name, shape in (("ffn_gate", (256, 64)), ("ffn_up", (256, 64)), ("ffn_down", (64, 256)))
    }
    kinds = dict.fromkeys(("attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up"), "q5_0")
    changed = {"llama.feed_forward_length": np.uint32(256), "general.file_type": np.uint32(15)} | changed
    packed(path, changed, weights, ffn_down="q4_k", **kinds)
    file = GGUFFile.open(path)
    tensors = {n: TensorSource(t.dtype, t.shape, file.data(n)) for n, t in file.tensors.items()}
    last = weights["blk.1.ffn_down.weight"]
    tensors["blk.1.ffn_down.weight"] = TensorSource(q6_k, last.shape, quantize(last, q6_k))
    write_gguf(path, {key: file.encoded(key) for key in file.metadata}, tensors)
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return tiny_model.write(tmp_path_factory.mktemp("plain") / "m.gguf")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return packed(tmp_path_factory.mktemp("packed") / "m.gguf", attn_q="q4_1", attn_k="q4_0", ffn_up="f16")


def test_a_packed_file_again(base, tmp_path):
    adapter = tiny_adapter.make(open_checkpoint(base), targets=["attn_q", "attn_k", "ffn_up", "ffn_down"])
    done = tv.merge(base, adapter, tmp_path / "out.gguf")
    before, after = GGUFFile.open(base), GGUFFile.open(tmp_path / "out.gguf")
    assert list(after.tensors) == list(before.tensors)
    assert {c.name for c in done.changed} == set(adapter.pairs)
    assert done.copied == len(before.tensors) - len(adapter.pairs)
    for name, info in before.tensors.items():
        assert after.tensors[name].dtype is info.dtype
        if name not in adapter.pairs:
            assert np.array_equal(after.data(name), before.data(name)), name
    sums = np.zeros(4)
    for change in done.changed:
        pair = adapter.pairs[change.name]
        old = before.array(change.name)
        want = old + np.float32(adapter.scale(change.name)) * pair.b @ pair.a
        new = after.array(change.name)
        found = [((x - y) ** 2).sum() for x, y in ((new, want), (want, 0), (want, old))]
        found.append(((new - old) * (want - old)).sum())
        assert change.error == pytest.approx(np.sqrt(found[0] / found[1]), rel=1e-3)
        assert change.kept == pytest.approx(found[3] / found[2], rel=1e-3)
        sums += found
    assert done.error == pytest.approx(np.sqrt(sums[0] / sums[1]), rel=1e-3)
    assert done.kept == pytest.approx(sums[3] / sums[2], rel=1e-3)
    assert done.dithered == 0  # such large changes do not need it
    worst = {c.before: c.error for c in done.changed}
    assert 0 < worst["f16"] < 1e-3 < worst["q8_0"] < 0.02 < worst["q4_1"] < worst["q4_0"] < 0.2


@pytest.mark.parametrize("zero", ["scale", "b"])
def test_no_change_is_copied_byte_for_byte(tmp_path, zero):
    """Packing again would not give the bytes that were there: these are of another packer."""
    base = packed(tmp_path / "m.gguf", attn_q="q4_1", attn_k="q4_0", ffn_up="f16")
    file = GGUFFile.open(base)
    tensors = {n: TensorSource(t.dtype, t.shape, file.data(n).copy()) for n, t in file.tensors.items()}
    blocks = tensors["blk.0.attn_v.weight"].data.reshape(-1, 34)  # q8_0: a scale in f16, 32 bytes
    blocks[:, 2:] = np.clip(blocks[:, 2:].view(np.int8), -90, 90).view(np.uint8)
    write_gguf(base, {key: file.encoded(key) for key in file.metadata}, tensors)
    checkpoint = open_checkpoint(base)
    adapter = tiny_adapter.make(checkpoint)
    if zero == "b":
        for pair in adapter.pairs.values():
            pair.b[:] = 0
    done = tv.merge(base, (adapter, 0.0 if zero == "scale" else 1.0), tmp_path / "o.gguf")
    before, after = GGUFFile.open(base), GGUFFile.open(tmp_path / "o.gguf")
    for name in before.tensors:
        assert np.array_equal(before.data(name), after.data(name)), name
    assert (done.changed, done.copied, done.error, done.kept) == ([], len(before.tensors), 0.0, 1.0)


def test_metadata_and_lineage(base, tmp_path):
    checkpoint = open_checkpoint(base)
    adapter = tiny_adapter.make(checkpoint)
    tv.merge(base, (adapter, 0.5), tmp_path / "one.gguf")
    tv.merge(tmp_path / "one.gguf", adapter, tmp_path / "two.gguf", type="f16")
    before, one, two = (GGUFFile.open(p) for p in (base, tmp_path / "one.gguf", tmp_path / "two.gguf"))
    for key in before.metadata:
        if not key.startswith("trivet."):
            assert one.encoded(key) == before.encoded(key)
    assert "trivet.version" not in one.metadata
    assert one.metadata["trivet.parent"] == checkpoint.sha256
    assert two.metadata["trivet.parent"] == open_checkpoint(one.path).sha256
    assert two.metadata["general.file_type"] == 1
    stages = [json.loads(s) for s in two.metadata["trivet.lineage"]]
    assert [s["parent"]["sha256"] for s in stages] == [checkpoint.sha256, two.metadata["trivet.parent"]]
    (told,) = stages[0]["adapters"]
    assert (told["name"], told["scale"], told["sha256"]) == ("orders", 0.5, adapter.sha256)
    assert told["data"] == "orders.jsonl, 300 rows"
    card = (tmp_path / "one.README.md").read_text()
    assert checkpoint.sha256 in card
    assert "scale 0.5" in card


@pytest.mark.parametrize("type", ["keep", "f32"])
def test_the_merged_model_answers_as_the_adapted(plain, tmp_path, type):
    adapter = tiny_adapter.make(open_checkpoint(plain))
    adapted = tv.load(plain, "cpu", kv="f32", adapter=adapter)
    for out in ("out.gguf", "folder"):
        done = tv.merge(plain, adapter, tmp_path / out, type=type)
        assert done.error == 0
        found = tv.load(done.path, "cpu", kv="f32").logits(IDS)
        assert np.abs(found - adapted.logits(IDS)).max() < 1e-3
    got, want = (m.generate("hello", max_tokens=24, temperature=0).ids
                 for m in (tv.load(tmp_path / "out.gguf", "cpu", kv="f32"), adapted))  # fmt: skip
    assert got == want


def test_a_q4_k_m_file_again(tmp_path):
    base = q4_k_m(tmp_path / "m.gguf")
    adapter = tiny_adapter.make(open_checkpoint(base), targets=["ffn_down", "attn_v", "blk.0.ffn_up"])
    done = tv.merge(base, (adapter, 0.2), tmp_path / "out.gguf")
    before, after = GGUFFile.open(base), GGUFFile.open(done.path)
    assert after.metadata["general.file_type"] == 15
    for name, info in before.tensors.items():
        assert after.tensors[name].dtype is info.dtype
        assert np.array_equal(after.data(name), before.data(name)) == (name not in adapter.pairs)
    assert {c.after for c in done.changed} == {"q4_k", "q6_k", "q8_0", "q5_0"}
    for c in done.changed:
        assert (0 < c.error < 0.12, 0.5 < c.kept < 1.2) == (True, True), c
    adapted = tv.load(base, "cpu", kv="f32", adapter=(adapter, 0.2))
    merged = tv.load(done.path, "cpu", kv="f32")
    want, found = adapted.logits(IDS), merged.logits(IDS)
    unadapted = tv.load(base, "cpu", kv="f32").logits(IDS)
    assert np.linalg.norm(found - want) < 0.5 * np.linalg.norm(unadapted - want)
    assert merged.generate("hello", max_tokens=4, temperature=0).ids


def test_small_changes_survive(tmp_path):
    base = q4_k_m(tmp_path / "m.gguf")
    adapter = tiny_adapter.make(open_checkpoint(base))
    given = (adapter, 0.01)  # changes of a tenth of a step: to the nearest, nothing would be changed
    done = tv.merge(base, given, tmp_path / "out.gguf")
    assert done.dithered > len(done.changed) // 2
    assert 0.8 < done.kept < 1.2
    again = tv.merge(base, given, tmp_path / "again.gguf")
    for name in adapter.pairs:  # by chance, but the same chance
        one, two = (GGUFFile.open(d.path).data(name) for d in (done, again))
        assert np.array_equal(one, two)


@pytest.mark.parametrize("type", [t for t in FILE_TYPES if t != "f32" and not t.endswith("_k")])
def test_types(plain, tmp_path, type):
    adapter = tiny_adapter.make(open_checkpoint(plain), targets=["attn_q"])
    done = tv.merge(plain, adapter, tmp_path / "out.gguf", type=type)
    found = GGUFFile.open(done.path)
    assert {t.dtype.name for n, t in found.tensors.items() if n in adapter.pairs} == {type}
    assert {t.dtype.name for n, t in found.tensors.items() if n not in adapter.pairs} == {"f32"}
    assert 0 < done.error < 0.2


@pytest.mark.parametrize("type", [t for t in FILE_TYPES if t.endswith("_k")])
def test_types_of_long_rows(tmp_path, type):
    base = q4_k_m(tmp_path / "m.gguf")
    adapter = tiny_adapter.make(open_checkpoint(base), targets=["ffn_down"])
    done = tv.merge(base, adapter, tmp_path / "out.gguf", type=type)
    assert {c.after for c in done.changed} == {type}
    assert 0 < done.error < 0.4
    assert GGUFFile.open(done.path).metadata["general.file_type"] == FILE_TYPES[type]


def test_transformers_reads_the_folder(base, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    adapter = tiny_adapter.make(open_checkpoint(base))
    done = tv.merge(base, adapter, tmp_path / "folder", type="f32")
    want = tv.load(base, "reference", kv="f32", adapter=adapter)
    model = transformers.AutoModelForCausalLM.from_pretrained(done.path, dtype=torch.float32)
    with torch.no_grad():
        got = model(torch.tensor(IDS)[None]).logits[0].numpy()
    assert np.abs(got - want.logits(IDS)).max() < 1e-3
    tokenizer = transformers.AutoTokenizer.from_pretrained(done.path)
    messages = [{"role": "user", "content": "hello  hello 123, we'll"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.encode(text) == want.encode_chat(messages)


def test_a_folder_keeps_what_came_with_it(plain, tmp_path):
    made = tv.merge(plain, tiny_adapter.make(open_checkpoint(plain)), tmp_path / "a", type="bf16")
    (made.path / "special_tokens_map.json").write_text("{}")
    (made.path / "pytorch_model.bin").write_bytes(b"no")
    adapter = tiny_adapter.make(open_checkpoint(made.path), seed=1)
    tv.merge(made.path, adapter, tmp_path / "b")
    found = {f.name for f in (tmp_path / "b").iterdir()}
    assert found == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "special_tokens_map.json",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert json.loads((tmp_path / "b" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    file = SafetensorsFile.open(tmp_path / "b")
    assert {t.dtype.name for t in file.tensors.values()} == {"bf16"}
    assert file.metadata["trivet.parent"] == open_checkpoint(made.path).sha256
    got = tv.load(tmp_path / "b", "cpu", kv="f32").logits(IDS)
    want = tv.load(made.path, "cpu", kv="f32", adapter=adapter).logits(IDS)
    assert np.abs(got - want).max() < 0.1 * np.abs(want).max()  # bf16 has eight bits


def test_packed_becomes_f16_in_a_folder(base, tmp_path):
    adapter = tiny_adapter.make(open_checkpoint(base), targets=["attn_q"])
    file = SafetensorsFile.open(tv.merge(base, adapter, tmp_path / "f").path)
    kinds = {n: t.dtype.name for n, t in file.tensors.items()}
    assert kinds["model.layers.0.self_attn.k_proj.weight"] == "f16"
    assert kinds["model.norm.weight"] == "f32"


def test_what_cannot_be_written_is_named_first(base, tmp_path):
    adapter = tiny_adapter.make(open_checkpoint(base))
    with pytest.raises(
        UnsupportedError,
        match=r"would be q4_k, whose blocks of 256 do not divide its rows of 64; give another",
    ):
        tv.merge(base, adapter, tmp_path / "out.gguf", type="q4_k")
    assert not (tmp_path / "out.gguf").exists()


def test_what_a_type_cannot_hold_is_named(plain, tmp_path):
    adapter = tiny_adapter.make(open_checkpoint(plain), targets=["blk.1.attn_q"], alpha=9e5)
    for type in ("q8_0", "q5_1", "q4_0"):
        with pytest.raises(
            NonFiniteError, match=rf"blk\.1\.attn_q\.weight: .* is beyond {type}; give type f32"
        ):
            tv.merge(plain, (adapter, 1e6), tmp_path / "out.gguf", type=type)
    assert not (tmp_path / "out.gguf").exists()


def test_refused(plain, base, tmp_path):
    adapter = tiny_adapter.make(open_checkpoint(plain))
    for given, says in (
        ({"type": "q4_k_m"}, "type is 'q4_k_m'; known: keep"),
        ({"out": plain}, "the model itself"),
        ({"out": ""}, "empty name"),
        ({"adapter": []}, "no adapter"),
        ({"out": tmp_path / "folder", "type": "q8_0"}, "a folder holds f32"),
    ):
        args = {"model": plain, "adapter": adapter, "out": tmp_path / "o.gguf"} | given
        with pytest.raises(InputError, match=says):
            tv.merge(**args)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()
    with pytest.raises(InputError, match="is not empty"):
        tv.merge(plain, adapter, tmp_path / "full")
    folder = tv.merge(plain, adapter, tmp_path / "folder").path
    with pytest.raises(UnsupportedError, match="is not a GGUF file"):
        tv.merge(folder, tiny_adapter.make(open_checkpoint(folder)), tmp_path / "o.gguf")
    with pytest.raises(NonFiniteError, match=r"beyond f16; give type f32 or bf16"):
        tv.merge(plain, (adapter, 1e6), tmp_path / "o.gguf", type="f16")
    assert not (tmp_path / "o.gguf").exists()


BAD_HEADS = [np.uint32(0), np.uint32(2**32 - 1), "4", np.float32(4), [4, 4], True]


@pytest.mark.parametrize("key", ["head_count", "head_count_kv"])
@pytest.mark.parametrize("heads", BAD_HEADS, ids=repr)
@pytest.mark.parametrize("to", ["o.gguf", "folder"])
def test_a_base_must_be_a_model(plain, tmp_path, key, heads, to):
    folder = tiny_adapter.make(open_checkpoint(plain)).save(tmp_path / "a")
    bad = tiny_model.write(tmp_path / "bad.gguf", {f"llama.attention.{key}": heads})
    with pytest.raises(ModelError, match=f"{key} is"):
        tv.merge(bad, folder, tmp_path / to)
    assert not (tmp_path / to).exists()


def test_a_base_without_head_count(plain, tmp_path):
    folder = tiny_adapter.make(open_checkpoint(plain)).save(tmp_path / "a")
    bad = tiny_model.write(tmp_path / "bad.gguf", {"llama.attention.head_count": None})
    with pytest.raises(ModelError, match="head_count is missing"):
        tv.merge(bad, folder, tmp_path / "o.gguf")


def test_a_folder_with_what_a_killed_merge_left_is_empty(plain, tmp_path):
    adapter = tiny_adapter.make(open_checkpoint(plain))
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / ".model.safetensors.0123456789ab.partial").write_bytes(b"half")
    (tmp_path / ".o.gguf.0123456789ab.partial").write_bytes(b"half")
    tv.merge(plain, adapter, tmp_path / "f")
    tv.merge(plain, adapter, tmp_path / "o.gguf")
    assert not list(tmp_path.rglob("*.partial"))


def test_never_writes_over_an_adapter(plain, tmp_path):
    made = tiny_adapter.make(open_checkpoint(plain))
    file, folder = made.save(tmp_path / "a.gguf"), made.save(tmp_path / "a")
    (tmp_path / "link.gguf").symlink_to(file)
    (tmp_path / "hard.gguf").hardlink_to(file)
    (tmp_path / "to").symlink_to(folder)
    (tmp_path / "part.gguf").hardlink_to(folder / "adapter_model.safetensors")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for adapter, out in (
        *((file, name) for name in ("a.gguf", "link.gguf", "hard.gguf")),
        *((folder, name) for name in ("a", "to", "a/o.gguf", "to/o.gguf", "a/b/c", "part.gguf")),
    ):
        for given in (adapter, tv.Adapter.open(adapter, plain)):
            with pytest.raises(InputError, match=r"adapter .*; write somewhere else"):
                tv.merge(plain, [made, given], tmp_path / out)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_another_readme_stays(plain, tmp_path):
    adapter = tiny_adapter.make(open_checkpoint(plain))
    readme = tmp_path / "o.README.md"
    readme.write_text("# Mine, made with trivet.\n")
    assert tv.merge(plain, adapter, tmp_path / "o.gguf").notes == [
        f"{readme} is not a card of trivet's, and stays as it is"
    ]
    assert readme.read_text() == "# Mine, made with trivet.\n"
    readme.unlink()
    assert tv.merge(plain, adapter, tmp_path / "o.gguf").notes == []
    first = readme.read_text()
    assert tv.merge(plain, (adapter, 0.5), tmp_path / "o.gguf").notes == []
    assert readme.read_text() != first
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "README.md").write_text("mine")
    adapter.save(tmp_path / "a")
    assert (tmp_path / "a" / "README.md").read_text() == "mine"


def test_an_ending_in_capitals_is_a_file_too(plain, tmp_path):
    adapter = tiny_adapter.make(open_checkpoint(plain))
    assert tv.merge(plain, adapter, tmp_path / "O.GGUF").path.is_file()
    assert adapter.save(tmp_path / "A.GGUF").is_file()


def test_another_base_is_told(plain, base, tmp_path):
    folder = tiny_adapter.make(open_checkpoint(plain)).save(tmp_path / "a")
    assert tv.merge(plain, folder, tmp_path / "one.gguf").notes == []
    assert "trained on another file" in tv.merge(base, folder, tmp_path / "two.gguf").notes[0]


def test_a_merged_file_is_a_bundle(base, tmp_path):
    adapter = tiny_adapter.make(open_checkpoint(base), targets=["attn_q"])
    first = bundle.verify(tv.merge(base, adapter, tmp_path / "one.gguf").path)
    second = bundle.verify(tv.merge(tmp_path / "one.gguf", adapter, tmp_path / "two.gguf").path)
    assert (first.parent, second.parent) == (None, first.id)
    assert second.stage["stage"] == "merge"
    raw = bytearray((tmp_path / "two.gguf").read_bytes())
    raw[GGUFFile.open(tmp_path / "two.gguf").tensors["blk.1.attn_q.weight"].offset] ^= 1
    (tmp_path / "broken.gguf").write_bytes(raw)
    with pytest.raises(FileError, match=r"blk\.1\.attn_q\.weight"):
        bundle.verify(tmp_path / "broken.gguf")


def test_llama_cpp_reads_the_merged_file(tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    model = tiny_model.write(tmp_path / "m.gguf", {"tokenizer.ggml.pre": "gpt-2"})
    adapter = tiny_adapter.make(open_checkpoint(model))
    path = tv.merge(model, adapter, tmp_path / "out.gguf", type="f16").path
    theirs = llama_cpp.Llama(str(path), n_ctx=256, logits_all=True, verbose=False, n_threads=1)
    theirs.eval(IDS)
    want = tv.load(path, "cpu").logits(IDS)
    assert np.abs(np.array(theirs.scores[: len(IDS)]) - want).max() < 0.02 * np.abs(want).max()


def test_llama_cpp_reads_a_packed_file(tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    model = q4_k_m(tmp_path / "m.gguf", **{"tokenizer.ggml.pre": "gpt-2"})
    adapter = tiny_adapter.make(open_checkpoint(model))
    path = tv.merge(model, (adapter, 0.2), tmp_path / "out.gguf").path
    theirs = llama_cpp.Llama(str(path), n_ctx=256, logits_all=True, verbose=False, n_threads=1)
    theirs.eval(IDS)
    want = tv.load(path, "cpu").logits(IDS)
    assert np.abs(np.array(theirs.scores[: len(IDS)]) - want).max() < 0.05 * np.abs(want).max()


def test_export_keeps_the_lineage(base, tmp_path):
    adapter = tiny_adapter.make(open_checkpoint(base), targets=["attn_q"])
    merged = GGUFFile.open(tv.merge(base, adapter, tmp_path / "one.gguf").path)
    found = GGUFFile.open(export(merged.path, tmp_path / "two.gguf").path)
    assert found.metadata["trivet.lineage"] == merged.metadata["trivet.lineage"]
    assert "trivet.bundle.id" not in found.metadata
