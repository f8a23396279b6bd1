"""Adapters in use: what they compute, stacked and swapped, and what they leave alone."""

import numpy as np
import pytest

import tiny_adapter
import tiny_model
import trivet as tv
from devices import DEVICES
from trivet.adapter import gathered, stacked
from trivet.errors import InputError
from trivet.generate.chat import Chat
from trivet.models.checkpoint import open_checkpoint

IDS = [(7 * i) % 250 for i in range(90)]  # more than a page


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_model.write(tmp_path_factory.mktemp("base") / "m.gguf")


@pytest.fixture(scope="module")
def pair(path):
    base = open_checkpoint(path)
    return tiny_adapter.make(base), tiny_adapter.make(base, rank=2, seed=1, targets=["attn_v", "ffn_up"])


def merged(path, adapters, out):
    """The model with W + B @ A for weights, worked out here."""
    sums = stacked(gathered(adapters, open_checkpoint(path)))
    return tiny_model.write(out, weights={n: tiny_model.tensors()[n] + b @ a for n, (a, b) in sums.items()})


def close(got, want):
    return np.abs(got - want).max() < 1e-4 * max(1.0, np.abs(want).max())


@pytest.mark.parametrize("device", DEVICES)
def test_equals_the_merged_model(path, pair, device, tmp_path):
    given = [pair[0], (pair[1], -0.5)]
    want = tv.load(merged(path, given, tmp_path / "merged.gguf"), device, kv="f32")
    got = tv.load(path, device, kv="f32", adapter=given)
    assert close(got.logits(IDS), want.logits(IDS))
    assert not close(tv.load(path, device, kv="f32").logits(IDS), want.logits(IDS))
    replies = [m.generate("hello", max_tokens=24, temperature=0).ids for m in (got, want)]
    assert replies[0] == replies[1]


@pytest.mark.parametrize("device", DEVICES)
def test_swap_and_back(path, pair, device):
    model = tv.load(path, device)
    plain = model.logits(IDS)
    first = tv.load(path, device, adapter=pair[0]).logits(IDS)
    model.adapt(pair[0])
    assert np.array_equal(model.logits(IDS), first)
    model.adapt([(pair[1], 2)])
    assert [(a.name, s) for a, s in model.adapters] == [("orders", 2.0)]
    assert not np.array_equal(model.logits(IDS), first)
    model.adapt(pair[0])
    assert np.array_equal(model.logits(IDS), first)
    model.adapt(None)
    assert model.adapters == ()
    assert np.array_equal(model.logits(IDS), plain)


def test_swapping_shares_the_base_and_equal_adapters(path, pair):
    from trivet.generate.native import NativeWeights

    model = tv.load(path, "cpu")
    weights = model.engine._weights
    assert isinstance(weights, NativeWeights)
    for _ in range(3):
        for one in pair:
            model.adapt(one)
            model.logits(IDS[:3])
    assert model.engine._weights is weights
    assert len(weights._kept) == 2 * (len(pair[0].pairs) + len(pair[1].pairs))


@pytest.mark.parametrize("device", DEVICES)
def test_a_failed_swap_changes_nothing(path, pair, device, tmp_path):
    model = tv.load(path, device, adapter=pair[0])
    want, engine = model.logits(IDS[:9]), model.engine
    with pytest.raises(tv.TrivetError):
        model.adapt(tmp_path / "nothing")
    assert model.engine is engine
    assert np.array_equal(model.logits(IDS[:9]), want)


@pytest.mark.parametrize("device", DEVICES)
def test_sessions_belong_to_their_adapters(path, pair, device):
    model = tv.load(path, device)
    session = model.session()
    model.adapt(pair[0])
    with pytest.raises(InputError, match="another engine"):
        model.engine.forward(session, [1, 2], [1])


def test_token_by_token_equals_at_once(path, pair):
    model = tv.load(path, "cpu", adapter=pair)
    session = model.session()
    rows = [model.engine.forward(session, [i], [0])[0] for i in IDS]
    assert np.array_equal(np.stack(rows), model.logits(IDS))


def test_threads_and_neighbours_do_not_show(path, pair):
    one, two = (tv.load(path, "cpu", threads=n, adapter=pair[0]) for n in (1, 2))
    assert np.array_equal(one.logits(IDS), two.logits(IDS))


def test_a_folder_of_floats(pair, path, tmp_path):
    """The base as a Hugging Face folder, whose tensors are given to the core one by one."""
    made = tv.merge(path, pair[1], tmp_path / "folder")
    given = tiny_adapter.make(open_checkpoint(made.path), seed=3)
    got = tv.load(made.path, "cpu", kv="f32", adapter=given).logits(IDS)
    assert close(got, tv.load(made.path, "reference", kv="f32", adapter=given).logits(IDS))


def test_a_chat_goes_on_with_other_adapters(path, pair):
    model = tv.load(path, "cpu")
    chat = Chat(model)
    list(chat.send("hello", 4, temperature=0))
    model.adapt(pair[0])
    list(chat.send("and now", 6, temperature=0))
    fresh = model.encode_chat(chat.messages[:-1])
    want = model.generate(fresh, max_tokens=6, temperature=0)
    assert chat.messages[-1]["content"] == want.text
