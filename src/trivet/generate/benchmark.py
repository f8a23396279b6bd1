"""How fast a model runs here: prefill and decode, several rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from trivet.errors import InputError
from trivet.generate.model import Model


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second of one kind of work: of every round, in order."""

    name: str
    tokens: int
    rates: list[float]

    @property
    def median(self) -> float:
        return median(self.rates)


def benchmark(
    model: Model,
    prefill: Sequence[int] = (512,),
    decode: Sequence[int] = (128,),
    depth: int = 0,
    rounds: int = 5,
    advance: Callable[[int], None] = lambda _: None,
) -> list[Rate]:
    """Prefill of so many tokens at once, and decode of so many one by one after `depth` tokens. One round of
    each is run and thrown away first. Raises InputError for sizes that do not fit the context."""
    for size in (*prefill, *(depth + n + 1 for n in decode)):
        if not 1 <= size <= model.context:
            raise InputError(f"[bench] {size} tokens do not fit the context of {model.context}")
    work = [(f"prefill {n}", n, _prefill) for n in prefill]
    work += [(f"decode {n}" + (f" at {depth}" if depth else ""), n, _decode) for n in decode]
    rates: list[list[float]] = [[] for _ in work]
    for turn in range(rounds + 1):
        for (_, tokens, run), out in zip(work, rates, strict=True):
            rate = run(model, tokens, depth)
            advance(1)
            if turn:
                out.append(rate)
    return [Rate(name, tokens, out) for (name, tokens, _), out in zip(work, rates, strict=True)]


def _ids(model: Model, count: int) -> list[int]:
    return [(7919 * i + 13) % model.config.vocab for i in range(count)]


def _prefill(model: Model, tokens: int, depth: int) -> float:
    session = model.session()
    began = time.perf_counter()
    model.engine.forward(session, _ids(model, tokens), [tokens - 1])
    return tokens / (time.perf_counter() - began)


def _decode(model: Model, tokens: int, depth: int) -> float:
    session = model.session()
    model.engine.forward(session, _ids(model, depth + 1), [depth])
    began = time.perf_counter()
    for token in _ids(model, tokens):
        model.engine.forward(session, [token], [0])
    return tokens / (time.perf_counter() - began)
