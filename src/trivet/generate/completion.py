"""What generating gives back, and where it stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length"]
Limit = Literal["max_tokens", "context"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds spent on the prompt and on the reply."""

    prefill: float
    decode: float
    prompt_tokens: int
    decoded_tokens: int  # the first token comes out of the prefill, so it is not among them

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second."""
        return self.prompt_tokens / self.prefill if self.prefill > 0 else 0.0

    @property
    def decode_rate(self) -> float:
        """Reply tokens per second."""
        return self.decoded_tokens / self.decode if self.decode > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole reply. `limit` says which limit ended it when `finish_reason` is "length"."""

    text: str
    ids: list[int]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed reply: whole characters, maybe none. The last chunk carries the completion."""

    text: str
    ids: list[int] = field(default_factory=list)
    completion: Completion | None = None


class StopStrings:
    """Cuts text at the first stop string, holding back what could yet become one.

    >>> stop = StopStrings(["\\nUser:"])
    >>> stop.push("Hi.\\nUs"), stop.push("er: x"), stop.found
    ('Hi.', '', True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [s for s in stops if s]
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that is certain now. After `found` is set, nothing more comes."""
        if self.found:
            return ""
        self._held += text
        ends = [(at, s) for s in self._stops if (at := self._held.find(s)) >= 0]
        if ends:
            self.found = True
            out, self._held = self._held[: min(ends)[0]], ""
            return out
        keep = max((self._overlap(s) for s in self._stops), default=0)
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out

    def flush(self) -> str:
        """What was held back and never became a stop string."""
        out, self._held = self._held, ""
        return out

    def _overlap(self, stop: str) -> int:
        """How many characters at the end of the held text begin this stop string."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)
