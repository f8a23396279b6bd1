"""Checkpoints through kill -9, full disks, read-only folders and changed bytes: nothing is lost."""

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trivet.errors import FileError, UnsupportedError
from trivet.train import checkpoint

# What children share: step n saves arrays that say n, so that a mixture of two checkpoints is seen.
COMMON = """
import os, resource, signal, sys
import numpy as np
from trivet.errors import FileError
from trivet.train import checkpoint

def save(folder, step, floats=50_000):
    arrays = {name: np.full(floats, step, np.float32) for name in ("w", "m.w", "v.w")}
    return checkpoint.save(folder, step, arrays, {"step": step})

def load(path):
    saved = checkpoint.load(path)
    assert saved.facts == {"step": saved.step}, saved.facts
    assert all((a == saved.step).all() for a in saved.arrays.values())
    return saved.step
"""


def child(code: str, *arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, "-c", COMMON + code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


FOR_EVER = """
folder = sys.argv[1]
last = checkpoint.latest(folder)
step = load(last) if last else 0
while True:
    step += 1
    save(folder, step)
    print(step, flush=True)
    checkpoint.prune(folder, 2, step - step % 7 or None)
"""


def test_kill_9_through_fifty_saves(tmp_path: Path) -> None:
    rng = random.Random(0)
    said = 0
    while said < 50:
        process = child(FOR_EVER, tmp_path)
        assert process.stdout
        for _ in range(rng.randint(1, 4)):
            said = int(process.stdout.readline())
        try:
            process.wait(rng.random() * 0.02)  # somewhere in the next saves
        except subprocess.TimeoutExpired:
            process.kill()
        out, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, err
        said = max([said, *map(int, out.split())])
        there = checkpoint.checkpoints(tmp_path)
        checkpoint.best(tmp_path)  # the record is whole too
        assert checkpoint.load(there[-1]).step >= said, "a checkpoint that was reported is gone"
        for path in there:
            saved = checkpoint.load(path)
            assert saved.facts == {"step": saved.step}
            assert all((array == saved.step).all() for array in saved.arrays.values())
        assert len(there) <= 5  # two, the best, and what a killed pruning had before it
        assert not list(tmp_path.glob(".step*")), "what the killed process left is still there"


# A process that is killed before its n-th change of the file system, for every n until it comes through.
AT_EVERY_POINT = """
folder, scenario = sys.argv[1:]
CHANGES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "fcntl.flock"}

def strike(n):
    left = [n]
    def hook(event, arguments):
        here = event != "open" or folder in str(arguments[0])
        if event in CHANGES and here:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

def work():
    save(folder, 5 if scenario == "replace" else 6, 100)
    checkpoint.prune(folder, 1, 3)

for step in (1, 3, 5):
    save(folder, step, 100)
for n in range(1, 500):
    before = load(checkpoint.latest(folder))
    if not (pid := os.fork()):
        strike(n)
        work()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    steps = [load(path) for path in checkpoint.checkpoints(folder)]
    assert steps[-1] >= before and 3 in steps, (n, steps)
    checkpoint.best(folder)  # the record is whole too
    left = [name for name in os.listdir(folder) if name.startswith((".step", ".best"))]
    assert not left, (n, left)
    if status == 0:
        assert steps == [3, 5 if scenario == "replace" else 6] and n > 20, (n, steps)
        print(n)
        break
    assert status == signal.SIGKILL, status
    for step in (1, 5):  # as before, for the next try
        save(folder, step, 100)
else:
    sys.exit("it never came through")
"""


@pytest.mark.parametrize("scenario", ["new", "replace"])
def test_kill_9_before_each_change_of_the_file_system(tmp_path: Path, scenario: str) -> None:
    assert int(finish(child(AT_EVERY_POINT, tmp_path, scenario))) > 20


@pytest.mark.parametrize("nth", range(1, 6))
@pytest.mark.parametrize("step", [1, 2])
def test_ctrl_c_while_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, nth: int) -> None:
    checkpoint.save(tmp_path, 1, {"w": np.zeros(3)}, {"new": False})
    syncs, sync = [], os.fsync

    def interrupted(handle: int) -> None:
        syncs.append(handle)
        if len(syncs) == nth:
            raise KeyboardInterrupt
        sync(handle)

    monkeypatch.setattr(os, "fsync", interrupted)
    try:
        checkpoint.save(tmp_path, step, {"w": np.ones(3)}, {"new": True})
        assert nth == 5, "a save syncs two files, its folder, and the folder above"
    except KeyboardInterrupt:
        pass
    monkeypatch.undo()
    there = [checkpoint.load(p).facts["new"] for p in checkpoint.checkpoints(tmp_path)]
    renamed = nth >= 4
    assert there == ([renamed] if step == 1 else [False, True][: 1 + renamed])
    assert not list(tmp_path.glob(".step*"))


TWO_WRITERS = """
folder, first = sys.argv[1], int(sys.argv[2])
for step in range(first, first + 30, 2):
    load(save(folder, step, 100))
    checkpoint.checkpoints(folder)
"""


def test_two_processes_in_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    for process in [child(TWO_WRITERS, tmp_path, first) for first in (0, 1)]:
        finish(process)
    assert [checkpoint.load(p).step for p in checkpoint.checkpoints(tmp_path)] == list(range(30))


