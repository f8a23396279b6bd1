"""Where the assistant's turns are in what a chat template made of a conversation.

Nothing is searched for. A turn begins where the text ends that the model is given to reply to: the template,
rendered with the messages before it and the turn opened. A content ends where the text begins that follows a
mark in its place. What a template makes in between, thoughts or calls of tools, belongs to the turn, and so
does the first end token after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trivet.errors import TemplateError
from trivet.text.template import Message

Render = Callable[..., str]  # (messages, add_generation_prompt=...) -> text
_MARK = "\U000f5eed" * 3
_Span = tuple[int | None, int | None]  # where a content begins and ends, as far as it is known


@dataclass(frozen=True, slots=True)
class Turn:
    """An assistant's turn, in bytes of the text: the reply is [start, end); the token that closes it begins
    at `close` or after, and before `limit`. `opened`: the text up to `start` is what the model is given."""

    start: int
    end: int
    close: int
    limit: int
    opened: bool


def locate(
    text: bytes,
    messages: Sequence[Message],
    render: Render,
    contents: Sequence[tuple[int, int]] | None,
) -> list[Turn]:
    """The assistant's turns, in order. `contents` are the byte spans of the messages' contents, if known.

    Raises TemplateError if one cannot be found: the template writes something else for a conversation that
    goes on than for its beginning, and more than once."""
    return _Locator(text, messages, render, contents).turns()


class _Locator:
    def __init__(
        self,
        text: bytes,
        messages: Sequence[Message],
        render: Render,
        contents: Sequence[tuple[int, int]] | None,
    ) -> None:
        self.text = text
        self.messages = messages
        self.render = render
        self._spans: dict[int, _Span] = dict(enumerate(contents or ()))

    def turns(self) -> list[Turn]:
        turns: list[Turn] = []
        for i, message in enumerate(self.messages):
            if message["role"] == "assistant":
                turns.append(self._turn(i, turns[-1].end if turns else 0))
        return turns

    def _turn(self, i: int, before: int) -> Turn:
        begin, end = self._content(i)
        close = end
        if end is None:  # nothing that a mark can stand for, such as a call of a tool: the turn's own end
            end = self._end_of_turn(i)
        if i:
            before = max(before, self._content(i - 1)[1] or 0)
        start = self._opened(i, before, end)
        opened = start is not None
        if start is None:
            start = begin
        if start is None or end is None or not before <= start <= end:
            raise TemplateError(
                f"[chat] message {i}, the assistant's, cannot be located in the template's text: what the"
                " template writes around it depends on what it says"
            )
        limit = len(self.text) if i + 1 == len(self.messages) else self._content(i + 1)[0]
        return Turn(start, end, start if close is None else close, limit or len(self.text), opened)

    def _opened(self, i: int, before: int, end: int | None) -> int | None:
        """Where the text ends that the model is given to write turn `i`, if the whole text begins with it."""
        try:
            given = _bytes(self.render(self.messages[:i], add_generation_prompt=True))
        except TemplateError:  # some templates want a message from the user
            return None
        fits = self.text.startswith(given) and before <= len(given) <= (end or len(self.text))
        return len(given) if fits else None

    def _end_of_turn(self, i: int) -> int | None:
        whole = _bytes(self.render(self.messages[: i + 1]))
        return len(whole) if self.text.startswith(whole) else None

    def _content(self, i: int) -> _Span:
        """Where content `i` begins and ends: what a mark in its place leaves as it was."""
        if i not in self._spans:
            self._spans[i] = self._mark(i)
        return self._spans[i]

    def _mark(self, i: int) -> _Span:
        if not isinstance(self.messages[i].get("content"), str):
            return None, None
        marked = [*self.messages]
        marked[i] = {**self.messages[i], "content": _MARK}
        parts = self.render(marked).split(_MARK)
        if len(parts) != 2:  # written twice, or not at all
            return None, None
        ahead, after = map(_bytes, parts)
        begin = len(ahead) if self.text.startswith(ahead) else None
        end = len(self.text) - len(after) if self.text.endswith(after) else None
        if begin is not None and end is not None and begin > end:
            return None, None
        return begin, end


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
