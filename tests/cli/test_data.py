"""`trivet data check` as a user runs it."""

import json
import os
import pty
import subprocess
import sys

import pytest

import tiny_model

GOOD = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "he\\u001b[2J"}]}\n'
BAD = "nope\n" + '{"messages": []}\n' + '{"messages": [{"role": "king", "content": ""}]}\n'


@pytest.fixture
def model(tmp_path):
    return tiny_model.write(tmp_path / "m.gguf")


def trivet(*args):
    command = [sys.executable, "-m", "trivet.cli.main", "data", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True)


def write(path, text):
    path.write_text(text, "utf-8")
    return path


def test_help():
    shown = trivet("check", "--help").stdout
    assert "Example: trivet data check train.jsonl --model smollm2-135m" in " ".join(shown.split())
    assert not any(line.endswith("...") for line in trivet("--help").stdout.splitlines()[1:])


def test_a_good_file(model, tmp_path):
    done = trivet("check", write(tmp_path / "good.jsonl", GOOD), "--model", model)
    assert done.returncode == 0, done.stderr
    assert "<|start|>assistant\n⟦he\\x1b[2J<|end|>⟧" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_what_is_wrong_is_told_with_lines_and_code_2(model, tmp_path):
    one = write(tmp_path / "one.jsonl", GOOD + BAD + GOOD)
    two = write(tmp_path / "two.jsonl", GOOD.replace("hi", "HI"))
    done = trivet("check", one, two, "--model", model, "--show", 0)
    assert done.returncode == 2
    for told in (
        "3 rows refused",
        "line 2: invalid JSON",
        "line 3: the conversation is empty",
        "line 4: message 0 has the role 'king'",
        "1 row equal to an earlier one",
        "the same rows: 5 = 1",
        "but for case, space and punctuation: 1 = 1",
    ):
        assert told in done.stdout
    assert "⟦" not in done.stdout


def test_json(model, tmp_path):
    done = trivet("check", write(tmp_path / "a.jsonl", GOOD + BAD), "-m", model, "--json")
    assert done.returncode == 2
    (file,) = json.loads(done.stdout)["files"]
    assert [r["line"] for r in file["refusals"]] == [2, 3, 4]
    assert file["tokens"]["trained"] == 6  # he, \x1b, [, 2, J, <|end|>


def test_columns_and_length(model, tmp_path):
    path = write(tmp_path / "qa.jsonl", '{"question": "hi", "answer": "hello"}\n')
    columns = ("--column", "prompt=question", "--column", "completion=answer")
    done = trivet("check", path, "-m", model, *columns, "--length", 3, "--json")
    (file,) = json.loads(done.stdout)["files"]
    assert (file["format"], file["cut"], file["cut_tokens"]) == ("completion", 1, 1)


def test_a_terminal_shows_colours(model, tmp_path):
    path = write(tmp_path / "good.jsonl", GOOD)
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "trivet.cli.main", "data", "check", str(path), "-m", str(model)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(command, stdout=follower, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not part:
                break
            shown += part
    os.close(leader)
    assert process.returncode == 0
    assert b"\x1b[1;32mhe\\x1b[2J<|end|>" in shown


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("gone.jsonl",), "gone.jsonl: No such file"),
        (("GOOD", "--format", "csv"), "format 'csv'"),
        (("GOOD", "--column", "prompt"), "--column 'prompt'"),
        (("GOOD", "--column", "question=prompt"), "columns name 'question'"),
        (("GOOD", "--train-on", "user"), "train_on 'user'"),
        (("GOOD", "--length", "100000"), "length is 100000"),
    ],
)
def test_mistakes_are_one_line_and_code_2(args, says, model, tmp_path):
    good = write(tmp_path / "good.jsonl", GOOD)
    done = trivet("check", *(good if a == "GOOD" else a for a in args), "-m", model)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert says in done.stderr
    assert done.stdout == ""
