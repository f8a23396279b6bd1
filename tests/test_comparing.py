"""Two models compared: known differences, equal files, what cannot be compared; KL as PyTorch has it."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_model
import trivet as tv
from command import ok
from trivet import comparing
from trivet.blocks import quantize
from trivet.dtypes import q8_0
from trivet.errors import DeviceUnavailable, InputError, ModelError, NonFiniteError
from trivet.formats.gguf import GGUFFile, TensorSource, write_gguf, write_split
from trivet.models import checkpoint

TEXT = "hello, hell: " * 40  # longer than the context


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("a") / "a.gguf")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with its matrices as q8_0."""
    path = tmp_path_factory.mktemp("b") / "b.gguf"
    tensors: dict[str, Any] = {
        name: array if array.ndim == 1 else TensorSource(q8_0, array.shape, quantize(array, q8_0))
        for name, array in tiny_model.tensors().items()
    }
    write_gguf(path, tiny_model.metadata(), tensors)
    return path


def test_a_device_is_refused_where_nothing_is_computed(tmp_path: Path) -> None:
    model = tiny_model.write(tmp_path / "m.gguf")
    with pytest.raises(DeviceUnavailable, match="tpu is not available"):
        comparing.compare(model, model, device="tpu")


def test_equal_files_differ_in_nothing(model: Path) -> None:
    seen: list[int] = []
    found = tv.compare(model, model, text=TEXT, advance=seen.append)
    assert found.identical
    assert found.rmse == 0
    assert all((t.rmse, t.largest, t.identical) == (0, 0, True) for t in found.tensors)
    assert found.text is not None
    assert (found.text.kl, found.text.same_top, found.text.a) == (0, 1, found.text.b)
    assert sum(seen) == len(found.tensors) + found.text.a.tokens


def test_parts_are_the_whole(model: Path, tmp_path: Path) -> None:
    parts = write_split(tmp_path / "m.gguf", tiny_model.metadata(), tiny_model.tensors(), 60000)
    assert tv.compare(model, parts[0]).identical


def test_a_requantised_copy_differs_by_what_packing_cost(
    model: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "PIECE", 1000)  # several pieces a tensor
    found = tv.compare(model, packed)
    file, errors, wholes = GGUFFile.open(packed), 0.0, 0.0
    for tensor in found.tensors:
        was, now = (
            tiny_model.tensors()[tensor.name].astype(np.float64),
            file.array(tensor.name).astype(np.float64),
        )
        error, whole = float(((now - was) ** 2).sum()), float((was**2).sum())
        assert tensor.identical == (was.ndim == 1)
        assert tensor.types == ("f32", "f32" if was.ndim == 1 else "q8_0")
        assert tensor.rmse == pytest.approx(math.sqrt(error / whole), rel=1e-5)
        assert tensor.largest == pytest.approx(np.abs(now - was).max(), rel=1e-5)
        errors, wholes = errors + error, wholes + whole
    assert found.rmse == pytest.approx(math.sqrt(errors / wholes), rel=1e-5)
    assert not found.identical
    assert 0.001 < found.rmse < 0.01


