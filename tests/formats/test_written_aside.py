"""A file written aside is there whole or not at all, and what a killed writer left goes with the next."""

import os
import signal
import subprocess
import sys

import pytest

from trivet.errors import FileError
from trivet.formats.common import sweep, written_aside

KILLED = """
import os, signal, sys
from pathlib import Path
from trivet.formats.common import written_aside
with written_aside(Path(sys.argv[1]), "test") as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(path):
    """What a writer leaves that is killed."""
    before = set(os.listdir(path.parent))
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = set(os.listdir(path.parent)) - before
    return path.parent / left


def test_what_a_killed_writer_left_goes(tmp_path):
    left, other = killed(tmp_path / "o.gguf"), killed(tmp_path / "another.gguf")
    mine = tmp_path / ".o.gguf.mine.partial"
    mine.touch()
    with written_aside(tmp_path / "o.gguf", "test") as file:
        assert not left.exists()
        file.write(b"whole")
    assert sorted(tmp_path.iterdir()) == sorted([mine, other, tmp_path / "o.gguf"])
    assert (tmp_path / "o.gguf").read_bytes() == b"whole"
    sweep(tmp_path)
    assert not other.exists()
    assert mine.exists()


def test_what_is_being_written_stays(tmp_path):
    with written_aside(tmp_path / "o", "test") as one:
        one.write(b"one")
        with written_aside(tmp_path / "o", "test") as two:
            two.write(b"two")
        sweep(tmp_path)
        assert (tmp_path / "o").read_bytes() == b"two"
    assert (tmp_path / "o").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["o"]


def test_links_and_pipes_of_such_names_stay(tmp_path):
    (tmp_path / "precious").touch()
    (tmp_path / ".o.0123456789ab.partial").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / ".o.0123456789ac.partial")
    sweep(tmp_path)
    assert len(os.listdir(tmp_path)) == 3


def test_an_error_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), written_aside(tmp_path / "o", "test"):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("size", [240, 300])
def test_a_name_that_is_too_long_is_said_with_its_path(tmp_path, size):
    with (
        pytest.raises(FileError, match=f"/{'n' * size}: File name too long"),
        written_aside(tmp_path / ("n" * size), "test"),
    ):
        pass
    assert os.listdir(tmp_path) == []
