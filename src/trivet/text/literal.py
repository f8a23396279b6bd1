"""Where the messages' own contents are in what a chat template made of them.

A message may spell a control token; it must not become one. The template is rendered a second time with a
mark in place of each content: what stands between the marks is the template's, and if that, with the
contents in place of the marks, makes the first text again, their places are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trivet.errors import TemplateError

if TYPE_CHECKING:
    from trivet.text.template import Message
    from trivet.text.tokenizer import Tokenizer

#: A mark is a number between two private-use characters.
_OPEN, _CLOSE = "\U000f5eed", "\U000f5eee"
_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


def strings(value: Any) -> list[str]:
    """Every text inside a message, keys apart."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if hasattr(value, "values") else value if isinstance(value, list | tuple) else ()
    return [text for item in inner for text in strings(item)]


def places(
    text: str,
    messages: Sequence[Message],
    marked: Sequence[bool],
    render: Callable[[Sequence[Message]], str],
) -> list[tuple[int, int]] | None:
    """Byte spans in `text`, what `render` made of `messages`, of the contents of those that are `marked`;
    None if the template does more with a content than to write it, with or without the space around it."""
    if _OPEN in text or _CLOSE in text:
        return None
    replaced = [
        {**m, "content": f"{_OPEN}{i}{_CLOSE}"} if wanted else m
        for i, (m, wanted) in enumerate(zip(messages, marked, strict=True))
    ]
    gaps = _MARK.split(render(replaced))  # gap, number, gap, number, ..., gap
    if not text.startswith(gaps[0]):
        return None
    at, spans = len(gaps[0]), []
    for number, gap in zip(gaps[1::2], gaps[2::2], strict=True):
        content = messages[int(number)]["content"]
        forms = (content, content.rstrip(), content.lstrip(), content.strip())
        found = next((form for form in forms if text.startswith(form + gap, at)), None)
        if found is None:
            return None
        spans.append((at, at + len(found)))
        at += len(found) + len(gap)
    return _in_bytes(text, spans) if at == len(text) else None


def find(
    text: str, messages: Sequence[Message], render: Callable[[Sequence[Message]], str], tokenizer: Tokenizer
) -> list[tuple[int, int]]:
    """Where the messages' contents are in a rendered conversation; nowhere, if none spells a token.

    Raises TemplateError for a message that spells one and whose place cannot be told."""
    plain = [isinstance(m.get("content"), str) for m in messages]
    if (spans := places(text, messages, plain, render)) is not None and all(plain):
        return spans
    risky = [any(spells_control(s, tokenizer) for s in strings(m)) for m in messages]
    if not any(risky):
        return spans or []
    if not any(r and not p for r, p in zip(risky, plain, strict=True)):
        spans = places(text, messages, risky, render)
        if spans is not None:
            return spans
    raise TemplateError(
        f"[chat] message {risky.index(True)} spells a control token, and the template changes contents:"
        " the two cannot be told apart"
    )


def spells_control(text: str, tokenizer: Tokenizer) -> bool:
    """Whether a text spells a control token."""
    return tokenizer.encode(text, parse_special=True) != tokenizer.encode(text)


def _in_bytes(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    out, at, nbytes = [], 0, 0
    for begin, end in spans:
        first = nbytes + _size(text[at:begin])
        nbytes = first + _size(text[begin:end])
        at = end
        out.append((first, nbytes))
    return out


def _size(text: str) -> int:
    """In bytes; lone surrogates are the tokenizer's to refuse."""
    return len(text.encode("utf-8", "surrogatepass"))