def test_what_one_lacks_and_other_shapes(model: Path, tmp_path: Path) -> None:
    other = tiny_model.write(
        tmp_path / "b.gguf",
        {"llama.context_length": np.uint32(64), "general.name": "b", "tokenizer.chat_template": None},
        {
            "output_norm.weight": np.ones(8, np.float32),
            "blk.0.attn_q.weight": None,
            "more": np.ones(3, np.float32),
        },
    )
    found = tv.compare(model, other)
    assert (found.only_a, found.only_b) == (["blk.0.attn_q.weight"], ["more"])
    norm = next(t for t in found.tensors if t.name == "output_norm.weight")
    assert (norm.shapes, norm.rmse, norm.largest, norm.identical) == (((64,), (8,)), None, None, False)
    assert {key: values for key, *values in found.metadata} == {
        "llama.context_length": [128, 64],
        "general.name": [None, "b"],
        "tokenizer.chat_template": [tiny_model.TEMPLATE, None],
    }


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_told(model: Path, tmp_path: Path, value: float) -> None:
    norm = tiny_model.tensors()["output_norm.weight"].copy()
    norm[3] = value
    other = tiny_model.write(tmp_path / "b.gguf", weights={"output_norm.weight": norm})
    found = tv.compare(model, other)
    broken = next(t for t in found.tensors if t.name == "output_norm.weight")
    assert math.isnan(broken.rmse or 0)
    assert math.isnan(broken.largest or 0)
    with pytest.raises(NonFiniteError, match=r"b\.gguf makes infinity or NaN of token 0"):
        tv.compare(model, other, text="hello")
    assert '"rmse": "nan"' in ok("diff", model, other, "--json")


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_kl_and_agreement_are_pytorchs(
    model: Path, packed: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """Over windows of the context's length that overlap by one token, each token scored once."""
    monkeypatch.setattr(comparing, "LOGITS", 20 * len(tiny_model.TOKENS))
    found = tv.compare(model, packed, text=TEXT, device=device).text
    assert found is not None
    a, b = tv.load(model, device), tv.load(packed, device)
    ids = a.tokenizer.encode(TEXT, add_special=True)
    assert len(ids) > 2 * a.context
    assert found.window == a.context
    assert found.a.nll == pytest.approx(float(a.nll(ids, window=found.window).mean()), rel=1e-6)  # as of eval
    logs, targets = [], []
    for start in range(0, len(ids) - 1, a.context - 1):
        part = ids[start : start + a.context]
        rows = [torch.from_numpy(m.logits(part)).double()[:-1].log_softmax(-1) for m in (a, b)]
        logs.append(torch.stack(rows))
        targets += part[1:]
    log_a, log_b = torch.cat(logs, 1)
    assert len(targets) == len(ids) - 1 == found.a.tokens == found.b.tokens
    kl = torch.nn.functional.kl_div(log_b, log_a, reduction="batchmean", log_target=True)
    assert found.kl == pytest.approx(float(kl), rel=1e-6)
    assert found.kl > 1e-6
    assert found.same_top == float((log_a.argmax(-1) == log_b.argmax(-1)).double().mean())
    for got, log in ((found.a, log_a), (found.b, log_b)):
        nll = torch.nn.functional.nll_loss(log, torch.tensor(targets))
        assert got.nll == pytest.approx(float(nll), rel=1e-9)
        assert got.bits_per_byte == pytest.approx(
            float(nll) * len(targets) / math.log(2) / len(TEXT), rel=1e-9
        )


def test_vocabularies_that_differ_have_no_kl(model: Path, tmp_path: Path) -> None:
    tokens = [*tiny_model.TOKENS]
    tokens[5], tokens[6] = tokens[6], tokens[5]
    swapped = tiny_model.write(tmp_path / "swapped.gguf", {"tokenizer.ggml.tokens": tokens})
    uncut = tiny_model.write(tmp_path / "uncut.gguf", {"tokenizer.ggml.merges": ["h e"]})
    small = tiny_model.write(
        tmp_path / "small.gguf",
        {
            "tokenizer.ggml.tokens": [*tiny_model.TOKENS, "<|more|>"],
            "tokenizer.ggml.token_type": np.array(
                [*tiny_model.metadata()["tokenizer.ggml.token_type"], 3], np.int32
            ),
        },
        {"token_embd.weight": np.ones((len(tiny_model.TOKENS) + 1, 64), np.float32)},
    )
    alone = tv.load(model)
    for other, why in (
        (swapped, "differ, first in token 5"),
        (uncut, "cut the text differently"),
        (small, "have 261 and 262 tokens"),
    ):
        found = tv.compare(model, other, text="hello hell").text
        assert found is not None
        assert (found.kl, found.same_top) == (None, None)
        assert why in (found.refused or "")
        assert found.a.nll == pytest.approx(float(alone.nll(alone.tokenizer.encode("hello hell")).mean()))
        assert found.b.bits_per_byte > 0


def test_the_tokenizer_of_one_serves_both(model: Path, tmp_path: Path) -> None:
    bare = tiny_model.write(
        tmp_path / "bare.gguf", {k: None for k in tiny_model.metadata() if k.startswith("tokenizer.")}
    )
    for pair in ((model, bare), (bare, model)):
        found = tv.compare(*pair, text="hello").text
        assert found is not None
        assert found.kl == 0
    with pytest.raises((ModelError, ValueError)):
        tv.compare(bare, bare, text="hello")


def test_a_text_with_nothing_to_score(model: Path) -> None:
    with pytest.raises(InputError, match="nothing to score"):
        tv.compare(model, model, text="h")


def test_the_verb(model: Path, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text(TEXT)
    shown = ok("diff", model, packed, "--text", tmp_path / "t.txt")
    assert "5 of 20 tensors are identical; relative RMSE 0.00" in shown
    assert "KL(A || B) 0.0" in shown
    assert "f32 -> q8_0" in shown
    assert "windows of 128 tokens, as by trivet eval --window 128" in shown
    found = json.loads(ok("diff", model, model, "--json"))
    assert found["identical"] is True
    assert len(found["tensors"]) == 20
    assert len(ok("diff", model, model, "--tensors").splitlines()) == 23
