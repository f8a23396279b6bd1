"""Names of folders' tensors, both ways, and folders that contradict themselves."""

import json

import numpy as np
import pytest

import trivet as tv
from trivet import models
from trivet.errors import ModelError, UnsupportedError
from trivet.models import hf
from trivet.models.checkpoint import Checkpoint, open_checkpoint

pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file
from test_every_architecture import NAMES

import variants


@pytest.fixture(scope="module", params=NAMES)
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    variants.saved(folder, request.param)
    return folder


def test_names_go_both_ways(folder):
    checkpoint = open_checkpoint(folder)
    module = models.by_architecture(checkpoint.architecture)
    made = set()
    for name, entry in checkpoint.tensors.items():
        theirs = module.hf_original(name)
        parts = [theirs.format(i) for i in range(entry.shape[0])] if "{}" in theirs else [theirs]
        made |= set(parts) - {""}
        for part, original in enumerate(parts):
            want = f"{name}#{part}" if "{}" in theirs else name
            assert not original or module.hf_rename(original) == want
    assert made == set(load_file(folder / "model.safetensors"))
    for name in ("blk.0.nonsense.weight", "nonsense.weight", "blk.x.attn_q.weight"):
        assert module.hf_original(name) is None
        assert module.hf_rename(name) is None


@pytest.fixture
def llama(tmp_path):
    variants.saved(tmp_path, "llama-tied")
    return tmp_path


def rewritten(folder, tensors, **config):
    save_file(tensors, folder / "model.safetensors")
    old = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(old | config))
    return folder


def test_names_without_their_first_part(llama):
    want = tv.load(llama).logits([1, 2, 3])
    tensors = load_file(llama / "model.safetensors")
    rewritten(llama, {name.removeprefix("model."): array for name, array in tensors.items()})
    assert np.array_equal(tv.load(llama).logits([1, 2, 3]), want)


def test_a_tied_output_matrix_is_the_embedding_whatever_else_is_there(llama):
    want = tv.load(llama).logits([1, 2, 3])
    tensors = load_file(llama / "model.safetensors")
    other = np.zeros_like(tensors["model.embed_tokens.weight"])
    rewritten(llama, tensors | {"lm_head.weight": other})
    assert np.array_equal(tv.load(llama).logits([1, 2, 3]), want)


def test_an_untied_output_matrix_that_is_missing(llama):
    rewritten(llama, load_file(llama / "model.safetensors"), tie_word_embeddings=False)
    with pytest.raises(ModelError, match="tie_word_embeddings"):
        tv.load(llama)


def test_parts_in_several_files(tmp_path):
    model = variants.saved(tmp_path / "whole", "stablelm-parallel")
    model.save_pretrained(tmp_path / "shards", max_shard_size="60KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 3
    want = tv.load(tmp_path / "whole").logits([1, 2, 3])
    assert np.array_equal(tv.load(tmp_path / "shards").logits([1, 2, 3]), want)


@pytest.mark.parametrize("change", ["gap", "shape", "dtype", "count"])
def test_parts_of_a_tensor_that_do_not_fit(tmp_path, change):
    variants.saved(tmp_path, "stablelm-parallel")
    tensors = load_file(tmp_path / "model.safetensors")
    part = "model.layers.1.self_attn.q_layernorm.norms.{}.weight"
    if change == "gap":
        tensors[part.format(7)] = tensors.pop(part.format(1))
    elif change == "count":
        tensors[part.format(3)] = tensors[part.format(0)]
    else:
        old = tensors[part.format(2)]
        tensors[part.format(2)] = old[:-1] if change == "shape" else old.astype(np.float16)
    with pytest.raises(ModelError, match="attn_q_norm"):
        tv.load(rewritten(tmp_path, tensors))


def test_biases_of_only_some_matrices_have_no_word(tmp_path):
    variants.saved(tmp_path, "llama-bias")
    whole = open_checkpoint(tmp_path)
    kept = {n: e for n, e in whole.tensors.items() if not n.endswith("attn_v.bias")}
    with pytest.raises(UnsupportedError, match="attn_v"):
        models.by_architecture("llama").hf_config(Checkpoint(whole.path, whole.metadata, kept))
    assert hf.biased(whole, "attn_q", "attn_v")
