"""What a training run tells those who watch it. The library never prints: it hands these out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from trivet.train.trainer import StepReport


@dataclass(frozen=True, slots=True)
class Planned:
    """Before the first step: what there is to do. Sizes in bytes, time in seconds (0: not known)."""

    method: str
    parameters: int  # how many numbers are trained
    of: int  # numbers in the model
    steps: int
    tokens: int  # of one epoch
    targets: int  # of those, trained
    examples: int
    validation: int  # examples
    resumed: int  # steps done before
    memory: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step is done. `epoch` counts epochs with fractions; `seconds` is the step's own time."""

    report: StepReport
    epoch: float
    lr: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The mean loss over all targets of the validation examples, after `step`."""

    step: int
    loss: float
    best: bool


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint was written."""

    step: int
    path: Path


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for people: what was cut, left out, skipped."""

    text: str


Event: TypeAlias = Planned | Stepped | Evaluated | Saved | Note
Watch: TypeAlias = Callable[[Event], None]
