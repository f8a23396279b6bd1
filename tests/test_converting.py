"""Conversion between folders and GGUF files, there and back, read by transformers and llama.cpp, too."""

import shutil
import subprocess
import sys
import textwrap

import gguf
import numpy as np
import pytest

import tiny_model
import trivet as tv
from trivet import cards, dtypes
from trivet.blocks import quantize
from trivet.errors import FileError, InputError, NonFiniteError
from trivet.formats.gguf import GGUFFile, TensorSource, write_gguf
from trivet.models.checkpoint import open_checkpoint
from trivet.text.hf_tokenizer import tokenizer_files

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
huggingface_hub = pytest.importorskip("huggingface_hub")

import variants  # noqa: E402

TEXT = "hello hell, 12 heel: é🦙\n"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return tiny_model.write(tmp_path_factory.mktemp("plain") / "plain.gguf")


def folder_of(path, name, **more):
    """A folder as people have it: weights, configuration, tokenizer; and transformers' logits."""
    model = variants.saved(path, name, **more)
    for file, text in tokenizer_files(tiny_model.metadata()).items():
        (path / file).write_text(text)
    ids = np.random.default_rng(5).integers(0, variants.VOCAB, 40)
    with torch.no_grad():
        return ids.tolist(), model(torch.tensor(ids)[None]).logits[0].numpy()


@pytest.mark.parametrize("name", ["llama-tied", "gptneox", "phi3-partial", "gemma3", "mixtral", "llama-bf16"])
def test_there_and_back(name, tmp_path):
    ids, logits = folder_of(tmp_path / "folder", name)
    file = tv.convert(tmp_path / "folder", tmp_path / "model.gguf")
    assert file.notes == []
    back = tv.convert(file.path, tmp_path / "back", max_bytes=40_000)
    assert back.notes == []
    assert len([*back.path.glob("*.safetensors")]) > 1
    for path in (file.path, back.path):
        model = tv.load(path, kv="f32")
        assert variants.near(model.logits(ids), logits)
        assert model.tokenizer.encode(TEXT) == tv.load(tmp_path / "folder").tokenizer.encode(TEXT)
        assert open_checkpoint(path).chat_template == tiny_model.TEMPLATE
    theirs = transformers.AutoModelForCausalLM.from_pretrained(back.path, dtype=torch.float32)
    with torch.no_grad():
        assert variants.near(theirs(torch.tensor(ids)[None]).logits[0].numpy(), logits)
    tokenizer = transformers.AutoTokenizer.from_pretrained(back.path)
    assert tokenizer.encode(TEXT) == model.tokenizer.encode(TEXT)


def test_the_same_bytes_every_time(plain, tmp_path):
    tv.convert(plain, tmp_path / "folder")
    one, two = (tv.convert(tmp_path / "folder", tmp_path / f"{n}.gguf").path for n in "ab")
    assert one.read_bytes() == two.read_bytes()


def test_parts_and_one_again(plain, tmp_path):
    parts = tv.convert(plain, tmp_path / "p.gguf", max_bytes=50_000).path
    assert parts.name.startswith("p-00001-of-0")
    assert len([*tmp_path.glob("p-*.gguf")]) > 2
    whole = GGUFFile.open(tv.convert(parts, tmp_path / "whole.gguf").path)
    original = GGUFFile.open(plain)
    assert {*whole.metadata} == {*original.metadata}
    assert all(np.array_equal(whole.data(n), original.data(n)) for n in original.tensors)


CARD = """---
license: other
license_name: "a \\"b\\" licence"
license_link: https://example.org/licence
language:
- en
- "no"  # which YAML would take for false
tags: [chat, 'small']
model_name: Tiny
model_creator: Somebody
model_description: |
  more lines
  than one
widget:
- text: hello
---
license: mit
"""


