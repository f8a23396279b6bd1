"""The fuzzer of the Python readers, for a moment."""

import re
import subprocess
import sys
from pathlib import Path

FUZZER = Path(__file__).parent.parent.parent / "scripts" / "fuzz_formats.py"


def test_damaged_files_open_or_give_a_typed_error() -> None:
    done = subprocess.run([sys.executable, FUZZER, "2", "0"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tried = re.findall(r"(\d+) tried, (\d+) opened", done.stdout)
    assert len(tried) == 5
    assert all(0 <= int(opened) < int(all_) for all_, opened in tried)
