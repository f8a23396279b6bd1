"""A conversation: messages, the session that holds them, and replies that stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trivet.errors import CapacityError
from trivet.generate.completion import Chunk
from trivet.generate.model import Model
from trivet.generate.sampler import SamplerOptions


class Chat:
    """A conversation with one model. Only what is new since the last turn is fed to it."""

    def __init__(self, model: Model, system: str | None = None) -> None:
        self.model = model
        self._engine, self._session = model.engine, model.session()
        self._fed: list[int] = []
        self.reset(system)

    def reset(self, system: str | None = None) -> None:
        """Starts again, with this system message or without one."""
        self.system = system
        self.messages: list[dict[str, str]] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})

    def send(self, text: str, max_tokens: int | None = None, **options: Any) -> Iterator[Chunk]:
        """Says `text` and streams the reply; `options` are those of `Model.generate`.

        Leaving the iterator early keeps what was said so far as the reply. If the conversation no longer
        fits the context, raises CapacityError and the message is not added."""
        messages = [*self.messages, {"role": "user", "content": text}]
        ids = self.model.encode_chat(messages)
        room = self.model.context - len(ids)
        if room < 1:
            raise CapacityError(
                f"[chat] the conversation is {len(ids)} tokens; the context is {self.model.context}: "
                "start again with /reset"
            )
        self._rewind(ids)
        fresh = ids[len(self._fed) :]
        chunks = self.model.stream_ids(
            fresh,
            SamplerOptions(**options),
            room if max_tokens is None else min(max_tokens, room),
            (),
            self._session,
        )
        self.messages = messages
        return self._reply(ids, chunks)

    def _rewind(self, ids: list[int]) -> None:
        """Keeps of the session what these ids begin with; at least one id is left to feed. With other
        adapters than the last time, everything is fed anew."""
        if self._engine is not self.model.engine:
            self._engine, self._session, self._fed = self.model.engine, self.model.session(), []
        same = next((i for i, (a, b) in enumerate(zip(self._fed, ids, strict=False)) if a != b), None)
        keep = min(len(self._fed), len(ids) - 1) if same is None else min(same, len(ids) - 1)
        self._session.truncate(keep)
        self._fed = self._fed[:keep]

    def _reply(self, ids: list[int], chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        said, reply = "", []
        try:
            for chunk in chunks:
                said += chunk.text
                reply += chunk.ids
                yield chunk
        finally:
            self.messages.append({"role": "assistant", "content": said})
            self._fed = (ids + reply)[: self._session.length]
