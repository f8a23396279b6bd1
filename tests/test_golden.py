"""SmolLM2 and Gemma 3 against what llama.cpp says of the same weights in float32 (tests/golden/README.md)."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest

import trivet as tv

FOLDER = Path(__file__).parent / "golden"
GOLDEN = {
    name: json.loads((FOLDER / f"{name}.json").read_text("utf-8")) for name in ("smollm2-135m", "gemma3-270m")
}
PATHS = {"smollm2-135m": "smollm2_path", "gemma3-270m": "gemma3_path"}
TEXT = (FOLDER / "nll_text.txt").read_text("utf-8")

#: device -> largest error of a top-20 logit, of the mean NLL, and the margin up to which ids may differ
TOLERANCE = {"reference": (2e-3, 1e-4, 0.02), "cpu": (0.05, 5e-4, 0.1)}
#: the largest error of a logit where that is not it: Gemma's are larger
LOGITS = {("gemma3-270m", "reference"): 3e-3}

pytestmark = pytest.mark.model


def cases(key, devices=("cpu", "reference")):
    """(model, device, case) for every case of a kind. Gemma on the reference takes its time: few tokens of it
    are enough by default."""
    return [
        pytest.param(
            (name, device),
            case,
            id=f"{name}-{device}-{case.get('name', i)}",
            marks=[pytest.mark.slow]
            if (name, device) == ("gemma3-270m", "reference") and key != "top20"
            else [],
        )
        for name, golden in GOLDEN.items()
        for device in devices
        for i, case in enumerate(golden[key] if isinstance(golden[key], list) else [golden[key]])
    ]


@pytest.fixture(scope="module")
def opened(request):
    """Opens a model once on each device."""
    return functools.cache(lambda name, device: tv.load(request.getfixturevalue(PATHS[name]), device=device))


@pytest.fixture
def model(opened, which):
    return opened(*which)


@pytest.mark.parametrize(("which", "case"), cases("tokenization", ["cpu"]))
def test_tokenization(model, case):
    for special in (False, True):
        for parse in (False, True):
            want = case[f"ids_add_special={special:d}_parse_special={parse:d}"]
            got = model.tokenizer.encode(case["text"], add_special=special, parse_special=parse)
            assert got == want


@pytest.mark.parametrize(("which", "case"), cases("top20"))
def test_top_logits(model, which, case):
    logits = model.logits(case["prompt_ids"])[-1].astype(np.float64)
    bound = LOGITS.get(which, TOLERANCE[model.device][0])
    assert np.abs(logits[case["ids"]] - case["logits"]).max() < bound
    assert abs(np.log(np.exp(logits).sum()) - case["logsumexp"]) < bound


@pytest.mark.parametrize(("which", "case"), cases("nll"))
def test_mean_nll(model, case):
    ids = model.tokenizer.encode(TEXT, add_special=True)
    assert ids == case["ids"]
    losses = model.nll(ids)
    assert len(losses) == case["n_scored"]
    assert abs(losses.mean() - case["mean_nll"]) < TOLERANCE[model.device][1]


@pytest.mark.parametrize(("which", "case"), cases("greedy"))
def test_greedy(model, case):
    """Each step's argmax, given the oracle's ids before it."""
    prompt, continuation = case["prompt_ids"], case["continuation_ids"]
    logits = model.engine.forward(
        model.session(),
        prompt + continuation[:-1],
        range(len(prompt) - 1, len(prompt) + len(continuation) - 1),
    )
    ours = logits.argmax(axis=1)
    margins = np.array(case["top1_top2_margin"])
    differ = (ours != continuation) & (margins > TOLERANCE[model.device][2])
    assert not differ.any(), np.flatnonzero(differ)


@pytest.mark.parametrize(("which", "case"), cases("greedy"))
def test_generate_follows_the_oracle(model, case):
    """Generation itself, up to the first step that may differ or the end of the turn."""
    margins = case["top1_top2_margin"]
    sure = next((i for i, m in enumerate(margins) if m <= TOLERANCE[model.device][2]), len(margins))
    ends = case["first_eog_index"] if case["first_eog_index"] is not None else len(margins)
    count = min(sure, ends, 12 if model.device == "reference" else 64)
    if count == 0:
        pytest.skip("the oracle's first step is within the tolerance")
    reply = model.generate(case["prompt"], max_tokens=count, temperature=0)
    assert reply.ids == case["continuation_ids"][:count]
    assert reply.usage.prompt_tokens == len(case["prompt_ids"])


@pytest.mark.parametrize("which", [("smollm2-135m", "cpu"), ("smollm2-135m", "reference")], ids="-".join)
def test_says_paris(model):
    reply = model.generate(GOLDEN["smollm2-135m"]["greedy"][0]["prompt"], max_tokens=8, temperature=0)
    assert "Paris" in reply.text
