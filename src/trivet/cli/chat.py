"""Talk with a model over several turns.

Commands: /reset starts again, /system TEXT sets the system message, /adapter PATH[=SCALE] ... changes the
adapters (none without a path), /exit leaves. Ctrl-C stops a reply.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trivet.cli.adapters import AdapterOption, scaled
from trivet.cli.output import (
    ContextOption,
    DeviceOption,
    KvOption,
    ModelArgument,
    ThreadsOption,
    emit_json,
    note,
)
from trivet.cli.progress import waiting
from trivet.errors import CapacityError, InputError, TemplateError, TrivetError

if TYPE_CHECKING:
    from trivet.generate.chat import Chat

EXAMPLE = "trivet chat smollm2-135m"
MAX_LINE = 1 << 24  # characters of a message that comes from no terminal


def chat(
    model: ModelArgument,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of a reply.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token each time.")] = 0.2,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same replies.")] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    kv: KvOption = None,
    context: ContextOption = None,
    adapter: AdapterOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each reply as a line of JSON.")] = False,
) -> None:
    from trivet.generate.chat import Chat
    from trivet.generate.model import load
    from trivet.generate.sampler import SamplerOptions

    SamplerOptions(temperature=temperature, seed=seed)  # a bad one is reported before the model is loaded
    with waiting("loading"):
        m = load(model, device, context=context, threads=threads, kv=kv, adapter=scaled(adapter))
        _ = m.engine
    conversation = Chat(m, system)
    conversation.model.encode_chat([{"role": "user", "content": "Hi"}])  # no template: say so before asking
    interactive = sys.stdin.isatty()
    if interactive:
        _open_history()
        note(
            "/reset starts again, /system TEXT sets the system message, /adapter PATH changes adapters,"
            " /exit leaves; Ctrl-C stops a reply"
        )
    while (line := _read("> " if interactive else "")) is not None:
        if _command(conversation, line):
            continue
        if line.strip() == "/exit":
            return
        if line.strip():
            _answer(conversation, line, as_json, max_tokens, temperature, seed)


def _read(prompt: str) -> str | None:
    """The next line, or None at the end of input. Ctrl-C at the prompt drops the line: it may have been meant
    for a reply that had just ended."""
    while True:
        try:
            return input(prompt) if prompt else _line()
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            if not prompt:
                raise
            print()
            note("/exit or Ctrl-D leaves")


def _line() -> str | None:
    """The next line of what is no terminal, or None at its end."""
    line = sys.stdin.readline(MAX_LINE + 1)
    if len(line) > MAX_LINE:
        raise InputError(f"[stdin] a line has more than {MAX_LINE} characters")
    return line.removesuffix("\n") or ("" if line else None)


def _command(conversation: Chat, line: str) -> bool:
    """Does /reset, /system and /adapter; False for anything else."""
    word, _, rest = line.strip().partition(" ")
    if word == "/reset":
        conversation.reset(conversation.system)
        note("started again")
    elif word == "/system":
        conversation.reset(rest.strip() or None)
        note("system message set; started again" if rest.strip() else "no system message; started again")
    elif word == "/adapter":
        _adapt(conversation, rest)
    elif word.startswith("/") and word != "/exit":
        note(f"no command {word}; there are /reset, /system TEXT, /adapter PATH, /exit")
    else:
        return False
    return True


def _adapt(conversation: Chat, paths: str) -> None:
    """Changes the adapters; the conversation goes on. Those in use stay if one cannot be opened."""
    try:
        given = shlex.split(paths)
        conversation.model.adapt(scaled(given))
    except (TrivetError, ValueError) as error:
        note(str(error))
        return
    names = ", ".join(f"{a.name} = {s:g}" for a, s in conversation.model.adapters)
    note(f"adapters: {names or 'none'}")


def _answer(
    conversation: Chat,
    line: str,
    as_json: bool,
    max_tokens: int | None,
    temperature: float,
    seed: int | None,
) -> None:
    text, done = "", None
    try:
        chunks = conversation.send(line, max_tokens, temperature=temperature, seed=seed)
        try:
            for chunk in chunks:
                text += chunk.text
                done = chunk.completion
                if not as_json:
                    print(chunk.text, end="", flush=True)
        except KeyboardInterrupt:
            chunks.close()  # type: ignore[attr-defined]
    except (CapacityError, InputError, TemplateError) as error:  # of this message: the chat goes on
        note(str(error))
        return
    if as_json:
        emit_json({"text": text, "finish_reason": done.finish_reason if done else "cancelled"})
        return
    print()
    if done is None:
        note("stopped")
    elif done.limit:
        note(f"stopped at {done.limit}")


def _open_history() -> None:
    """Line editing, and the lines of earlier chats, where readline is there."""
    try:
        import atexit
        import os
        import readline
    except ImportError:
        return
    folder = Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")) / "trivet"
    file = folder / "chat_history"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        readline.read_history_file(file)
    except OSError:
        return
    readline.set_history_length(1000)

    def keep() -> None:
        with contextlib.suppress(OSError):
            readline.write_history_file(file)

    atexit.register(keep)
