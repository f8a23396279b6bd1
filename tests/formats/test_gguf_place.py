"""Where GGUF files may be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tiny_model
from trivet.errors import FileError, InputError
from trivet.formats.gguf import demand_place


def test_new_files_and_gguf_files(tmp_path: Path) -> None:
    assert demand_place("call", tmp_path / "new.gguf") == tmp_path / "new.gguf"
    assert demand_place("call", tmp_path / "new.dat", named=False) == tmp_path / "new.dat"
    assert demand_place("call", tiny_model.write(tmp_path / "m.GGUF"))
    (tmp_path / "link.gguf").symlink_to(tmp_path / "to come")
    assert demand_place("call", tmp_path / "link.gguf")


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("", InputError, "empty name"),
        ("notes.txt", InputError, "the name of a GGUF file ends in .gguf"),
        ("text.gguf", InputError, "is there and is no GGUF file; write somewhere else"),
        ("empty.gguf", InputError, "is there and is no GGUF file"),
        ("folder.gguf", FileError, "is a folder"),
        ("pipe.gguf", FileError, "not a regular file"),
        ("none/m.gguf", FileError, "No such file or directory"),
        ("text.gguf/m.gguf", FileError, "Not a directory"),
        ("dangling.gguf", FileError, "No such file or directory"),
    ],
)
def test_refused(tmp_path: Path, name: str, error: type[Exception], says: str) -> None:
    (tmp_path / "text.gguf").write_text("precious")
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "folder.gguf").mkdir()
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "none" / "m.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(error, match=f"\\[call\\].*{says}"):
        demand_place("call", tmp_path / name if name else "")
    assert (tmp_path / "text.gguf").read_text() == "precious"
