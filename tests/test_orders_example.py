"""The orders example: its rows are what its generator makes, and held-out rows hold nothing of training's."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "examples/orders"


@pytest.fixture(scope="module")
def make() -> Any:
    spec = importlib.util.spec_from_file_location("make", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def orders(name: str) -> list[dict[str, Any]]:
    lines = (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(json.loads(line)["messages"][1]["content"]) for line in lines]


def test_the_files_are_what_the_generator_makes(make: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(make, "__file__", str(tmp_path / "make.py"))
    make.main()
    for name in ("train.jsonl", "held_out.jsonl"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


def test_names_places_and_sentences_are_apart(make: Any) -> None:
    train, held = orders("train"), orders("held_out")
    assert (len(train), len(held)) == (300, 60)
    for key in ("name", "city"):
        assert not {row[key] for row in train} & {row[key] for row in held}
    assert not set(make.TRAINING["patterns"]) & set(make.HELD_OUT["patterns"])
