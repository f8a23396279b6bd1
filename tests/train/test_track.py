"""Trackers write what a run tells; read back by the packages' own readers."""

from __future__ import annotations

import struct
import sys
import time
from pathlib import Path

import pytest

from trivet.errors import InputError, UnsupportedError
from trivet.train.events import Evaluated, Event, Note, Planned, Stepped
from trivet.train.track import numbers, tracker
from trivet.train.trainer import StepReport

PLAN = Planned("lora", 10, 100, 2, 50, 20, 5, 1, 0, 0, 0.0)
EVENTS: list[Event] = [
    PLAN,
    Stepped(StepReport(1, 2.5, 0.5, 100, 40, False), 0.5, 1e-3, 0.5),
    Note("a note"),
    Stepped(StepReport(2, 1.5, 0.25, 100, 40, True), 1.0, 5e-4, 0.5),
    Evaluated(2, 1.25, True),
]


def test_numbers_of_a_skipped_step_have_no_loss() -> None:
    assert numbers(EVENTS[1]) == (
        1,
        {
            "train/loss": 2.5, "train/gradient_norm": 0.5, "train/learning_rate": 1e-3, "train/epoch": 0.5,
            "train/tokens_per_second": 200.0,
        },
    )  # fmt: skip
    skipped = numbers(EVENTS[3])
    assert skipped is not None
    assert "train/loss" not in skipped[1]
    assert numbers(EVENTS[2]) is None


def stored(file: Path) -> dict[tuple[str, int], float]:
    """What an event file holds: records of length u64, its check u32, the event, its check u32."""
    from tensorboardX.proto.event_pb2 import Event as Stored

    found: dict[tuple[str, int], float] = {}
    data, at = file.read_bytes(), 0
    while at + 12 < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        event = Stored.FromString(data[at + 12 : at + 12 + size])
        found |= {(v.tag, event.step): v.simple_value for v in event.summary.value}
        at += 16 + size
    return found


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    watch = tracker("tensorboard", tmp_path)
    for event in EVENTS:
        watch(event)
    (file,) = (tmp_path / "tensorboard").glob("events.*")
    watch(EVENTS[-1])
    found = stored(file)
    for _ in range(100):  # its own thread writes
        if ("validation/loss", 2) in found:
            break
        time.sleep(0.05)
        watch(EVENTS[-1])  # asks for what is written again
        found = stored(file)
    assert found["train/loss", 1] == 2.5
    assert ("train/loss", 2) not in found
    assert found["validation/loss", 2] == 1.25


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UnsupportedError, match=r"tensorboardX: pip install 'trivet\[track\]'"):
        tracker("tensorboard", tmp_path)
    with pytest.raises(InputError, match="known: tensorboard, trackio"):
        tracker("wandb", tmp_path)
