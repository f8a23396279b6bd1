"""Generating: options, stops, limits, streams, chats."""

import pytest

import trivet as tv
from trivet.errors import CapacityError, InputError
from trivet.generate.chat import Chat

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(smollm2_path):
    return tv.load(smollm2_path, device="cpu", context=256)


def test_same_seed_same_reply(model):
    a = model.generate("Once upon a time", max_tokens=24, seed=7)
    b = model.generate("Once upon a time", max_tokens=24, seed=7)
    c = model.generate("Once upon a time", max_tokens=24, seed=8)
    assert a.ids == b.ids != c.ids


def test_stream_adds_up(model):
    chunks = list(model.stream("A list of colours: 🟥", max_tokens=20, temperature=0))
    done = chunks[-1].completion
    assert "".join(c.text for c in chunks) == done.text
    assert [i for c in chunks for i in c.ids] == done.ids
    assert done.text == model.generate("A list of colours: 🟥", max_tokens=20, temperature=0).text


def test_stop_string_is_not_in_the_text(model):
    full = model.generate("Count: 1, 2, 3, 4,", max_tokens=24, temperature=0)
    stop = full.text[6:9]
    cut = model.generate("Count: 1, 2, 3, 4,", max_tokens=24, temperature=0, stop=stop)
    assert cut.finish_reason == "stop"
    assert cut.text == full.text[: full.text.index(stop)]


def test_length_and_context_limits(model):
    done = model.generate("Hello", max_tokens=3, temperature=0, logit_bias={2: -1e9})
    assert (done.finish_reason, done.limit, len(done.ids)) == ("length", "max_tokens", 3)
    ids = [28] * 250
    done = model.generate(ids, max_tokens=100, temperature=0, logit_bias={0: float("-inf"), 2: float("-inf")})
    assert (done.finish_reason, done.limit) == ("length", "context")
    assert done.usage.total_tokens == 257  # the last one was not fed
    with pytest.raises(CapacityError, match="256"):
        model.generate([28] * 256)


def test_logit_bias_forces_a_token(model):
    done = model.generate("Hello", max_tokens=4, temperature=0, logit_bias={1234: 1e4})
    assert done.ids == [1234] * 4


def test_penalties_change_repetition(model):
    plain = model.generate("la la la la la la", max_tokens=24, temperature=0)
    for option in ({"repeat_penalty": 2.0}, {"frequency_penalty": 2.0}, {"presence_penalty": 2.0}):
        other = model.generate("la la la la la la", max_tokens=24, temperature=0, **option)
        assert len(set(other.ids)) > len(set(plain.ids)), option


@pytest.mark.parametrize(
    ("prompt", "options", "names"),
    [
        ("", {}, "empty"),
        ([49152], {}, "49152"),
        ([-1], {}, "-1"),
        ("x", {"max_tokens": 0}, "max_tokens"),
        ("x", {"temperature": -1}, "temperature"),
        ("x", {"temperature": float("nan")}, "temperature"),
        ("x", {"top_p": 0.0}, "top_p"),
        ("x", {"top_p": 1.5}, "top_p"),
        ("x", {"min_p": -0.1}, "min_p"),
        ("x", {"top_k": -1}, "top_k"),
        ("x", {"repeat_penalty": 0}, "repeat_penalty"),
        ("x", {"logit_bias": {49152: 1.0}}, "49152"),
    ],
)
def test_bad_options_are_named(model, prompt, options, names):
    with pytest.raises(InputError, match=names):
        model.generate(prompt, **options)


def test_chat_remembers_and_resets(model):
    chat = Chat(model)
    first = "".join(c.text for c in chat.send("What is the capital of France?", 24, temperature=0))
    assert "Paris" in first
    "".join(c.text for c in chat.send("Say it again.", 24, temperature=0))
    assert [m["role"] for m in chat.messages] == ["user", "assistant"] * 2
    chat.reset("You are a pirate.")
    assert chat.messages == [{"role": "system", "content": "You are a pirate."}]


def test_chat_equals_a_fresh_run(model):
    """What the session kept from earlier turns does not show."""
    chat = Chat(model)
    list(chat.send("Hi", 8, temperature=0))
    list(chat.send("And you?", 8, temperature=0))
    fresh = model.encode_chat(chat.messages[:-1])
    want = model.generate(fresh, max_tokens=8, temperature=0)
    assert chat.messages[-1]["content"] == want.text


def test_chat_keeps_what_was_said_before_a_stop(model):
    chat = Chat(model)
    chunks = chat.send("Tell me a story.", 64, temperature=0)
    text = next(chunks).text + next(chunks).text
    chunks.close()
    assert chat.messages[-1] == {"role": "assistant", "content": text}
    assert "".join(c.text for c in chat.send("Go on.", 4, temperature=0)) is not None


def test_chat_that_no_longer_fits(model):
    chat = Chat(model)
    with pytest.raises(CapacityError, match="256"):
        chat.send("word " * 300)
    assert chat.messages == []
