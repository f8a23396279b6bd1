"""The script for machines with an accelerator, as far as it goes on one without."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from devices import EXTRA

SCRIPT = Path(__file__).parent / "run.py"


def run(*arguments):
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True)


def test_a_device_that_is_not_there_is_a_failure(tmp_path):
    done = run("--require", "rocm", "--out", tmp_path / "e.json")
    assert done.returncode == 1
    assert done.stderr.startswith("[device] rocm is not available: ")
    assert not (tmp_path / "e.json").exists()


@pytest.mark.parametrize("device", ["reference", *EXTRA])
def test_evidence_names_device_versions_cases_and_tolerances(device, tmp_path):
    done = run("--require", device, "--parts", "table", "--rows", "log_softmax", "--out", tmp_path / "e.json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["device"] == device
    assert {"details", "commit", "versions", "date", "seconds"} <= set(found)
    row = found["table"]["log_softmax"]
    assert row["passed"] == len(row["cases"]) > 9
    assert row["tolerances"]["f32"] > 0
    assert row["seconds"] > 0
    assert (found["failed"], found["left out"]) == ({}, [])


def test_what_is_not_done_in_time_is_said_and_written(tmp_path):
    done = run("--require", "reference", "--parts", "speed", "--seconds", 0, "--out", tmp_path / "e.json")
    assert done.returncode == 1
    assert (
        "left out, not done in time: 8 jobs, such as speed, tokens read on reference, made ready"
        in done.stdout
    )
    assert len(json.loads((tmp_path / "e.json").read_text())["left out"]) == 8
