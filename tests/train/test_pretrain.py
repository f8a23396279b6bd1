"""Models from scratch: a corpus to a file that trivet and llama.cpp run, the same bytes through a resume."""

from __future__ import annotations

import json

import numpy as np
import pytest

import trivet as tv
from trivet.errors import FileError, InputError, TrivetError
from trivet.train import bundle
from trivet.train.config import Pretrain, make
from trivet.train.events import Stepped
from trivet.train.pretrain import Session

WORDS = ["red", "green", "blue", "one", "two", "three", "sees", "finds", "the", "a"]
TINY = {"layers": 2, "width": 32, "heads": 2, "context": 32, "rows": 8, "lr": 1e-2, "warmup": 5}


def text(seed, sentences):
    """Sentences of which each word says the next, but for the first."""
    rng = np.random.default_rng(seed)
    begins = rng.integers(0, len(WORDS), sentences)
    return "".join(" ".join(WORDS[(b + i) % len(WORDS)] for i in range(6)) + ".\n" for b in begins)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(text(1, 1500))
    return path


@pytest.fixture
def held(tmp_path):
    path = tmp_path / "held.txt"
    path.write_text(text(9, 200))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"style": "gpt2", "tokenizer": "byte"},
        {"style": "llama", "tokenizer": "byte", "kv_heads": 1},
        {"style": "llama", "tokenizer": "bpe", "vocab": 300, "compute": "bf16"},
        {"style": "gpt2", "tokenizer": "bpe", "vocab": 300, "checkpointing": "block", "micro": 1},
    ],
    ids=["gpt2-byte", "llama-byte", "llama-bpe", "gpt2-bpe"],
)
def test_it_learns_and_what_it_writes_runs(changes, corpus, held, tmp_path):
    run = tv.pretrain(corpus, out=tmp_path / "run", validation=str(held), steps=400, **TINY, **changes)
    assert run.finished
    assert run.losses[0][1] == pytest.approx(np.log(300 if "vocab" in changes else 257), rel=0.05)
    assert run.losses[-1][1] < 0.3 * run.losses[0][1]
    assert abs(run.validation[-1][1] - run.losses[-1][1]) < 0.25
    model = tv.load(run.result, kv="f32")
    assert model.checkpoint.architecture == changes["style"]
    assert model.generate("blue one two three", temperature=0, max_tokens=8).text.startswith(" sees")
    told = bundle.verify(run.result)
    assert told.stage["recipe"] == "pretrain"
    assert told.parent is None
    ids = model.tokenizer.encode("green blue one two three sees finds")[:32]
    llama_cpp = pytest.importorskip("llama_cpp")
    theirs = llama_cpp.Llama(
        str(run.result), n_ctx=32, logits_all=True, verbose=False, type_k=0, type_v=0, n_threads=1
    )
    assert theirs.tokenize(b"green blue one two three sees finds", add_bos=False)[:32] == ids
    theirs.eval(ids)
    want = model.logits(ids)
    assert np.abs(np.array(theirs.scores[: len(ids)]) - want).max() < 0.02 * np.abs(want).max()


def stopping(at):
    def watch(event):
        if isinstance(event, Stepped) and event.report.step == at:
            raise RuntimeError("stopped")

    return watch


@pytest.mark.parametrize("changes", [{"style": "gpt2"}, {"tokenizer": "bpe", "vocab": 280, "tokens": 96}])
def test_a_run_that_resumes_writes_the_same_bytes(changes, corpus, held, tmp_path):
    settings = TINY | changes | {"steps": 9, "save": 4, "validation": str(held)}
    whole = tv.pretrain(corpus, out=tmp_path / "a" / "run", **settings)
    with pytest.raises(RuntimeError, match="stopped"):
        tv.pretrain(corpus, out=tmp_path / "b" / "run", watch=stopping(6), **settings)
    rest = tv.resume(tmp_path / "b" / "run")
    assert rest.finished
    assert [step for step, _ in rest.losses] == [5, 6, 7, 8, 9]
    assert rest.losses == whole.losses[4:]
    assert rest.result.read_bytes() == whole.result.read_bytes()


def test_another_corpus_is_not_gone_on_with(corpus, tmp_path):
    with pytest.raises(RuntimeError, match="stopped"):
        tv.pretrain(corpus, out=tmp_path / "run", watch=stopping(3), steps=5, save=2, **TINY)
    corpus.write_text(text(2, 1500))
    with pytest.raises(FileError, match="changed"):
        tv.resume(tmp_path / "run")


def test_documents_end_and_are_apart(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in text(3, 40).splitlines()))
    session = Session(make(Pretrain, {"data": str(path), "out": str(tmp_path / "run"), **TINY}), "cpu", 1)
    end = session.source.tokenizer.eos_id
    assert sum(session.train[i].ids[-1] == end for i in range(len(session.train))) == 40
    assert (session.train.ids == end).sum() == 40
    assert session.train.targets == session.train.positions


def test_a_plan_writes_nothing_and_tells_of_a_small_vocabulary(corpus, tmp_path):
    out = tmp_path / "run"
    given = {"data": str(corpus), "out": str(out), "tokenizer": "bpe", "vocab": 5000, **TINY}
    session = Session(make(Pretrain, given), "cpu", 1)
    plan = session.planned(measure=True)
    assert not out.exists()
    made = session.source.tokenizer.n_vocab
    assert made < 5000
    assert any(f"{made} tokens, fewer than 5000" in note for note in session.notes)
    assert plan.method == "pretrain"
    assert plan.parameters == plan.of == sum(e.load().size for e in session.checkpoint.tensors.values())
    assert plan.memory > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"style": "bert"}, {"tokenizer": "word"}, {"vocab": 300}, {"tokenizer": "bpe", "vocab": 10},
        {"width": 33}, {"heads": 0}, {"context": 4096}, {"layers": -1}, {"lr": float("nan")},
        {"holdout": 1.0}, {"method": "lora"}, {"steps": "9"}, {"data": "nothing.txt"}, {"data": ""},
        {"rank": 8},
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_any_time_is_spent(changes, corpus, tmp_path):
    with pytest.raises(TrivetError) as caught:
        tv.pretrain(**({"data": corpus, "out": tmp_path / "run"} | TINY | changes))
    assert isinstance(caught.value, InputError | FileError)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("row", [{"messages": [{"role": "user", "content": "x"}]}, {"txt": "x"}])
def test_rows_that_are_no_text(row, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(FileError, match="line 1"):
        tv.pretrain(path, out=tmp_path / "run", **TINY)
