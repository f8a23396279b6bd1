"""A reply while it is made: token by token, with its text, until something ends it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trivet.generate.completion import Chunk, Completion, FinishReason, Limit, StopStrings, Timings, Usage
from trivet.generate.engine import Session
from trivet.generate.sampler import Sampler, SamplerOptions

if TYPE_CHECKING:
    from trivet.generate.model import Model


class Reply:
    """One reply while it is made."""

    def __init__(
        self,
        model: Model,
        session: Session,
        prompt: list[int],
        options: SamplerOptions,
        max_tokens: int,
        stops: Sequence[str],
    ) -> None:
        self.model, self.session, self.prompt, self.max_tokens = model, session, prompt, max_tokens
        self.sampler = Sampler(options)
        self.stops = StopStrings(stops)
        self.decoder = model.tokenizer.stream()
        self.ids: list[int] = []
        self.text = ""
        self.began = time.perf_counter()
        self.first = 0.0

    def chunks(self) -> Iterator[Chunk]:
        engine = self.model.engine
        logits = engine.forward(self.session, self.prompt, [len(self.prompt) - 1])[0]
        self.first = time.perf_counter()
        self.sampler.accept(self.prompt, generated=False)
        while True:
            token = self.sampler.sample(logits)
            if token in self.model.tokenizer.end_ids:
                return (yield self._end("stop", self.decoder.flush()))
            self.sampler.accept([token], generated=True)
            self.ids.append(token)
            text = self._show(self.decoder.push(token))
            if self.stops.found:
                return (yield self._end("stop", "", text, [token]))
            full = self.session.length >= self.model.context
            if full or len(self.ids) == self.max_tokens:
                limit: Limit = "context" if full else "max_tokens"
                return (yield self._end("length", self.decoder.flush(), text, [token], limit))
            yield Chunk(text, [token])
            logits = engine.forward(self.session, [token], [0])[0]

    def _show(self, text: str) -> str:
        shown = self.stops.push(text)
        self.text += shown
        return shown

    def _end(
        self,
        reason: FinishReason,
        rest: str,
        text: str = "",
        ids: Sequence[int] = (),
        limit: Limit | None = None,
    ) -> Chunk:
        """The last chunk: what was held back, and the completion."""
        tail = self._show(rest)
        if not self.stops.found:
            held = self.stops.flush()
            self.text += held
            tail += held
        now = time.perf_counter()
        timings = Timings(
            self.first - self.began, now - self.first, len(self.prompt), max(len(self.ids) - 1, 0)
        )
        usage = Usage(len(self.prompt), len(self.ids))
        completion = Completion(self.text, self.ids, reason, usage, timings, limit)
        return Chunk(text + tail, list(ids), completion)
