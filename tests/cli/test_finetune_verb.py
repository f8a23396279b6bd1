"""`trivet finetune` as a user runs it: what stands on stdout and stderr, exit codes, Ctrl-C, kill -9, full
disks, terminals."""

import fcntl
import json
import os
import pty
import random
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

import tiny_model
import tuning
from trivet.train import checkpoint, log

COMMAND = [sys.executable, "-m", "trivet.cli.main", "finetune"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    made = tmp_path_factory.mktemp("files")
    tiny_model.write(made / "m.gguf")
    tuning.rows(made / "d.jsonl", 20)
    return made


def trivet(*args, cwd=None, prefix=(), env=None):
    command = [*prefix, *COMMAND, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **(env or {})})


def begun(*args):
    """A run in a process of its own."""
    return subprocess.Popen(
        [*COMMAND, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(said, seconds=60.0):
    end = time.monotonic() + seconds
    while not said():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def test_a_run(files, tmp_path):
    out = tmp_path / "my run"
    done = trivet(files / "m.gguf", files / "d.jsonl", "--out", out, "--rows", 10)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("2 steps in ")
    assert done.stdout.splitlines()[-1] == f"next: trivet chat {files / 'm.gguf'} --adapter '{out}/adapter'"
    assert done.stderr.startswith("lora: 29,696 of 78,464 parameters (37.85 %), 20 examples, 792 tokens")
    assert "step 1/2  loss " in done.stderr
    assert "\x1b" not in done.stderr


def test_json_is_one_object_and_nothing_else(files, tmp_path):
    done = trivet(files / "m.gguf", files / "d.jsonl", "--out", tmp_path / "r", "--rows", 10, "--json")
    (line,) = done.stdout.splitlines()
    assert done.stderr == ""
    told = json.loads(line)
    assert (told["finished"], told["steps"], told["validation"]) == (True, 2, None)
    assert told["result"] == str(tmp_path / "r" / "adapter")


def test_a_curve_that_is_not_there_is_not_told(files, tmp_path):
    out = tmp_path / "r"
    trivet(files / "m.gguf", files / "d.jsonl", "--out", out, "--rows", 10)
    (out / "log.jsonl").unlink()
    done = trivet("--resume", out)
    assert done.returncode == 0, done.stderr
    assert f"wrote {out}/adapter\n" in done.stdout


def test_a_dry_run_writes_nothing(files, tmp_path):
    done = trivet(files / "m.gguf", files / "d.jsonl", "--out", tmp_path / "r", "--dry-run", "--json")
    told = json.loads(done.stdout)
    assert (told["parameters"], told["steps"], told["examples"]) == (29696, 3, 20)
    assert told["memory"] > 30e6
    assert told["seconds"] > 0
    assert not list(tmp_path.iterdir())


def test_flags_win_over_the_configuration(files, tmp_path):
    config = tmp_path / "t.toml"
    lines = [f'model = "{files}/m.gguf"', f'data = "{files}/d.jsonl"', 'targets = ["attn_q"]', "lr = 1e-3"]
    config.write_text("\n".join([*lines, "rows = 10", "epochs = 3"]))
    done = trivet("--config", config, "--epochs", 1, "--target", "q_proj", "--target", "v_proj", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    saved = checkpoint.load(checkpoint.latest(tmp_path / "d")).facts["config"]
    assert (saved["epochs"], saved["targets"], saved["lr"]) == (1, ["q_proj", "v_proj"], 1e-3)


WRONG = {
    "[config] data is missing": (),
    "wanted FIELD=COLUMN": ("m.gguf", "d.jsonl", "--column", "x"),
    "the learning rate is 0.0": ("m.gguf", "d.jsonl", "--lr", "0"),
    "nf4_block is 32, which lora has no use for": ("m.gguf", "d.jsonl", "--nf4-block", "32"),
    "[data] /dev/zero is not a regular file": ("m.gguf", "/dev/zero"),
    "[track] no tracker 'x'": ("m.gguf", "d.jsonl", "--track", "x", "--dry-run"),
    "--resume goes on with the run's own settings": ("--resume", "r", "--lr", "1"),
    "r has no checkpoint": ("--resume", "r"),
    "no such file.toml: No such file": ("--config", "no such file.toml"),
    "no file or folder 'x.gguf'": ("x.gguf", "d.jsonl"),
    "magic: is b'{": ("d.jsonl", "d.jsonl"),
    "m.gguf line 1 is not UTF-8": ("m.gguf", "m.gguf"),
    "Invalid value for '--lr'": ("m.gguf", "d.jsonl", "--lr", "x"),
    "'data:2': the native backend computes on one": (
        "m.gguf",
        "d.jsonl",
        "--device",
        "cpu",
        "--mesh",
        "data:2",
    ),
    "m.gguf is a file": ("m.gguf", "d.jsonl", "--out", "m.gguf"),
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_input_is_one_line_and_code_2(files, said):
    before = sorted(p.name for p in files.iterdir())
    done = trivet(*WRONG[said], cwd=files)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.startswith("trivet: ") == (done.stderr.count("\n") == 1)
    assert "Traceback" not in done.stderr
    assert sorted(p.name for p in files.iterdir()) == before


# --- stopped ---

LONG = ("--rows", 1, "--epochs", 300, "--lr", 1e-3)


def test_ctrl_c_saves_and_says_how_to_go_on(files, tmp_path):
    out = tmp_path / "my run"
    run = begun(files / "m.gguf", files / "d.jsonl", "--out", out, *LONG)
    wait_for(lambda: len(log.read(out)) > 20)
    run.send_signal(signal.SIGINT)
    said, _ = run.communicate(timeout=60)
    step = checkpoint.load(checkpoint.latest(out)).step
    assert run.returncode == 130
    assert said == f"stopped after step {step}, and saved; go on with: trivet finetune --resume '{out}'\n"
    assert 15 < step < 6000


def test_ctrl_c_twice_stops_at_once(files, tmp_path):
    out = tmp_path / "run"
    run = begun(files / "m.gguf", files / "d.jsonl", "--out", out, *LONG, "--save", 1)
    wait_for(lambda: len(log.read(out)) > 20)
    for _ in range(200):  # two of them are certain to meet one step
        run.send_signal(signal.SIGINT)
    said, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "Traceback" not in err
    assert said == "" or said.startswith("stopped after step ")
    assert checkpoint.load(checkpoint.latest(out)).step > 0


@pytest.mark.parametrize(
    "way", [("--rows", 2), ("--rows", 0, "--micro", 3, "--tokens", 80, "--dropout", 0.2)]
)
def test_kill_9_at_any_moment_changes_no_bit(files, tmp_path, way):
    rng = random.Random(str(way))
    settings = [
        *way,
        "--steps",
        60,
        "--save",
        3,
        "--holdout",
        0.3,
        "--evaluate",
        4,
        "--lr",
        1e-2,
        "--keep",
        1,
    ]
    given = (files / "m.gguf", files / "d.jsonl", *settings)
    whole, out = tmp_path / "one" / "run", tmp_path / "two" / "run"
    assert trivet(*given, "--out", whole).returncode == 0
    args, kills = (*given, "--out", out), 0
    while True:
        run = begun(*args)
        known = len(log.read(out))
        wait_for(lambda n=known, run=run: len(log.read(out)) > n + 15 or run.poll() is not None)
        try:
            run.wait(rng.random() * 0.03)
        except subprocess.TimeoutExpired:
            run.kill()
        _, err = run.communicate()
        if run.returncode == 0:
            break
        assert run.returncode == -signal.SIGKILL, err
        kills += 1
        if checkpoint.latest(out) is not None:
            args = ("--resume", out)
    assert kills >= 2
    tuning.same_end(whole, out)
    told = [[x for x in log.read(f) if x["event"] in ("stepped", "evaluated")] for f in (whole, out)]
    for lines in told:
        for line in lines:
            line.pop("time")
            line.pop("seconds", None)
    assert told[0] == told[1]


# --- disks ---


def test_a_full_disk_is_told_and_the_run_goes_on_after(files, tmp_path):
    mount = f'mount -t tmpfs -o size=1600k tmpfs "{tmp_path}"'
    prefix = ("unshare", "--map-root-user", "--mount", "sh", "-c", f'{mount} && "$@"; code=$?; ' + (
        f'cp -r "{tmp_path}/run" "$SAVED"; exit $code'), "sh")  # fmt: skip
    if (
        not shutil.which("unshare")
        or subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True).returncode
    ):
        pytest.skip("no unprivileged mounts here (unshare --map-root-user --mount)")
    saved = tmp_path.parent / (tmp_path.name + "-saved")
    args = (files / "m.gguf", files / "d.jsonl", "--out", tmp_path / "run", "--rows", 2, "--save", 2)
    done = trivet(*args, "--keep", 9, prefix=prefix, env={"SAVED": str(saved)})
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("trivet: [")
    last = checkpoint.load(checkpoint.latest(saved)).step
    assert last >= 2
    assert trivet("--resume", saved).returncode == 0


# --- terminals ---


def on_a_terminal(args, columns=80, **env):
    """(exit code, stdout, what the terminal on stderr got)"""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    run = subprocess.Popen(
        [*COMMAND, *map(str, args)], stdout=subprocess.PIPE, stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "", **env},
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:
            break
        if not more:
            break
        seen += more
    os.close(ours)
    out, _ = run.communicate()
    return run.returncode, out.decode(), seen.decode()


@pytest.mark.parametrize("columns", [80, 40])
def test_a_terminal_has_a_live_view(files, tmp_path, columns):
    args = (files / "m.gguf", files / "d.jsonl", "--out", tmp_path / "r", "--rows", 1, "--holdout", 0.2)
    code, out, seen = on_a_terminal(args, columns)
    assert code == 0
    assert out.splitlines()[-1].startswith("next: trivet chat ")
    for part in ("loss", "tokens/s", "validation", "time left"):
        assert part in seen
    assert seen.endswith(("\x1b[?25h", "\x1b[?25h\r\n", "\r\n")), "the cursor is shown again"
    assert "\x1b[?25h" in seen


def test_no_color(files, tmp_path):
    args = (files / "m.gguf", files / "d.jsonl", "--out", tmp_path / "r", "--rows", 10)
    code, _, seen = on_a_terminal(args, NO_COLOR="1")
    assert code == 0
    assert "\x1b[36m" not in seen
    assert "\x1b[3" not in seen.replace("\x1b[3A", "")