def test_what_a_card_says_comes_along(tmp_path):
    folder_of(tmp_path / "folder", "llama")
    (tmp_path / "folder" / "README.md").write_text(CARD)
    (tmp_path / "folder" / "LICENSE").write_text("Do as you like.")
    said = {
        "general.name": "Tiny",
        "general.author": "Somebody",
        "general.license": "other",
        "general.license.name": 'a "b" licence',
        "general.license.link": "https://example.org/licence",
        "general.languages": ["en", "no"],
        "general.tags": ["chat", "small"],
    }
    file = tv.convert(tmp_path / "folder", tmp_path / "o.gguf").path
    fields = gguf.GGUFReader(file).fields
    assert {key: fields[key].contents() for key in said} == said
    assert "general.description" not in fields
    again = tv.convert(file, tmp_path / "back").path
    other = tv.convert(tmp_path / "folder", tmp_path / "other", type="f16").path
    assert (other / "LICENSE").read_text() == "Do as you like."
    for folder in (again, other):
        front = huggingface_hub.ModelCard.load(folder / "README.md").data
        assert (front.license, front.license_name) == ("other", 'a "b" licence')
        assert (front.language, front.tags) == (["en", "no"], ["chat", "small", "trivet"])
        assert (front.model_name, front["model_creator"]) == ("Tiny", "Somebody")


@pytest.mark.parametrize(
    "card",
    [b"", b"---\n", b"---\nlicense\n---", b"\xff---\n", b"---\nlicense: {a: [b\n---\n", b"---\n- x\n---"],
)
def test_a_card_that_says_nothing(card, tmp_path):
    (tmp_path / "README.md").write_bytes(card)
    assert cards.read(tmp_path / "README.md") == {}
    assert cards.read(tmp_path) == cards.read(tmp_path / "none") == {}


def test_every_end_of_a_reply_comes_along(tmp_path):
    folder_of(tmp_path / "folder", "gemma3")
    (tmp_path / "folder" / "generation_config.json").write_text('{"eos_token_id": [258, 7, 9, 11]}')
    file = tv.convert(tmp_path / "folder", tmp_path / "o.gguf").path
    back = tv.convert(file, tmp_path / "back").path
    theirs = transformers.GenerationConfig.from_pretrained(back)
    eos = tv.load(file).tokenizer.eos_id
    assert theirs.eos_token_id[0] == eos
    assert {*theirs.eos_token_id} == {eos, 258, 7, 9, 11}
    assert tv.load(back).tokenizer.end_ids == tv.load(file).tokenizer.end_ids == {eos, 258, 7, 9, 11}
    said = {key for key, *_ in tv.compare(file, back).metadata}
    assert not said & {"tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.chat_template"}


