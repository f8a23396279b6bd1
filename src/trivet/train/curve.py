"""A run's loss curve as an SVG, from its log: each step, smoothed over, and the validation losses.

Written by hand: what a plotting library would bring here is forty megabytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trivet.errors import FileError
from trivet.train import log

NAME = "loss.svg"
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 400, 64, 40, 20, 48
SMOOTHING = 0.85
MOST_LOSS, LEAST_LOSS = 1e30, 1e-6  # of what is drawn and smoothed
DECADES = 1.5  # from here on the axis of losses is logarithmic

Points = list[tuple[float, float]]


class Smoothed:
    """An exponential mean of ratios, that a loss of before does not outweigh when it has fallen tenfold,
    without the pull of its beginning; 0 of nothing.

    >>> smooth = Smoothed()
    >>> [round(x, 6) for x in (smooth.add(1.0), smooth.add(1.0), smooth.mean)]
    [1.0, 1.0, 1.0]
    """

    def __init__(self) -> None:
        self._total, self._weight = 0.0, 0.0

    @property
    def mean(self) -> float:
        return math.exp(self._total / self._weight) if self._weight else 0.0

    def add(self, value: float) -> float:
        """The mean with one value more."""
        self._total = SMOOTHING * self._total + (1 - SMOOTHING) * math.log(max(value, LEAST_LOSS))
        self._weight = SMOOTHING * self._weight + (1 - SMOOTHING)
        return self.mean


def draw(folder: Path) -> Path | None:
    """Writes `loss.svg` beside the run's log; None if the log has no losses."""
    lines = log.read(folder)
    steps = _points(lines, "stepped")
    if not steps:
        return None
    held = _points(lines, "evaluated")
    mean = Smoothed()
    smooth = [(x, mean.add(y)) for x, y in steps]
    path = folder / NAME
    try:
        path.write_text(_svg(steps, smooth, held), "utf-8")
    except OSError as error:
        raise FileError(f"[curve] {path}: {error.strerror}") from None
    return path


def _points(lines: Sequence[dict[str, Any]], event: str) -> Points:
    return [
        (x["step"], x["loss"])
        for x in lines
        if x["event"] == event and not x.get("skipped") and _drawable(x.get("step"), x.get("loss"))
    ]


def _drawable(step: Any, loss: Any) -> bool:
    """Whether a run could have had them: the log is a file that anyone may have changed."""
    numbers = type(step) is int and type(loss) is float
    return numbers and 0 < step < 2**53 and 0 <= loss < MOST_LOSS


def _ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers within [low, high].

    >>> _ticks(0, 2.1)
    [0.0, 0.5, 1.0, 1.5, 2.0]
    """
    raw = (high - low) / most or 1.0
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * k for k in (1, 2, 5, 10) if size * k >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten within [low, high].

    >>> _decades(0.03, 2)
    [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [round(k * 10.0**p, 12) for p in powers for k in (1, 2, 5) if low <= k * 10.0**p <= high]


def _svg(steps: Points, smooth: Points, held: Points) -> str:
    last, losses = max(x for x, _ in steps), [max(y, LEAST_LOSS) for _, y in [*steps, *held]]
    low, top = min(losses), max(losses)
    decades = math.log10(top / low)
    if decades < DECADES:
        low = 0.0
    inner = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM)

    def at(x: float, y: float) -> tuple[float, float]:
        share = math.log10(max(y, low) / low) / decades if low else y / top
        return LEFT + inner[0] * x / last, TOP + inner[1] * (1 - share)

    def line(points: Points, colour: str, width: float, opacity: float = 1.0) -> str:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*p) for p in points))
        return (
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"'
            f' stroke-opacity="{opacity}" stroke-linejoin="round"/>'
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="12" fill="#444">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tick in _decades(low, top) if low else _ticks(0, top):
        x, y = at(0, tick)
        parts.append(f'<line x1="{x}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{x - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(0, last):
        x, y = at(tick, low)
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{tick:g}</text>')
    parts += [line(steps, "#4c78a8", 1, 0.5), line(smooth, "#4c78a8", 2)]
    if held:
        parts.append(line(held, "#e45756", 1.5))
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#e45756"/>' for x, y in (at(*p) for p in held)
        ]
    legend = [("#b7c9dc", "training loss"), ("#4c78a8", "smoothed")]
    legend += [("#e45756", "validation loss")] if held else []
    for i, (colour, text) in enumerate(legend):
        x = LEFT + 130 * i
        parts.append(f'<rect x="{x}" y="16" width="16" height="3" fill="{colour}"/>')
        parts.append(f'<text x="{x + 22}" y="22">{text}</text>')
    parts.append(f'<text x="{LEFT + inner[0] / 2}" y="{HEIGHT - 10}" text-anchor="middle">step</text></svg>')
    return "\n".join(parts) + "\n"
