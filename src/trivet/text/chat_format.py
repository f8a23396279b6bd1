"""The chat format of a template, for callers that have no template engine.

Most chat templates do no more than put fixed strings around each message. `derive_chat_format` finds these
strings by rendering the template with probes, then checks on many random conversations that putting them
together gives exactly what the template gives. A template that does more is refused, with the reason.

How a conversation is put together (the native core does the same, native/src/text/chat.h):

    start
    default_system                      if the first message is not the system's
    prefix[role] content suffix[role]   for each message; white space around content is taken off if `trim`
    generation                          if the assistant is to speak next
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from trivet.errors import TemplateError
from trivet.text.template import ChatTemplate, Message

CONVERSATIONS = 64  # how many are checked


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The strings of a chat format. `roles` maps a role to its prefix and suffix."""

    start: str
    default_system: str
    generation: str
    trim: bool
    roles: dict[str, tuple[str, str]] = field(default_factory=dict)

    def format(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        """The text of a conversation. Raises TemplateError for a role the format does not have."""
        out = [self.start]
        if messages and messages[0]["role"] != "system":
            out.append(self.default_system)
        for message in messages:
            if message["role"] not in self.roles:
                raise TemplateError(
                    f"[chat] role {message['role']!r}; the format has: {', '.join(self.roles)}"
                )
            prefix, suffix = self.roles[message["role"]]
            content = message["content"].strip() if self.trim else message["content"]
            out += [prefix, content, suffix]
        return "".join(out) + self.generation * add_generation_prompt

    def metadata(self) -> dict[str, str | bool]:
        """The format as GGUF metadata."""
        out: dict[str, str | bool] = {
            "trivet.chat.start": self.start,
            "trivet.chat.default_system": self.default_system,
            "trivet.chat.generation": self.generation,
            "trivet.chat.trim": self.trim,
        }
        for role, (prefix, suffix) in self.roles.items():
            out[f"trivet.chat.{role}.prefix"] = prefix
            out[f"trivet.chat.{role}.suffix"] = suffix
        return out


def derive_chat_format(source: str, bos_token: str = "", eos_token: str = "") -> ChatFormat:
    """The chat format of a Jinja template, verified. Raises TemplateError with the reason if it has none."""
    if "strftime_now" in source:
        raise TemplateError("[chat format] the template writes the date, which fixed strings cannot")
    probe = _Probe(ChatTemplate(source, bos_token, eos_token))
    chat = probe.derive(bos_token)
    try:
        _verify(chat, probe.template)
    except TemplateError:
        if "tool" not in chat.roles:
            raise
        # Tool messages are the ones templates treat specially; without them the rest may still hold.
        chat = replace(chat, roles={r: strings for r, strings in chat.roles.items() if r != "tool"})
        _verify(chat, probe.template)
    return chat


class _Probe:
    """Renders conversations of marker contents and reads the text between the markers."""

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template

    def gaps(self, *roles: str, add_generation_prompt: bool = False) -> list[str]:
        """Texts before, between and after the contents of one message of each role."""
        markers = [f"Qx{i}Marker{i}xQ" for i in range(len(roles))]
        messages = [{"role": r, "content": m} for r, m in zip(roles, markers, strict=True)]
        text = self.template.render(messages, add_generation_prompt=add_generation_prompt)
        gaps = []
        for role, marker in zip(roles, markers, strict=True):
            before, found, text = text.partition(marker)
            if not found or marker in text:
                raise TemplateError(
                    f"[chat format] a message of {role} is not written once, in its place ({' '.join(roles)})"
                )
            gaps.append(before)
        return [*gaps, text]

    def derive(self, bos_token: str) -> ChatFormat:
        _, suffix_user = self.gaps("user")
        _, between, suffix_assistant = self.gaps("user", "assistant")
        prefix_assistant = _without(between, suffix_user, "", "what follows a user's message")
        lead, _, between, _ = self.gaps("user", "assistant", "user")
        prefix_user = _without(between, suffix_assistant, "", "what follows an assistant's message")
        lead = _without(lead, "", prefix_user, "what precedes the first message")
        roles = {"user": (prefix_user, suffix_user), "assistant": (prefix_assistant, suffix_assistant)}
        start, default_system = lead, ""
        system = self._system(roles)
        if system is not None:
            before, roles["system"] = system
            start = bos_token if before.startswith(bos_token) else ""
            prefix = self._mid_system(roles)
            if prefix is None:
                prefix = _without(before, start, "", "what precedes the system's message")
            else:
                start = _without(before, "", prefix, "what precedes the system's message")
            roles["system"] = (prefix, roles["system"][1])
            default_system = _without(lead, start, "", "what precedes the first message")
        tool = self._tool(roles)
        if tool is not None:
            roles["tool"] = tool
        opened = self.gaps("user", add_generation_prompt=True)[-1]
        generation = _without(opened, suffix_user, "", "a user's message before the assistant's turn")
        kept = self.template.render([{"role": "user", "content": " x "}])
        return ChatFormat(start, default_system, generation, " x " not in kept, roles)

    def _system(self, roles: dict[str, tuple[str, str]]) -> tuple[str, tuple[str, str]] | None:
        """What stands before a system message and after it; None if the template has no place of its own
        for it."""
        try:
            before, between, _ = self.gaps("system", "user")
            return before, ("", _without(between, "", roles["user"][0], "the system's message"))
        except TemplateError:
            return None

    def _mid_system(self, roles: dict[str, tuple[str, str]]) -> str | None:
        """The prefix of a system message inside a conversation; None if the template allows none there."""
        try:
            _, _, between, _, _ = self.gaps("user", "assistant", "system", "user")
            return _without(between, roles["assistant"][1], "", "a system message")
        except TemplateError:
            return None

    def _tool(self, roles: dict[str, tuple[str, str]]) -> tuple[str, str] | None:
        try:
            _, _, before, after, _ = self.gaps("user", "assistant", "tool", "assistant")
            prefix = _without(before, roles["assistant"][1], "", "a tool's message")
            return prefix, _without(after, "", roles["assistant"][0], "a tool's message")
        except TemplateError:
            return None


def _without(text: str, prefix: str, suffix: str, what: str) -> str:
    """`text` less the strings it must begin and end with."""
    if not (text.startswith(prefix) and text.endswith(suffix) and len(text) >= len(prefix) + len(suffix)):
        raise TemplateError(f"[chat format] {what} depends on its neighbours")
    return text[len(prefix) : len(text) - len(suffix)]


# What a template may treat specially. Real conversations hold all of these.
_CONTENTS = (
    "Hi",
    "",
    "  spaces around  ",
    "\n\nlines\n",
    "\u3000wide\u00a0",
    "{{ messages }} {% if %}",
    "<|im_end|></s>[/INST]<end_of_turn>",
    "日本語 🦙 naïve",
    "<think>\nhm\n</think>\n\nSo: 4",
    'code = {"a": [1]}\n\tdef f(): return "x"',
)


def _conversations(chat: ChatFormat) -> Iterator[list[dict[str, str]]]:
    """Random conversations of the usual shape: an optional system message, then user and assistant in
    turn, with a tool's answer here and there if the format has one."""
    rng = random.Random(20)
    for i in range(CONVERSATIONS):
        roles = ["system"] if "system" in chat.roles and i % 2 else []
        for _ in range(rng.randint(0, 3)):
            roles += ["user", "assistant"]
            if "tool" in chat.roles and rng.random() < 0.2:
                roles += ["tool", "assistant"]
        roles += ["user"]
        contents = _CONTENTS[:1] if i < 4 else _CONTENTS
        yield [{"role": role, "content": rng.choice(contents)} for role in roles]


def _verify(chat: ChatFormat, template: ChatTemplate) -> None:
    for messages in _conversations(chat):
        for opened in (False, True):
            _same(template.render(messages, add_generation_prompt=opened), chat.format(messages, opened))


def _same(wanted: str, found: str) -> None:
    if wanted == found:
        return
    at = next((i for i, (a, b) in enumerate(zip(wanted, found, strict=False)) if a != b), -1)
    at = min(len(wanted), len(found)) if at < 0 else at
    raise TemplateError(
        f"[chat format] fixed strings around each message do not make the template's text: after"
        f" {wanted[max(at - 20, 0) : at]!r} it has {wanted[at : at + 20]!r}, not {found[at : at + 20]!r}"
    )
