"""What the tests of device programs share: a model, and the record of what was compiled."""

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "train"))  # small_model

import device_programs
import device_targets


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    return device_programs.small(tmp_path_factory.mktemp("small"))


@pytest.fixture
def compile_for(tmp_path):
    """`device_targets.compile_for` by names. TRIVET_RECORD names a JSON file that keeps what it found."""

    def compile_for(target, model, name, program, **more):
        if reason := device_targets.missing(target):
            pytest.skip(reason)
        found = device_targets.compile_for(target, program.graph, program.sizes, tmp_path, **more)
        if kept := os.environ.get("TRIVET_RECORD"):
            record(Path(kept), f"{model}, {name}", target, found)
        return found

    return compile_for


def record(path, name, target, found):
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    known.setdefault(name, {})[target] = found
    known = {name: dict(sorted(known[name].items())) for name in sorted(known)}
    path.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