def test_a_killed_conversion_is_begun_again(plain, tmp_path):
    script = f"""
        import os, trivet as tv
        tv.convert({str(plain)!r}, {str(tmp_path / "folder")!r}, advance=lambda _: os.kill(os.getpid(), 9))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert done.returncode == -9
    assert [path.suffix for path in (tmp_path / "folder").iterdir()] == [".partial"]
    assert tv.load(tv.convert(plain, tmp_path / "folder").path).generate("hello", max_tokens=2).ids


def test_parts_are_not_written_over_the_parts_that_are_read(plain, tmp_path):
    parts = tv.convert(plain, tmp_path / "p.gguf", max_bytes=50_000).path
    before = {f: f.read_bytes() for f in tmp_path.iterdir()}
    with pytest.raises(InputError, match=r"p-00001-of-\d+\.gguf is a part of the model itself"):
        tv.convert(parts, tmp_path / "p.gguf", max_bytes=50_000)
    assert {f: f.read_bytes() for f in tmp_path.iterdir()} == before


def test_types(plain, tmp_path):
    q8 = open_checkpoint(tv.convert(plain, tmp_path / "q8.gguf", type="q8_0").path)
    assert q8.tensors["blk.0.attn_q.weight"].dtype.name == "q8_0"
    assert q8.metadata["general.file_type"] == 7
    assert q8.tensors["blk.0.attn_norm.weight"].dtype.name == "f32"
    done = tv.convert(q8.path, tmp_path / "folder", type="bf16")
    assert "were packed" in done.notes[0]
    made = open_checkpoint(done.path)
    assert {entry.dtype.name for entry in made.tensors.values()} == {"bf16"}
    before, after = (c.tensors["blk.1.ffn_up.weight"].values() for c in (q8, made))
    assert np.allclose(before, after, rtol=2**-8)
    again = open_checkpoint(tv.convert(done.path, tmp_path / "keep.gguf").path)
    assert again.tensors["blk.0.attn_q.weight"].dtype.name == "bf16"
    assert again.tensors["output_norm.weight"].dtype.name == "f32"
    assert again.metadata["general.file_type"] == 32


@pytest.mark.parametrize("name", ["q5_k", "q4_k", "q3_k", "iq4_nl", "f64"])
def test_an_embedding_of_any_type_is_kept(name, tmp_path):
    kind = dtypes.BY_NAME[name]
    values = np.random.default_rng(0).standard_normal((len(tiny_model.TOKENS), 256)).astype(np.float32)
    made = {
        key: np.zeros((*array.shape[:-1], 256), np.float32) for key, array in tiny_model.tensors().items()
    }
    made |= {f"blk.{i}.ffn_down.weight": np.zeros((256, tiny_model.HIDDEN), np.float32) for i in range(2)}
    for i in range(2):
        made |= {f"blk.{i}.attn_{n}.weight": np.zeros((256, 256), np.float32) for n in ("q", "output")}
        made |= {f"blk.{i}.attn_{n}.weight": np.zeros((128, 256), np.float32) for n in ("k", "v")}
    made["token_embd.weight"] = TensorSource(kind, values.shape, quantize(values, kind))
    facts = {"llama.embedding_length": np.uint32(256), "llama.rope.dimension_count": np.uint32(64)}
    plain = tiny_model.write(tmp_path / "plain.gguf", facts, made)
    parts = tv.convert(plain, tmp_path / "parts.gguf", max_bytes=500_000).path
    kept, original = GGUFFile.open(parts), GGUFFile.open(plain)
    assert kept.tensors["token_embd.weight"].dtype is kind
    assert all(np.array_equal(kept.data(n), original.data(n)) for n in original.tensors)
    folder = tv.convert(plain, tmp_path / "folder").path
    back = open_checkpoint(tv.convert(folder, tmp_path / "back.gguf").path)
    assert back.tensors["token_embd.weight"].dtype.name == ("f32" if name == "f64" else "f16")
    original_values = original.array("token_embd.weight")
    assert np.allclose(back.tensors["token_embd.weight"].values(), original_values, rtol=1e-3)


def test_a_folder_without_a_tokenizer(tmp_path):
    variants.saved(tmp_path / "folder", "llama")
    assert "speaks ids only" in tv.convert(tmp_path / "folder", tmp_path / "o.gguf").notes[0]


@pytest.mark.parametrize(
    ("out", "more", "error", "message"),
    [
        ("", {}, InputError, "empty name"),
        ("o.gguf", {"type": "q9"}, InputError, r"type is 'q9'; a GGUF file has: keep, f32"),
        ("folder", {"type": "q8_0"}, InputError, "a folder has: keep, f32, f16, bf16"),
        ("o.gguf", {"max_bytes": 0}, InputError, "max_bytes is 0"),
        ("plain.gguf", {}, InputError, "is the model itself"),
        ("full", {}, InputError, "is not empty"),
        ("full/file", {}, InputError, "is there and no folder"),
        ("missing/o.gguf", {}, FileError, "No such file"),
        ("o.safetensors", {}, InputError, "neither a folder nor a .gguf file"),
    ],
)
def test_refused(plain, tmp_path, out, more, error, message):
    shutil.copy(plain, tmp_path / "plain.gguf")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(error, match=message):
        tv.convert(tmp_path / "plain.gguf", str(tmp_path / out) if out else "", **more)
    assert {p.name for p in tmp_path.iterdir()} == {"plain.gguf", "full"}
    assert (tmp_path / "full" / "file").read_text() == "mine"


def test_into_the_folder_that_is_read(plain, tmp_path):
    folder = tv.convert(plain, tmp_path / "folder").path
    with pytest.raises(InputError, match="in the model's own folder"):
        tv.convert(folder, folder / "model")
    with pytest.raises(InputError, match="is the model itself"):
        tv.convert(folder, folder)


@pytest.mark.parametrize(("value", "message"), [(np.nan, "not finite"), (1e6, "beyond f16")])
@pytest.mark.parametrize("to", ["folder", "o.gguf"])
def test_what_a_type_cannot_hold(tmp_path, value, message, to):
    tensors = {name: array.copy() for name, array in tiny_model.tensors().items()}
    tensors["blk.1.ffn_up.weight"][3, 5] = value
    write_gguf(tmp_path / "bad.gguf", tiny_model.metadata(), tensors)
    if to == "o.gguf" and value == 1e6:  # a file may hold tensors of other types
        done = tv.convert(tmp_path / "bad.gguf", tmp_path / to, type="f16")
        assert "blk.1.ffn_up.weight' is bf16" in done.notes[0]
        return
    with pytest.raises(NonFiniteError, match=f"blk.1.ffn_up.weight.*{message}"):
        tv.convert(tmp_path / "bad.gguf", tmp_path / to, type="f16")
    assert not (tmp_path / "o.gguf").exists()
    assert not (tmp_path / "folder" / "config.json").exists()


def test_what_is_broken_off_leaves_no_model(plain, tmp_path):
    def stop(_):
        raise KeyboardInterrupt

    for out in ("o.gguf", "folder"):
        with pytest.raises(KeyboardInterrupt):
            tv.convert(plain, tmp_path / out, advance=stop)
    assert not (tmp_path / "o.gguf").exists()
    assert not (tmp_path / "folder" / "config.json").exists()
    assert not [*tmp_path.rglob("*.safetensors")]


@pytest.mark.parametrize("name", ["gptneox", "olmo2", "stablelm"])
def test_llama_cpp_opens_what_takes_its_embedding_as_output(name, tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    ids, logits = folder_of(tmp_path / "folder", name, tie_word_embeddings=True)
    file = tv.convert(tmp_path / "folder", tmp_path / "m.gguf", type="f32").path
    assert variants.near(tv.load(file, kv="f32").logits(ids), logits)
    theirs = llama_cpp.Llama(str(file), n_ctx=64, n_batch=64, logits_all=True, verbose=False, n_threads=1)
    theirs.eval(ids)
    scores = np.array(theirs.scores[: len(ids)])
    assert np.mean(scores.argmax(-1) == logits.argmax(-1)) > 0.9
    again = tv.quantize(tmp_path / "folder", tmp_path / "q.gguf", type="q8_0").tensors
    assert "output.weight" in {tensor.name for tensor in again}


@pytest.mark.slow
@pytest.mark.model
def test_llama_cpp_reads_what_was_converted(smollm2_path, tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    folder = tv.convert(smollm2_path, tmp_path / "folder", type="f32").path
    file = tv.convert(folder, tmp_path / "o.gguf").path
    theirs = llama_cpp.Llama(str(file), n_ctx=512, logits_all=True, verbose=False, n_threads=2)
    text = "The capital of France is Paris, 7777 + 3333 <|im_end|>\n  is 🦙.cpp"
    ours = tv.load(file)
    ids = ours.tokenizer.encode(text)
    assert theirs.tokenize(text.encode(), add_bos=False, special=False) == ids
    theirs.eval(ids)
    scores = np.array(theirs.scores[: len(ids)], np.float64)
    chosen = scores[np.arange(len(ids) - 1), ids[1:]]
    nll = np.mean(np.log(np.exp(scores[:-1]).sum(-1)) - chosen)
    assert abs(nll - ours.nll(ids).mean()) < 0.005 * nll
