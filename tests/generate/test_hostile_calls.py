"""What the user's Model refuses, and that it goes on working afterwards."""

import math
import threading

import numpy as np
import pytest

import tiny_model
import trivet as tv
from trivet.errors import CapacityError, InputError, TokenizerError


@pytest.fixture(scope="module", params=["cpu", "reference"])
def m(request, tmp_path_factory):
    return tv.load(tiny_model.write(tmp_path_factory.mktemp("m") / "m.gguf"), device=request.param)


IDS = ["a1", b"ab", {1, 2}, {1: 2}, [1.5], ["1"], [True], [[1]], np.ones((2, 2), int), np.ones(2), None, 5]


@pytest.mark.parametrize("ids", IDS, ids=repr)
def test_ids_of_a_wrong_kind(m, ids):
    calls = [m.logits, m.nll, m.tokenizer.decode]
    for call in calls if isinstance(ids, str) else [*calls, m.generate]:
        with pytest.raises(InputError):
            call(ids)


@pytest.mark.parametrize("id", [-1, 10**6, 2**40, 2**80])
def test_ids_outside_the_vocabulary(m, id):
    for call in (m.logits, m.nll, m.generate):
        with pytest.raises(InputError):
            call([1, id])
    with pytest.raises(TokenizerError):
        m.tokenizer.decode([id])


@pytest.mark.parametrize("text", [5, None, b"x", ["a"], "\ud800"])
def test_text_of_a_wrong_kind(m, text):
    for call in (m.tokenizer.encode, m.tokenizer.find):
        with pytest.raises(InputError):
            call(text)


OPTIONS = {
    "max_tokens": [0, -1, 2.5, "3", None, math.nan, True],
    "temperature": [math.nan, math.inf, -1, "x", None, True],
    "top_k": [-1, 1.5, "x", None, 2**31, True],
    "top_p": [0, math.nan, 2, None],
    "min_p": [math.nan, -1, 2, None],
    "repeat_penalty": [0, -1, math.inf, 1e300],
    "presence_penalty": [math.inf, math.nan, None],
    "logit_bias": [{1: math.nan}, {-1: 0}, {"a": 1}, {1: "a"}, {1: None}, {True: 1.0}, [1, 2], 5],
    "seed": [-1, 2**64, 1.5, "x", True],
    "stop": [5, None, [5], ["a", None], b"x"],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in OPTIONS.items() for v in vs], ids=repr)
def test_options(m, name, value):
    with pytest.raises(InputError):
        m.generate([1, 2], **({"max_tokens": 2} | {name: value}))
    assert m.generate([1, 2], max_tokens=1).usage.completion_tokens <= 1


@pytest.mark.parametrize(("window", "stride"), [(1, 0), (-1, 0), (2, 2), (3, 5), (1.5, 1), ("x", 1), (3, -1)])
def test_windows(m, window, stride):
    with pytest.raises(InputError):
        m.nll([1, 2, 3, 4], window=window, stride=stride)


def test_sessions(m):
    session = m.session()
    for length in (-1, 5, 2**70, 1.5, None):
        with pytest.raises(InputError):
            session.truncate(length)
    for row in (5, -1, 0.5):
        with pytest.raises(InputError):
            m.engine.forward(session, [1, 2], [row])
    assert session.length == 0


def test_a_full_context_is_refused_and_the_session_goes_on(m):
    session = m.session()
    with pytest.raises(CapacityError, match=str(tiny_model.CONTEXT)):
        m.engine.forward(session, [1] * (tiny_model.CONTEXT + 1), [0])
    assert m.engine.forward(session, [1], [0]).shape == (1, len(tiny_model.TOKENS))


def test_abandoned_generators_and_two_threads(m):
    wanted = m.generate([1, 2, 3], max_tokens=12, temperature=0).ids
    for _ in range(100):  # more than there are sessions
        next(m.stream([1, 2, 3], max_tokens=12, temperature=0))
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(m.generate([1, 2, 3], max_tokens=12, temperature=0).ids))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 4


def test_a_session_outlives_its_model(tmp_path):
    m = tv.load(tiny_model.write(tmp_path / "m.gguf"), device="cpu")
    engine, session = m.engine, m.session()
    wanted = m.logits([1])
    del m
    assert (engine.forward(session, [1], [0]) == wanted).all()


@pytest.mark.parametrize("keys", [{"context": 0}, {"context": 1.5}, {"context": 10**9}, {"threads": -1}])
def test_load(keys, tmp_path):
    with pytest.raises(InputError):
        tv.load(tiny_model.write(tmp_path / "m.gguf"), **keys)


@pytest.mark.parametrize("model", ["", None, 5, b"x"])
def test_load_of_no_path(model):
    with pytest.raises(InputError):
        tv.load(model)
