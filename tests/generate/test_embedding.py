"""Embeddings of texts: pooling, lengths, adapters, and what is refused."""

import numpy as np
import pytest

import tiny_adapter
import tiny_model
import trivet as tv
from devices import DEVICES
from trivet.errors import CapacityError, InputError, ModelError, NonFiniteError

TEXTS = ["hell", "he said: hell", "x" * 90]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_model.write(tmp_path_factory.mktemp("model") / "m.gguf")


@pytest.mark.parametrize("device", DEVICES)
def test_a_text_alone_and_among_others(path, device):
    model = tv.load(path, device)
    together = model.embed(TEXTS)
    assert together.shape == (3, tiny_model.WIDTH)
    assert together.dtype == np.float32
    for text, row in zip(TEXTS, together, strict=True):
        assert np.array_equal(model.embed(text)[0], row)
        assert np.array_equal(model.embed(ids := model.encode_prompt(text))[0], row)
        assert np.array_equal(model.embed(np.array(ids))[0], row)
    assert model.embed([]).shape == (0, tiny_model.WIDTH)


def test_the_last_token_gives_the_logits(path):
    model = tv.load(path, "reference")
    row = model.embed(TEXTS[1], pooling="last")[0]
    want = model.logits(model.encode_prompt(TEXTS[1]))[-1]
    assert np.abs(tiny_model.tensors()["token_embd.weight"] @ row - want).max() < 1e-4


def test_normalize(path):
    model = tv.load(path)
    plain, unit = model.embed(TEXTS), model.embed(TEXTS, normalize=True)
    assert np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    assert np.allclose(unit * np.linalg.norm(plain, axis=1, keepdims=True), plain, atol=1e-5)


@pytest.mark.parametrize(("number", "pooling"), [(0, "mean"), (1, "mean"), (3, "last")])
def test_the_file_says_how(tmp_path, path, number, pooling):
    made = tiny_model.write(tmp_path / "m.gguf", {"llama.pooling_type": np.uint32(number)})
    assert np.array_equal(tv.load(made).embed(TEXTS), tv.load(path).embed(TEXTS, pooling=pooling))


def test_adapters_are_in_it(path):
    model = tv.load(path)
    before = model.embed(TEXTS)
    model.adapt(tiny_adapter.make(model.checkpoint))
    assert not np.allclose(model.embed(TEXTS), before, atol=1e-2)
    model.adapt(None)
    assert np.array_equal(model.embed(TEXTS), before)


def test_what_is_refused(path, tmp_path):
    model = tv.load(path)
    for texts in (["a", ""], [[]], 5, [5.5], [[1, -1]], [[999]], [None]):
        with pytest.raises(InputError):
            model.embed(texts)
    with pytest.raises(InputError, match=r"\[embed\] the prompt is empty"):
        model.embed([""])
    with pytest.raises(InputError, match="pooling"):
        model.embed("a", pooling="max")
    with pytest.raises(InputError, match="normalize"):
        model.embed("a", normalize="yes")
    with pytest.raises(CapacityError, match="128"):
        model.embed([[1] * 129])
    other = tiny_model.write(tmp_path / "p.gguf", {"llama.pooling_type": np.uint32(2)})
    with pytest.raises(ModelError, match="pooling_type"):
        tv.load(other).embed("a")
    broken = np.full((tiny_model.WIDTH, tiny_model.WIDTH), np.nan, np.float32)
    other = tiny_model.write(tmp_path / "n.gguf", weights={"blk.1.attn_output.weight": broken})
    with pytest.raises(NonFiniteError):
        tv.load(other).embed("a")