# --- disks ---

FULL_DISK = """
folder = sys.argv[1] + "/run"
save(folder, 1)
for step in (2, 2):
    try:
        save(folder, step, 500_000)
        sys.exit("it was saved")
    except FileError as error:
        print(error)
    assert [p.name for p in checkpoint.checkpoints(folder)] == ["step-00000001"]
    assert sorted(os.listdir(folder)) == [".lock", "step-00000001"]
assert load(checkpoint.latest(folder)) == 1
"""
LIMIT = "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"


def mounted(folder: Path, options: str) -> tuple[str, ...]:
    """A command's beginning that gives it a small file system of its own on `folder`."""
    mount = f'mount -t tmpfs -o {options} tmpfs "{folder}"'
    prefix = ("unshare", "--map-root-user", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh")
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("no unprivileged mounts here (unshare --map-root-user --mount)")
    return prefix


def test_a_full_disk(tmp_path: Path) -> None:
    said = finish(child(FULL_DISK, tmp_path, prefix=mounted(tmp_path, "size=4m"))).splitlines()
    assert len(said) == 2
    for line in said:
        assert "step-00000002: cannot be saved: No space left on device (it takes 6.0 MB, 3.6 MB" in line
        assert line.endswith("step-00000001 is still there, whole")


def test_no_inodes_left(tmp_path: Path) -> None:
    said = finish(child(FULL_DISK, tmp_path, prefix=mounted(tmp_path, "nr_inodes=7"))).splitlines()
    assert all("No space left on device" in line and "is still there" in line for line in said)


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    said = finish(child(LIMIT + FULL_DISK, tmp_path)).splitlines()
    assert len(said) == 2
    for line in said:
        assert "step-00000002: cannot be saved: File too large" in line
        assert line.endswith("step-00000001 is still there, whole")


READ_ONLY = """
os.chdir(sys.argv[1])  # the folders above it are not for everybody
if os.getuid() == 0:
    os.setuid(65534)
for call in (lambda: save(".", 2), lambda: checkpoint.prune(".", 1), lambda: save("below", 1)):
    try:
        call()
        sys.exit("it was written")
    except FileError as error:
        print(error)
assert [load(p) for p in checkpoint.checkpoints(".")] == [0, 1]
assert load(checkpoint.latest(".")) == 1
"""


def test_a_read_only_folder_is_read_and_not_written(tmp_path: Path) -> None:
    for step in (0, 1):
        arrays = {"w": np.full(3, step, np.float32)}
        checkpoint.save(tmp_path, step, arrays, {"step": step})
    (tmp_path / ".step-00000009.partial-1").mkdir()
    for folder in (*tmp_path.glob("step-*"), tmp_path):
        folder.chmod(0o555)
    (tmp_path / ".lock").chmod(0o444)
    try:
        said = finish(child(READ_ONLY, tmp_path)).splitlines()
    finally:
        for folder in (tmp_path, *tmp_path.glob("step-*")):
            folder.chmod(0o755)
    assert "cannot be saved: Permission denied" in said[0]
    assert "step-00000001 is still there, whole" in said[0]
    assert "cannot be pruned: Permission denied" in said[1]
    assert "Permission denied" in said[2]
    assert "there is no earlier checkpoint" in said[2]


# --- changed bytes ---


def small(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    arrays = {
        "blk.0.w": rng.standard_normal((4, 6)).astype(np.float32),
        "bits": rng.integers(0, 2**16, 7, np.uint16),
        "empty": np.empty((0, 2), np.float32),
    }
    return checkpoint.save(folder, 12, arrays, {"lr": 1e-3, "data": {"file": "00ff", "epoch": 1}, "x": "ü"})


@pytest.mark.parametrize("name", ["checkpoint.json", "tensors.safetensors"])
def test_a_flipped_bit_in_any_byte_is_refused(tmp_path: Path, name: str) -> None:
    path = small(tmp_path)
    whole = (path / name).read_bytes()
    rng = random.Random(1)
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << rng.randrange(8)
        (path / name).write_bytes(changed)
        with pytest.raises((FileError, UnsupportedError)) as caught:
            checkpoint.load(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    (path / name).write_bytes(whole)
    assert checkpoint.load(path).step == 12


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["checkpoint.json", "tensors.safetensors"]), st.data())
def test_any_other_content_is_refused(tmp_path: Path, name: str, data: st.DataObject) -> None:
    path = small(tmp_path)
    whole = (path / name).read_bytes()
    begin, end = sorted(data.draw(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole)))))
    other = whole[:begin] + data.draw(st.binary(max_size=40)) + whole[end:]
    (path / name).write_bytes(other)
    if other == whole:
        assert checkpoint.load(path).step == 12
    else:
        with pytest.raises((FileError, UnsupportedError)):
            checkpoint.load(path)


def test_a_mixture_of_two_checkpoints_is_refused(tmp_path: Path) -> None:
    one = checkpoint.save(tmp_path, 1, {"w": np.zeros(3)}, {})
    two = checkpoint.save(tmp_path, 2, {"w": np.ones(3)}, {})
    os.replace(one / "tensors.safetensors", two / "tensors.safetensors")
    with pytest.raises(FileError, match="tensor 'w': sha256 differs"):
        checkpoint.load(two)
