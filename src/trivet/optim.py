"""AdamW's settings, and schedules: the learning rate as a function of the step, so that there is nothing to
save."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from trivet import arguments
from trivet.errors import InputError

Decay: TypeAlias = Literal["constant", "linear", "cosine"]
MOST_LR = 1e3


def _within(what: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    """Refuses NaN and what is out of bounds."""
    fits = (low < value if open_low else low <= value) and value <= high
    if isinstance(value, bool) or not isinstance(value, int | float) or not fits:
        raise InputError(
            f"[optim] {what} is {value!r}; wanted {low:g} {'<' if open_low else '<='} x <= {high:.9g}"
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters whose names match `pattern` ("blk.0.*", "*.lora_b"): their learning rate is `lr` times that
    of the step, and their decay is `decay`, unless it is None."""

    pattern: str
    lr: float = 1.0
    decay: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not self.pattern:
            raise InputError(f"[optim] a group's pattern is {self.pattern!r}; wanted a pattern of names")
        _within("a group's lr", self.lr, 0, 1e6)
        if self.decay is not None:
            _within("a group's decay", self.decay, 0, 100)


@dataclass(frozen=True, slots=True)
class AdamW:
    """AdamW with decoupled decay (arXiv:1711.05101). `decay` is for matrices; vectors (norms, biases) have
    none. `clip` bounds the global norm of the gradients, 0 for none. The first of `groups` that a name
    matches holds for it. Moments stand in pages of whole rows, `page` numbers at most, 0 for no bound."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.0
    clip: float = 1.0
    groups: tuple[Group, ...] = ()
    page: int = 1 << 24

    def __post_init__(self) -> None:
        _within("beta1", self.beta1, 0, 0.9999999)
        _within("beta2", self.beta2, 0, 0.9999999)
        _within("eps", self.eps, 0, 1, open_low=True)
        _within("decay", self.decay, 0, 100)
        _within("clip", self.clip, 0, 1e18)
        arguments.integer(self.page, "[optim] page", 0, 2**62)

    def of(self, name: str, ndim: int) -> tuple[float, float]:
        """(factor of the learning rate, decay) of a parameter.

        >>> AdamW(decay=0.1, groups=(Group("*.lora_b", lr=16),)).of("blk.0.attn_q.weight.lora_b", 2)
        (16, 0.1)
        """
        decay = self.decay if ndim > 1 else 0.0
        for group in self.groups:
            if fnmatchcase(name, group.pattern):
                return group.lr, decay if group.decay is None else group.decay
        return 1.0, decay

    def rates(self, lr: float, step: int) -> npt.NDArray[np.float32]:
        """What the row `adamw` takes at step 1, 2, ...: the learning rate and the bias corrections.

        >>> AdamW().rates(1e-3, 1)
        array([1.e-03, 1.e+01, 1.e+03], dtype=float32)
        """
        return np.array([lr, 1 / (1 - self.beta1**step), 1 / (1 - self.beta2**step)], np.float32)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate: a linear rise over `warmup` steps, then constant, or falling linearly or as a half
    cosine towards `floor` times `lr`, which it would reach one step after the last of `steps`."""

    lr: float
    steps: int
    warmup: int = 0
    decay: Decay = "cosine"
    floor: float = 0.0

    def __post_init__(self) -> None:
        _within("the learning rate", self.lr, 0, MOST_LR, open_low=True)
        _within("steps", self.steps, 1, 2**53)
        _within("warmup", self.warmup, 0, self.steps)
        _within("floor", self.floor, 0, 1)
        if self.decay not in ("constant", "linear", "cosine"):
            raise InputError(f"[optim] the schedule is {self.decay!r}; known: constant, linear, cosine")

    def at(self, step: int) -> float:
        """The learning rate of step 1, 2, ...; a pure function of the step.

        >>> s = Schedule(1.0, steps=10, warmup=2, decay="linear")
        >>> [s.at(i) for i in (1, 2, 3, 7, 10)]
        [0.5, 1.0, 1.0, 0.5, 0.125]
        """
        if step <= self.warmup:
            return self.lr * step / self.warmup
        if self.decay == "constant":
            return self.lr
        done = min((step - self.warmup - 1) / max(self.steps - self.warmup, 1), 1.0)
        left = 1 - done if self.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.lr * (self.floor + (1 - self.floor) * left)
