"""Every verb as a user runs it: text, --json, and one clear line for a mistake."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import tiny_model
from command import ok, trivet

VERBS = (
    "run",
    "chat",
    "pull",
    "list",
    "rm",
    "inspect",
    "diff",
    "tokenize",
    "eval",
    "devices",
    "bench",
    "export",
)


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
        assert all(r["median"] > 0 and r["bound"] > 0 for r in found["results"])
        assert found["machine"]["read_bytes"] > 0

    def test_profile(self, smollm2_path):
        sizes = ("--prefill", 16, "--decode", 4)
        prefill, decode = json.loads(ok("bench", smollm2_path, *sizes, "--profile", "--json"))["profiles"]
        calls = {(o["op"], o["made"]): o["calls"] for o in decode["ops"]}
        assert calls["paged_attention", "f32[1, 9, 64]"] == 4 * 30
        assert calls["linear", "f32[1, 49152]"] == 4
        assert 0 < sum(o["seconds"] for o in prefill["ops"]) <= prefill["seconds"]
        assert "linear f32[16, 1536]" in ok("bench", smollm2_path, *sizes, "--profile")
        refused = trivet("bench", smollm2_path, "--profile", "--device", "reference")
        assert refused.returncode == 2
        assert "--profile reads the trace of the core" in refused.stderr

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


def shell(line):
    """A command line by the shell, for its redirections; `$T` is trivet."""
    script = line.replace("$T", f"{sys.executable} -m trivet.cli.main")
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True)


@pytest.mark.parametrize(
    "line", ["$T --help > /dev/full", "$T devices > /dev/full", "$T devices --json > /dev/full"]
)
def test_a_full_disk_is_one_line(line):
    done = shell(line)
    assert (done.returncode, done.stderr) == (1, "trivet: [output] No space left on device\n")


def test_closed_streams(tmp_path):
    model = tiny_model.write(tmp_path / "m.gguf")
    assert shell(f"$T run {model} - --raw <&-").stderr == "trivet: [generate] the prompt is empty\n"
    assert shell(f"$T chat {model} <&-").returncode == 0
    assert shell(f"$T run {model} hi --max-tokens 2 2>&-").returncode == 0
    assert shell(f"$T run {model} hi --max-tokens 2 >&-").returncode == 0


def test_input_that_is_not_utf8(tmp_path):
    model = tiny_model.write(tmp_path / "m.gguf")
    for verb in ("run", "tokenize"):
        done = shell(f"printf 'a\\377' | $T {verb} {model} -")
        assert (done.returncode, done.stderr) == (2, "trivet: [stdin] is not UTF-8: byte 1 is 0xff\n")
    done = shell(f"printf 'a\\377\\nhi\\n' | $T chat {model} --max-tokens 2 --json")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1


def test_output_that_cannot_show_a_character(tmp_path):
    model = tiny_model.write(tmp_path / "m.gguf", {"general.name": "café"})
    done = shell(f"PYTHONIOENCODING=ascii $T inspect {model}")
    assert done.returncode == 0
    assert "\\xe9" in done.stdout


@pytest.mark.parametrize("out", ["", "/", "/nowhere/x.gguf", "pipe"])
def test_export_refuses_what_is_no_file(out, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    target = tmp_path / out if out else out
    done = trivet("export", tiny_model.write(tmp_path / "m.gguf"), "-o", target)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert (tmp_path / "pipe").is_fifo()  # it is not renamed over


def test_inspect_check_fails_where_there_are_problems(tmp_path):
    norm = np.full(tiny_model.WIDTH, np.nan, np.float32)
    bad = tiny_model.write(tmp_path / "bad.gguf", weights={"output_norm.weight": norm})
    assert trivet("inspect", bad, "--check").returncode == 1
    done = trivet("inspect", bad, "--check", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["problems"]
    assert trivet("inspect", bad).returncode == 0
    assert trivet("inspect", tiny_model.write(tmp_path / "m.gguf"), "--check").returncode == 0


def test_export_writes_through_a_link(tmp_path):
    (tmp_path / "link.gguf").symlink_to(tmp_path / "real.gguf")
    ok("export", tiny_model.write(tmp_path / "m.gguf"), "-o", tmp_path / "link.gguf")
    assert (tmp_path / "link.gguf").is_symlink()
    assert (tmp_path / "real.gguf").is_file()


def test_messages_are_one_line_whatever_the_file_says(tmp_path):
    model = tiny_model.write(tmp_path / "m.gguf", {"general.architecture": "a\nb\x1b[2J"})
    done = trivet("run", model, "x")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr


ENDS = """
import atexit, os, time
from trivet.cli import main
atexit.register(os.abort)  # as a library dies whose threads go on while the interpreter ends
def app(prog_name):
    print(".", end="", flush=True)
    time.sleep(60)
main.app = app
main.main()
"""
DROPPED = """
import gc, signal, time
from trivet.cli import main
def callback(phase, info):
    gc.callbacks.clear()
    signal.raise_signal(signal.SIGINT)
def app(prog_name):
    gc.callbacks.append(callback)
    gc.collect()
    print(".", end="", flush=True)
    time.sleep(60)
main.app = app
main.main()
"""


@pytest.mark.parametrize(("code", "send"), [(ENDS, True), (DROPPED, False)])
def test_ctrl_c_ends_whatever_libraries_do(code, send):
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True) as process:
        process.stdout.read(1)
        if send:
            process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert (process.returncode, told) == (130, "")


@pytest.mark.parametrize("after", [0.3, 0.6, 1.2])
def test_ctrl_c_ends_without_a_word(after, tmp_path):
    model = tiny_model.write(tmp_path / "m.gguf")
    code = (
        "import os, sys, runpy; os.write(1, b'.'); runpy.run_module('trivet.cli.main', run_name='__main__')"
    )
    command = [sys.executable, "-c", code, "chat", str(model)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        process.stdout.read(1)
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate()
    assert process.returncode in (0, 130, -signal.SIGINT)
    assert "Traceback" not in told


@pytest.mark.parametrize("window", [1])
def test_eval_refuses_a_window_that_scores_nothing(window, tmp_path):
    model, text = tiny_model.write(tmp_path / "m.gguf"), tmp_path / "t.txt"
    text.write_text("hello hello")
    done = trivet("eval", model, "--text", text, "--window", window)
    assert done.returncode == 2
    assert "window is 1" in done.stderr


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("TRIVET_THREADS=0", "TRIVET_THREADS=0"),
        ("TRIVET_THREADS=abc", "TRIVET_THREADS=abc"),
        ("TRIVET_ISA=nonsense", "TRIVET_ISA=nonsense"),
        ("TRIVET_LIBRARY=/nowhere.so", "/nowhere.so"),
        ("TRIVET_TRACE=/nowhere/trace.json", "TRIVET_TRACE=/nowhere/trace.json"),
    ],
)
def test_wrong_environments_are_one_line(setting, word, tmp_path):
    model = tiny_model.write(tmp_path / "m.gguf")
    done = shell(f"{setting} $T run {model} hi --max-tokens 2")
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1
    assert word in done.stderr


def test_environments_that_say_nothing(tmp_path):
    model = tiny_model.write(tmp_path / "m.gguf")
    line = f"TRIVET_THREADS= TRIVET_ISA= TRIVET_TRACE= $T run {model} hi --max-tokens 2"
    assert shell(line).returncode == 0
    assert shell(f"unset HOME; LANG=C LC_ALL=C $T chat {model} < /dev/null").returncode == 0
