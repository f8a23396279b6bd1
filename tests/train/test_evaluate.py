"""Measuring on rows, held to values computed another way, and what it refuses."""

import json
import math

import numpy as np
import pytest

import tiny_model
import trivet as tv
import tuning
from trivet.errors import FileError, InputError
from trivet.train import evaluate
from trivet.train.data import Renderer, load


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tiny_model.write(tmp_path_factory.mktemp("model") / "m.gguf")
    return tv.load(path, threads=1, kv="f32")


def write(path, *rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def test_the_loss_is_that_of_each_row_alone(model, tmp_path):
    data = load(tuning.rows(tmp_path / "d.jsonl", 9), Renderer(model)).splits["train"]
    found = evaluate.loss(model, data)
    total = 0.0
    for i in range(len(data)):
        example = data[i]
        losses = np.asarray(model.nll(example.ids.tolist()), np.float64)
        total += float(losses[example.trained[1:]].sum())
    assert (found.targets, found.examples) == (data.targets, 9)
    assert found.mean == pytest.approx(total / data.targets, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(found.mean))


def test_the_likeliest_choice_by_loss_a_byte(model, tmp_path):
    texts = ["he", "hellhell", "é", "zz zz"]
    path = write(tmp_path / "c.jsonl", {"prompt": "hello ", "choices": texts, "answer": 0})
    before = model.encode_prompt("hello ")
    scores = []
    for text in texts:
        losses = model.nll(before + model.tokenizer.encode(text))
        scores.append(float(np.sum(losses[len(before) - 1 :])) / len(text.encode()))
    found = evaluate.choice(model, path)
    likeliest = texts[int(np.argmin(scores))]
    assert found.wrong == ([] if likeliest == "he" else [(1, "he", likeliest)])
    right = write(tmp_path / "r.jsonl", {"prompt": "hello ", "choices": texts, "answer": likeliest})
    assert evaluate.choice(model, right).share == 1.0


def test_exact_answers(model, tmp_path):
    made = model.generate(model.encode_prompt("hello"), max_tokens=4, temperature=0).text
    rows = {"prompt": "hello", "completion": f" {made} "}, {"prompt": "hello", "completion": "no"}
    found = evaluate.exact(model, write(tmp_path / "e.jsonl", *rows), max_tokens=4)
    assert (found.rows, found.right, found.share) == (2, 1, 0.5)
    assert found.wrong == [(2, "no", made.strip())]


def test_lines_end_where_json_says(model, tmp_path):
    """A line separator within a string ends no line; a byte order mark is no part of the first."""
    row = {"prompt": "hello", "choices": ["a\u2028b", "c\x85d"], "answer": 1}
    path = write(tmp_path / "c.jsonl", row, row)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert evaluate.choice(model, path).rows == 2


BAD_CHOICES = {
    "line 1: invalid JSON": b"nope",
    "line 2: invalid JSON": b'\n{"prompt": ',
    "line 1: invalid JSON: maximum recursion": b"[" * 100_000,
    "UTF-8": b"\xff",
    "has no rows": b"\n\n",
    '"prompt" is empty': b'{"prompt": "", "choices": ["a", "b"], "answer": 0}',
    '"answer" is 2': b'{"prompt": "a", "choices": ["a", "b"], "answer": 2}',
    '"answer" is True': b'{"prompt": "a", "choices": ["a", "b"], "answer": true}',
    '"answer" is None': b'{"prompt": "a", "choices": ["a", "b"]}',
    '"choices", two texts or more': b'{"prompt": "a", "choices": ["a"], "answer": 0}',
}


@pytest.mark.parametrize("said", BAD_CHOICES)
def test_bad_choices(model, tmp_path, said):
    (tmp_path / "c.jsonl").write_bytes(BAD_CHOICES[said])
    with pytest.raises(FileError) as caught:
        evaluate.choice(model, tmp_path / "c.jsonl")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_questions(model, tmp_path):
    path = tmp_path / "e.jsonl"
    asked = {"role": "user", "content": "hello"}
    good = {"prompt": "a", "completion": "b"}
    for rows, said in (
        ([], "has no rows"),
        ([{"text": "hello"}], "line 1: a row of text asks nothing"),
        ([{"messages": [asked]}], "line 1: the last message is not the assistant's"),
        ([good, {"prompt": "x" * 300, "completion": "b"}], "line 2: a prompt of 300 tokens leaves no room"),
    ):
        with pytest.raises(FileError, match=said):
            evaluate.exact(model, write(path, *rows), advance=lambda _: pytest.fail("time was spent"))
    long = write(path, {"prompt": "x" * 300, "choices": ["a", "b"], "answer": 0})
    with pytest.raises(InputError, match="301 tokens; the context is 128"):
        evaluate.choice(model, long)
    with pytest.raises(FileError, match=r"\[eval\] .*: Is a directory"):
        evaluate.choice(model, tmp_path)
