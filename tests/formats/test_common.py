"""Texts that people name: whatever stands there, at most so many bytes of it are read."""

import os
import subprocess
import sys
import threading

import pytest

import tiny_model
import trivet as tv
from trivet.errors import FileError
from trivet.formats.common import MAX_TEXT, read_text
from trivet.train import evaluate


def test_a_pipe_is_read_to_its_end(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    writer = threading.Thread(target=pipe.write_bytes, args=("é\n".encode() * 50_000,))
    writer.start()
    assert read_text("eval", pipe) == "é\n" * 50_000
    writer.join()


def test_a_sparse_file_is_not_read_at_all(tmp_path):
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(50 << 30)
    model = tv.load(tiny_model.write(tmp_path / "m.gguf"))
    for read in (
        lambda path: read_text("eval", path),
        lambda path: evaluate.choice(model, path),
        lambda path: tv.quantize(tmp_path / "m.gguf", tmp_path / "q.gguf", calibrate=path),
    ):
        with pytest.raises(FileError, match=f"huge.txt has more than {MAX_TEXT} bytes"):
            read(tmp_path / "huge.txt")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("eval {m} --text /dev/zero", "/dev/zero has more than"),
        ("diff {m} {m} --text /dev/zero", "/dev/zero has more than"),
        ("tokenize {m} - < /dev/zero", "[stdin] has more than"),
        ("chat {m} < /dev/zero", "[stdin] a line has more than"),
        ("finetune {m} /dev/zero --out {m}.run", "/dev/zero is not a regular file"),
    ],
)
def test_what_never_ends(tmp_path, line, said):
    model = tiny_model.write(tmp_path / "m.gguf")
    command = f"ulimit -d 4000000; {sys.executable} -m trivet.cli.main {line.format(m=model)}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
