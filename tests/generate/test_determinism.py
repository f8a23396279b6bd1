"""The bits of a token's logits do not depend on how it was computed."""

import os
import subprocess
import sys

import numpy as np
import pytest

import trivet as tv
from trivet.generate.engine import Feed

pytestmark = pytest.mark.model

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived an old man who",
    "def fibonacci(n):\n    ",
    "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31",
    "Ω",
]


@pytest.fixture(scope="module", params=["f16", "q8_0"])
def model(smollm2_path, request):
    return tv.load(smollm2_path, device="cpu", context=1024, kv=request.param)


@pytest.fixture(scope="module")
def prompts(model):
    return [model.tokenizer.encode(p) for p in PROMPTS]


@pytest.fixture(scope="module")
def alone(model, prompts):
    return [model.logits(ids) for ids in prompts]


def test_token_by_token(model, prompts, alone):
    for ids, want in zip(prompts, alone, strict=True):
        session = model.session()
        got = [model.engine.forward(session, [i], [0])[0] for i in ids]
        assert np.array_equal(np.stack(got), want)


def test_in_a_batch_of_unlike_prompts(model, prompts, alone):
    feeds = [Feed(model.session(), ids, range(len(ids))) for ids in prompts]
    for got, want in zip(model.engine.step(feeds), alone, strict=True):
        assert np.array_equal(got, want)


def test_prefill_and_decode_in_one_run(model, prompts, alone):
    """Some sequences at their last token, others at their first, all in one run."""
    sessions = [model.session() for _ in prompts]
    for session, ids in list(zip(sessions, prompts, strict=True))[::2]:
        if ids[:-1]:
            model.engine.forward(session, ids[:-1], [])
    feeds = [
        Feed(s, ids[s.length :], [len(ids) - s.length - 1]) for s, ids in zip(sessions, prompts, strict=True)
    ]
    for got, want in zip(model.engine.step(feeds), alone, strict=True):
        assert np.array_equal(got[0], want[-1])


@pytest.mark.parametrize("cut", [1, 7, 63, 64, 65, 255, 256, 257, 513])
def test_long_prompt_in_parts(model, cut):
    ids = [(31 * i) % 40000 + 20 for i in range(600)]
    whole = model.session()
    want = model.engine.forward(whole, ids, [0, 255, 256, 599])
    parts = model.session()
    model.engine.forward(parts, ids[:cut], [])
    assert np.array_equal(model.engine.forward(parts, ids[cut:], [599 - cut])[0], want[-1])


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(smollm2_path, model, prompts, alone, threads):
    kv = model.kv.name
    one = tv.load(smollm2_path, device="cpu", context=1024, threads=1, kv=kv)
    many = tv.load(smollm2_path, device="cpu", context=1024, threads=threads, kv=kv)
    for ids, want in zip(prompts, alone, strict=True):
        assert np.array_equal(one.logits(ids), want)
        assert np.array_equal(many.logits(ids), want)


def test_fork_and_truncate(model, prompts, alone):
    ids, want = prompts[1], alone[1]
    session = model.session()
    model.engine.forward(session, ids[:9], [])
    other = session.fork()
    model.engine.forward(session, [5, 6, 7], [])
    assert other.length == 9
    got = model.engine.forward(other, ids[9:], range(len(ids) - 9))
    assert np.array_equal(got, want[9:])
    session.truncate(9)
    again = model.engine.forward(session, ids[9:], range(len(ids) - 9))
    assert np.array_equal(again, want[9:])


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize("isa", ["scalar", "avx2"])
def test_every_instruction_set_is_deterministic(smollm2_path, isa, kv):
    """In each, one prefill equals token by token with another number of threads."""
    code = f"""
import numpy as np, trivet as tv
ids = [504, 3575, 282, 4649, 314, 7042]
a = tv.load({str(smollm2_path)!r}, device="cpu", context=128, threads=2, kv={kv!r})
b = tv.load({str(smollm2_path)!r}, device="cpu", context=128, threads=1, kv={kv!r})
want, s = a.logits(ids), b.session()
got = np.stack([b.engine.forward(s, [i], [0])[0] for i in ids])
assert np.array_equal(got, want)
print(int(want[-2].argmax()))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TRIVET_ISA": isa}, capture_output=True, text=True
    )
    if "lacks" in run.stderr:
        pytest.skip(run.stderr.strip().splitlines()[-1])
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) == 7042
