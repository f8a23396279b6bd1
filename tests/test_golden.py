"""SmolLM2 against what llama.cpp says of the same weights in float32 (tests/golden/README.md)."""

import json
from pathlib import Path

import numpy as np
import pytest

import trivet as tv

GOLDEN = json.loads((Path(__file__).parent / "golden" / "smollm2-135m.json").read_text("utf-8"))
TEXT = (Path(__file__).parent / "golden" / "nll_text.txt").read_text("utf-8")

#: device -> largest error of a top-20 logit, of the mean NLL, and the margin up to which ids may differ
TOLERANCE = {"reference": (2e-3, 1e-4, 0.02), "cpu": (0.05, 5e-4, 0.1)}

pytestmark = pytest.mark.model


@pytest.fixture(scope="module", params=["cpu", "reference"])
def model(request, smollm2_path):
    return tv.load(smollm2_path, device=request.param)


@pytest.mark.parametrize("case", GOLDEN["tokenization"], ids=lambda c: c["name"])
def test_tokenization(smollm2_path, case):
    tokenizer = tv.load(smollm2_path).tokenizer
    for special in (False, True):
        for parse in (False, True):
            want = case[f"ids_add_special={special:d}_parse_special={parse:d}"]
            assert tokenizer.encode(case["text"], add_special=special, parse_special=parse) == want


@pytest.mark.parametrize("case", GOLDEN["top20"], ids=lambda c: c["prompt"][:24])
def test_top_logits(model, case):
    logits = model.logits(case["prompt_ids"])[-1].astype(np.float64)
    assert np.abs(logits[case["ids"]] - case["logits"]).max() < TOLERANCE[model.device][0]
    assert abs(np.log(np.exp(logits).sum()) - case["logsumexp"]) < TOLERANCE[model.device][0]


def test_mean_nll(model):
    ids = model.tokenizer.encode(TEXT, add_special=True)
    assert ids == GOLDEN["nll"]["ids"]
    losses = model.nll(ids)
    assert len(losses) == GOLDEN["nll"]["n_scored"]
    assert abs(losses.mean() - GOLDEN["nll"]["mean_nll"]) < TOLERANCE[model.device][1]


@pytest.mark.parametrize("case", GOLDEN["greedy"], ids=lambda c: c["name"])
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


@pytest.mark.parametrize("case", GOLDEN["greedy"], ids=lambda c: c["name"])
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


def test_says_paris(model):
    reply = model.generate(GOLDEN["greedy"][0]["prompt"], max_tokens=8, temperature=0)
    assert "Paris" in reply.text
