"""`trivet eval --data` as a user runs it."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import tiny_model
import tuning


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    made = tmp_path_factory.mktemp("files")
    tiny_model.write(made / "m.gguf")
    tuning.rows(made / "d.jsonl", 20)
    tuning.rows(made / "h.jsonl", 5, 100)
    norm = np.full(tiny_model.WIDTH, np.nan, np.float32)
    tiny_model.write(made / "nan.gguf", weights={"output_norm.weight": norm})
    (made / "empty.jsonl").write_text("")
    (made / "bad.jsonl").write_text("nope\n")
    (made / "c.jsonl").write_text('{"prompt": "a", "choices": ["b", "c"], "answer": 0}\n')
    return made


def trivet(files, *args, model="m.gguf"):
    command = [sys.executable, "-m", "trivet.cli.main", "eval", str(files / model), *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_named_splits_as_json(files):
    done = trivet(files, "--data", f"{files}/d.jsonl", "--data", f"held={files}/h.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    splits = json.loads(line)["splits"]
    assert {name: s["examples"] for name, s in splits.items()} == {"d": 20, "held": 5}
    assert all(s["mean_nll"] > 0 and s["perplexity"] > 1 for s in splits.values())


def test_a_table(files):
    done = trivet(files, "--data", f"{files}/c.jsonl", "--task", "choice")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == ["data", "rows", "right", "share"]
    assert done.stdout.splitlines()[1].split()[:2] == ["c", "1"]


def test_numbers_have_five_and_four_places(files):
    done = trivet(files, "--data", f"{files}/h.jsonl")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"h +\d+ +\d+\.\d{5} +\d+\.\d{4}", done.stdout.splitlines()[1])


def test_a_text_beyond_the_context_is_scored_in_windows(files):
    (files / "long.txt").write_text("hello, he said; " * 40)
    done = trivet(files, "--text", files / "long.txt", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["window"] == tiny_model.CONTEXT < found["tokens"] == found["scored"] + 1
    assert f"scored in windows of {tiny_model.CONTEXT}" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "wanted --text FILE, or --data FILE"),
        (("--data", "d.jsonl", "--task", "x"), "--task is 'x'; known: loss, exact, choice"),
        (("--data", "{}/d.jsonl", "--data", "{}/d.jsonl"), "two of --data are called 'd'"),
        (("--data", "{}/none.jsonl"), "none.jsonl: No such file"),
        (("--data", "{}/empty.jsonl"), "0 rows, and no example for test"),
        (("--data", "{}/bad.jsonl"), "line 1: invalid JSON"),
        (("--data", "{}/bad.jsonl", "--task", "choice"), "line 1: invalid JSON"),
        (("--data", "{}/empty.jsonl", "--task", "exact", "--json"), "has no rows"),
        (("--data", "{}/d.jsonl", "--kv", "q8_0"), "--kv is q8_0, which --task loss has no use for"),
        (("--data", "{}/c.jsonl", "--task", "choice", "--kv", "q8_0"), "which --task choice has no use for"),
        (("--data", "{}/d.jsonl", "--window", "8"), "--window is 8, which --task loss has no use for"),
        (
            ("--data", "{}/d.jsonl", "--max-tokens", "8"),
            "--max-tokens is 8, which --task loss has no use for",
        ),
        (("--text", "{}/d.jsonl", "--task", "exact"), "--task is exact, which --text has no use for"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(files, args, said):
    done = trivet(files, *(a.format(files) for a in args))
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("data", "task"), [("d.jsonl", "loss"), ("c.jsonl", "choice"), ("d.jsonl", "exact")])
def test_a_broken_model_has_no_result(files, data, task):
    done = trivet(files, "--data", f"{files}/{data}", "--task", task, "--json", model="nan.gguf")
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert ("the logit of token 0 is nan" if task == "exact" else "a loss is infinity or NaN") in done.stderr
    assert done.stderr.count("\n") == 1
