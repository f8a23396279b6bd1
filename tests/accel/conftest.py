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
def keep():
    """Keeps what was found of a program in the JSON file that TRIVET_RECORD names, if it does."""

    def keep(target, model, name, found):
        if kept := os.environ.get("TRIVET_RECORD"):
            record(Path(kept), f"{model}, {name}", target, found)

    return keep


@pytest.fixture
def compile_for(tmp_path, keep):
    """`device_targets.compile_for` by names; what it found is kept."""

    def compile_for(target, model, name, program, **more):
        if reason := device_targets.missing(target):
            pytest.skip(reason)
        found = device_targets.compile_for(target, program.graph, program.sizes, tmp_path, **more)
        keep(target, model, name, found)
        return found

    return compile_for


def record(path, name, target, found):
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    of = known.setdefault(name, {})
    of[target] = of.get(target, {}) | found
    known = {name: dict(sorted(known[name].items())) for name in sorted(known)}
    path.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
