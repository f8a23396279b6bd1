"""llama.cpp's own quantiser, through the C interface that llama-cpp-python binds."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from trivet.mixes import MIXES


def llama_quantize(source: Path, out: Path, type: str, threads: int = 2) -> None:
    """Writes `out` as llama-quantize would; skips the test where llama_cpp is not installed."""
    llama = pytest.importorskip("llama_cpp")
    llama.llama_log_set(_quiet(llama), None)
    options = llama.llama_model_quantize_default_params()
    options.ftype, options.nthread = MIXES[type].number, threads
    status = llama.llama_model_quantize(os.fsencode(source), os.fsencode(out), ctypes.byref(options))
    assert status == 0


_kept = []  # a callback has to live as long as it may be called


def _quiet(llama):
    if not _kept:
        _kept.append(llama.llama_log_callback(lambda *_: None))
    return _kept[0]
