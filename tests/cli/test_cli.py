"""Every verb as a user runs it: text, --json, and one clear line for a mistake."""

import json
import subprocess
import sys

import pytest

VERBS = ("run", "chat", "inspect", "tokenize", "eval", "devices", "bench", "export")


def trivet(*args, stdin=""):
    return subprocess.run(
        [sys.executable, "-m", "trivet.cli.main", *map(str, args)],
        input=stdin,
        capture_output=True,
        text=True,
    )


def ok(*args, stdin=""):
    done = trivet(*args, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(verb):
    assert f"Example: trivet {verb}" in " ".join(ok(verb, "--help").split())


def test_the_list_of_verbs_is_not_cut_off():
    assert not any(line.endswith("...") for line in ok("--help").splitlines()[1:])


def test_version():
    assert ok("--version").startswith("trivet ")


@pytest.mark.model
class TestWithModel:
    def test_run(self, smollm2_path):
        question = "What is the capital of France?"
        assert "Paris" in ok("run", smollm2_path, question, "--temperature", 0, "--max-tokens", 16)
        found = json.loads(
            ok("run", smollm2_path, "-", "--temperature", 0, "--max-tokens", 4, "--json", stdin=question)
        )
        assert found["finish_reason"] == "length"
        assert found["usage"]["completion_tokens"] == len(found["ids"]) == 4

    def test_run_raw(self, smollm2_path):
        assert (
            ok(
                "run",
                smollm2_path,
                "The capital of France is",
                "--raw",
                "--temperature",
                0,
                "--max-tokens",
                1,
            ).strip()
            == "Paris"
        )

    def test_short_name(self):
        assert "Paris" in ok(
            "run", "smollm2-135m", "The capital of France is", "--raw", "--temperature", 0, "--max-tokens", 1
        )

    def test_chat(self, smollm2_path):
        lines = (
            "What is the capital of France?\n/system Be brief.\n/nonsense\n/reset\nHi\n/exit\nnot reached\n"
        )
        done = trivet("chat", smollm2_path, "--temperature", 0, "--max-tokens", 8, "--json", stdin=lines)
        assert done.returncode == 0, done.stderr
        replies = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(replies) == 2
        assert "France" in replies[0]["text"]
        assert "/nonsense" in done.stderr

    def test_tokenize(self, smollm2_path):
        found = json.loads(ok("tokenize", smollm2_path, "Hello 🦙", "--json"))
        assert "".join(found["pieces"]).startswith("Hello")
        lines = ok("tokenize", smollm2_path, "Hello world 🦙").splitlines()
        assert lines[1:3] == ["19556  'Hello'", "905    ' world'"]
        assert lines[-2:] == ["243    b'\\x99'", "5 tokens"]

    def test_eval(self, smollm2_path, tmp_path):
        text = tmp_path / "text.txt"
        text.write_text("The quick brown fox jumps over the lazy dog. " * 12, "utf-8")
        whole = json.loads(ok("eval", smollm2_path, "--text", text, "--json"))
        parts = json.loads(ok("eval", smollm2_path, "--text", text, "--window", 64, "--stride", 32, "--json"))
        assert whole["scored"] == parts["scored"] == whole["tokens"] - 1
        assert 0 < whole["mean_nll"] < parts["mean_nll"]

    def test_a_table_in_a_pipe_is_a_row_a_line(self, smollm2_path):
        lines = ok("inspect", smollm2_path).splitlines()
        assert any(line.startswith("tokenizer.chat_template  ") and line.endswith("...") for line in lines)
        assert not any("\x1b" in line or line.endswith(" ") for line in lines)

    def test_inspect(self, smollm2_path):
        found = json.loads(ok("inspect", smollm2_path, "--json"))
        assert found["metadata"]["general.architecture"] == "llama"
        assert found["parameters"] == 134515008
        assert len(found["tensors"]) == 272
        assert "134,515,008 parameters" in ok("inspect", smollm2_path, "--tensors")

    def test_bench(self, smollm2_path):
        found = json.loads(ok("bench", smollm2_path, "--prefill", 16, "--decode", 4, "--rounds", 1, "--json"))
        assert [r["name"] for r in found["results"]] == ["prefill 16", "decode 4"]
        assert all(r["median"] > 0 for r in found["results"])

    def test_export_keeps_the_model(self, smollm2_path, tmp_path):
        out = tmp_path / "out.gguf"
        ok("export", smollm2_path, "-o", out)
        same = ("--raw", "--temperature", 0, "--max-tokens", 1)
        assert ok("run", out, "The capital of France is", *same).strip() == "Paris"


def test_devices():
    names = [d["name"] for d in json.loads(ok("devices", "--json"))["devices"]]
    assert names == ["cpu", "cuda", "rocm", "tpu", "metal", "reference"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("run", "nowhere.gguf", "x"), "nowhere.gguf"),
        (("inspect", "EMPTY"), "EMPTY"),
        (("run", "TEXT", "x"), "GGUF"),
        (("eval", "TEXT", "--text", "TEXT"), "GGUF"),
        (("run", "FOLDER", "x"), "config.json"),
        (("run", "TEXT", "x", "--device", "abacus"), "abacus"),
        (("run",), "Missing argument"),
        (("run", "TEXT", "x", "--top-k", "many"), "--top-k"),
    ],
)
def test_mistakes_are_one_line_and_code_2(tmp_path, args, says):
    (tmp_path / "EMPTY").write_bytes(b"")
    (tmp_path / "TEXT").write_text("just text")
    (tmp_path / "FOLDER").mkdir()
    args = [str(tmp_path / a) if a in ("EMPTY", "TEXT", "FOLDER") else a for a in args]
    done = trivet(*args)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
