"""Where a GGUF file may be written: the one rule of all that write a model.

A file that is there is replaced only if it is a GGUF file itself, so that a slip in an argument costs nobody
a text; and the folder must be there, which is found out before hours of work and not after.
"""

from __future__ import annotations

import os
from pathlib import Path

from trivet.errors import FileError, InputError


def demand_place(call: str, out: str | os.PathLike[str], *, named: bool = True) -> Path:
    """The path to write a GGUF file to. `named`: its name has to end in .gguf.

    Raises InputError for a name that does not, and for a file that is there and no GGUF file, FileError where
    nothing can be written."""
    if not str(out):
        raise InputError(f"[{call}] the file to write has an empty name")
    path = Path(out)
    try:
        if path.is_dir():
            raise FileError(f"[{call}] {path}: is a folder, or not a regular file")
        if named and path.suffix.lower() != ".gguf":
            raise InputError(f"[{call}] {path}: the name of a GGUF file ends in .gguf")
        os.stat(os.path.join(os.path.dirname(os.path.realpath(path)), ""))  # which has to be a folder
        if not os.path.exists(path):
            return path
        if not path.is_file():  # opening a pipe would wait
            raise FileError(f"[{call}] {path}: is a folder, or not a regular file")
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise FileError(f"[{call}] {path}: {error.strerror or error}") from None
    if magic != b"GGUF":
        raise InputError(f"[{call}] {path} is there and is no GGUF file; write somewhere else")
    return path
