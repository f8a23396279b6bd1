"""Chat templates: a model file's own Jinja, rendered as Hugging Face's apply_chat_template does.

    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    text = template.render([{"role": "user", "content": "Hi"}], add_generation_prompt=True)

A template is part of a file, and files are hostile: see sandbox.py for what it may reach, and meter.py for
how much it may do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2

from trivet.errors import InputError, TemplateError, TrivetError
from trivet.text.meter import Meter
from trivet.text.sandbox import MAX_SOURCE, Sandbox

Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled chat template. Threads may share one."""

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        """Raises TemplateError if `source` is not Jinja, or uses what chat templates have no use for."""
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"[chat template] {len(source)} characters; allowed: {MAX_SOURCE}")
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._sandbox = Sandbox()
        self._sandbox.globals |= {"raise_exception": _raise, "strftime_now": _strftime_now}
        try:
            self._sandbox.meter = Meter(())
            self._template = self._sandbox.from_string(source)
        except TrivetError:
            raise
        except Exception as error:  # deep nesting ends in Python's own errors, too
            raise TemplateError(f"[chat template] {_explain(error)}") from None

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = False,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        **variables: Any,
    ) -> str:
        """The text of a conversation, with the assistant's turn opened if `add_generation_prompt`.

        `messages` and everything else handed to the template is plain data: dicts, lists, strings, numbers,
        booleans, None. Raises InputError for anything else, TemplateError if the template fails, refuses
        the messages, or runs past its limits."""
        values = {
            **self._tokens,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "documents": documents,
            **variables,
        }
        data = {name: _plain(value, name) for name, value in values.items()}
        try:
            meter = self._sandbox.meter = Meter(data)
            return _gather(self._template.root_render_func(self._template.new_context(data)), meter)
        except TrivetError:
            raise
        except Exception as error:
            raise TemplateError(f"[chat template] {_explain(error)}") from None


def _gather(pieces: Iterable[str], meter: Meter) -> str:
    out, size = [], 0
    for piece in pieces:
        size += len(piece)
        meter.step()
        meter.room(size)
        out.append(piece)
    return "".join(out)


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy of plain data; nothing else reaches the template."""
    if value is None or isinstance(value, str | int | float):
        return value
    if depth > 32:
        raise InputError(f"[chat template] {where}: nested deeper than 32")
    if isinstance(value, Mapping):
        return {_key(k, where): _plain(v, f"{where}.{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    raise InputError(f"[chat template] {where} is a {type(value).__name__}; allowed: JSON's types")


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise InputError(f"[chat template] {where} has the key {key!r}; allowed: strings")
    return key


def _explain(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested or recurses too deep"
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _raise(message: Any) -> NoReturn:
    raise TemplateError(f"[chat template] the template refuses these messages: {str(message)[:500]}")


def _strftime_now(format: str) -> str:
    if len(format) > 200 or re.search(r"\d{3}", format):  # a width pads
        raise TemplateError(f"[chat template] strftime_now with the format {format[:50]!r}")
    return datetime.now().strftime(format)
