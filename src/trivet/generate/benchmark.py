"""How fast a model runs here: prefill and decode, several rounds, and where the time goes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from trivet.errors import InputError
from trivet.generate.bound import Rates, Work, serving_work
from trivet.generate.engine import serving_graph
from trivet.generate.model import Model


@dataclass(frozen=True, slots=True)
class Task:
    """Prefill of `tokens` at once, or decode of as many one by one after `depth`."""

    kind: str
    tokens: int
    depth: int = 0

    @property
    def name(self) -> str:
        return f"{self.kind} {self.tokens}" + (f" at {self.depth}" if self.depth else "")

    def run(self, model: Model) -> tuple[float, float]:
        """When it began and ended, in seconds of time.perf_counter."""
        session, forward = model.session(), model.engine.forward
        if self.kind == "prefill":
            ids = _ids(model, self.tokens)
            began = time.perf_counter()
            forward(session, ids, [self.tokens - 1])
        else:
            forward(session, _ids(model, self.depth + 1), [self.depth])
            began = time.perf_counter()
            for token in _ids(model, self.tokens):
                forward(session, [token], [0])
        return began, time.perf_counter()

    def work(self, model: Model) -> Work:
        """What a run must read and compute; of decode, its middle token."""
        serving = serving_graph(model.definition, model.kv)
        if self.kind == "prefill":
            return serving_work(serving, self.tokens, 0)
        return serving_work(serving, 1, self.depth + 1 + self.tokens // 2)

    def bound(self, model: Model, rates: Rates) -> float:
        """Tokens per second that a machine of these rates allows."""
        return (self.tokens if self.kind == "prefill" else 1) / self.work(model).seconds(rates)


def tasks(model: Model, prefill: Sequence[int], decode: Sequence[int], depth: int) -> list[Task]:
    """Raises InputError for sizes that do not fit the context."""
    for size in (*prefill, *(depth + n + 1 for n in decode)):
        if not 1 <= size <= model.context:
            raise InputError(f"[bench] {size} tokens do not fit the context of {model.context}")
    return [Task("prefill", n) for n in prefill] + [Task("decode", n, depth) for n in decode]


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second at one task: of every round, in order."""

    task: Task
    rates: list[float]

    @property
    def median(self) -> float:
        return median(self.rates)


def benchmark(
    model: Model, work: Sequence[Task], rounds: int = 5, advance: Callable[[int], None] = lambda _: None
) -> list[Rate]:
    """Every task in turn, so many rounds, after one that is thrown away."""
    rates: list[list[float]] = [[] for _ in work]
    for turn in range(rounds + 1):
        for task, out in zip(work, rates, strict=True):
            began, ended = task.run(model)
            advance(1)
            if turn:
                out.append(task.tokens / (ended - began))
    return [Rate(task, out) for task, out in zip(work, rates, strict=True)]


@dataclass(frozen=True, slots=True)
class Share:
    """What calls of one op that give one shape take of a task."""

    op: str
    made: str
    calls: int
    seconds: float


def profile(model: Model, task: Task, trace: Path) -> tuple[float, list[Share]]:
    """Seconds of a task, and the ops it went to, the longest first. `trace` is where TRIVET_TRACE sends the
    events of this process: it must have been set before the first model ran."""
    task.run(model)
    began, ended = task.run(model)
    found: dict[tuple[str, str], list[float]] = {}
    for line in trace.read_text().splitlines()[1:]:
        event = json.loads(line.rstrip(","))
        if event["tid"] == 0 and began <= event["ts"] / 1e6 <= ended:
            found.setdefault((event["name"], event["args"]["made"]), []).append(event["dur"] / 1e6)
    shares = [Share(*key, len(taken), sum(taken)) for key, taken in found.items()]
    return ended - began, sorted(shares, key=lambda s: -s.seconds)


def _ids(model: Model, count: int) -> list[int]:
    return [(7919 * i + 13) % model.config.vocab for i in range(count)]
