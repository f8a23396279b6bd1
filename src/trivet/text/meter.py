"""How much a chat template may do, counted while it does it.

Every loop step, call, filter and operator costs a step; every value made costs its size; no single value may
be larger than the largest text. Limits grow with the input, so a long conversation is not an attack.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from jinja2.utils import Namespace

from trivet.errors import TemplateError

BASE_TEXT = 1 << 20  # characters of any one value, besides 8 for each character of the input
BASE_STEPS = 200_000  # besides 200 for each value of the input
BASE_MADE = 64 << 20  # characters of all values made, besides 64 for each character of the input
MAX_SECONDS = 0.4  # of this thread's processor time: the last resort
MAX_DEPTH = 64  # of values inside values
CONTAINERS = (list, tuple, dict, set, frozenset)


class Meter:
    """What one rendering has done, and may still do."""

    def __init__(self, inputs: Any) -> None:
        self._sizes: dict[int, tuple[Any, int]] = {}  # of containers; holding them keeps their ids theirs
        self._counted = 0
        self.most_text = 1 << 62
        given = self.size(inputs)
        self.most_text = BASE_TEXT + 8 * given
        self._steps_left = BASE_STEPS + 200 * self._counted
        self._made_left = BASE_MADE + 64 * given
        self._began = time.thread_time()

    def step(self) -> None:
        """Counts one step."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TemplateError(f"[chat template] more than {BASE_STEPS} steps: it loops too long")
        if self._steps_left % 32 == 0:
            self.check_time()

    def check_time(self) -> None:
        """For work whose cost the steps do not show: comparing and sorting large values."""
        if time.thread_time() - self._began > MAX_SECONDS:
            raise TemplateError(f"[chat template] more than {MAX_SECONDS} s: it works too long")

    def room(self, size: float) -> None:
        """Refuses a value of more than `size` characters before it is made."""
        if size > self.most_text:
            raise TemplateError(
                f"[chat template] a value of {size:.4g} characters; allowed: {self.most_text} for this input"
            )

    def made(self, value: Any) -> Any:
        """Counts a value that was made."""
        size = self.size(value)
        self.room(size)
        if size > 1000:
            self.check_time()
        self._made_left -= size
        if self._made_left < 0:
            raise TemplateError("[chat template] it makes too much text along the way")
        return value

    def size(self, value: Any, depth: int = 0) -> int:
        """Characters that `value` takes when written out, roughly; bounded by the largest text."""
        if isinstance(value, str | bytes):
            return len(value)
        if isinstance(value, int):
            return value.bit_length() // 3 + 1
        if not isinstance(value, CONTAINERS):
            return len(value) if isinstance(value, range) else 1
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        if depth > MAX_DEPTH:
            raise TemplateError(f"[chat template] values nested deeper than {MAX_DEPTH}")
        self._counted += len(value)
        size = 2 + sum(self._item(item, depth) for item in value)
        if isinstance(value, dict):
            size += sum(self._item(item, depth) for item in value.values())
        self.room(size)
        self._sizes[id(value)] = (value, size)
        return size

    def _item(self, value: Any, depth: int) -> int:
        if isinstance(value, Namespace):
            raise TemplateError("[chat template] a namespace inside another value")
        return 1 + self.size(value, depth + 1)


class Counted:
    """An iterable whose every step is counted."""

    def __init__(self, items: Iterable[Any], meter: Meter) -> None:
        self._items = items
        self._meter = meter

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._meter.step()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]  # a TypeError is what Jinja expects of a generator
