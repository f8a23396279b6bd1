"""Model cards: the README.md that lies beside an adapter or a model, and what of it GGUF has keys for."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_MOST = 1 << 16  # bytes of a file that are looked at
#: what a card's front matter and GGUF's metadata both have, by the card's key
_KEYS = {
    "model_name": "general.name",
    "model_creator": "general.author",
    "model_description": "general.description",
    "license": "general.license",
    "license_name": "general.license.name",
    "license_link": "general.license.link",
    "language": "general.languages",
    "tags": "general.tags",
}
_LISTS = ("general.languages", "general.tags")
_USE = {
    "peft": "As peft and transformers have it, too: `PeftModel.from_pretrained(model, folder)`.",
    "mlx": "As mlx-lm has it, too: `mlx_lm.generate --model BASE --adapter-path FOLDER`.",
}


def adapter(name: str, base: str, path: Path, format: str, facts: Mapping[str, str]) -> str:
    """The card of an adapter."""
    model, folder = shlex.quote(base), shlex.quote(str(path))
    return _page(
        {"base_model": base, "library_name": format, "tags": ["lora", "trivet"]},
        f"# {_line(name)}",
        f"A LoRA adapter for {_line(facts['base model'])}, made with trivet.",
        _table(facts),
        "## How to use it",
        _shell(
            f'trivet run {model} "..." --adapter {folder}',
            f"trivet chat {model} --adapter {folder}",
            f"trivet merge {model} {folder} merged.gguf",
        ),
        _USE[format],
    )


def merged(name: str, facts: Mapping[str, str], commands: Sequence[str]) -> str:
    """The card of a merged model."""
    return _page(
        {"base_model": facts["base model"], "library_name": "trivet", "tags": ["merged", "trivet"]},
        f"# {_line(name)}",
        "A model with adapters merged into its weights, made with trivet.",
        _table(facts),
        "## How to use it",
        _shell(*commands),
    )


def converted(name: str, source: str, said: Mapping[str, Any]) -> str:
    """The card of a model that was written in another format; `said` is its metadata under GGUF's keys."""
    front = {ours: value for ours, theirs in _KEYS.items() if (value := _plain(said.get(theirs)))}
    tags = front.pop("tags", [])
    tags = [tags] if isinstance(tags, str) else tags
    return _page(
        {**front, "library_name": "transformers", "tags": list(dict.fromkeys([*tags, "trivet"]))},
        f"# {_line(name)}",
        f"{_line(source)} as a folder of safetensors, made with trivet.",
    )


def _plain(value: Any) -> str | list[str] | None:
    if isinstance(value, list):
        return [text for text in value if isinstance(text, str)]
    return value if isinstance(value, str) else None


def read(path: Path) -> dict[str, str | list[str]]:
    """What a card's front matter says under GGUF's keys. Of YAML it knows what cards are written in: a key
    with a text, or with a list of them, and passes over the rest."""
    found: dict[str, list[str]] = {}
    key = None
    lines = _begin(path).splitlines()
    for line in lines[1 : lines.index("---", 1)] if lines[:1] == ["---"] and "---" in lines[1:] else []:
        if item := re.fullmatch(r"\s*- +(.+)", line):
            texts = [item[1]] if key in _LISTS else []
        elif pair := re.fullmatch(r"(\w+):\s*(.*)", line, re.ASCII):
            key = _KEYS.get(pair[1])
            inline = re.fullmatch(r"\[(.*)\]", pair[2].strip())
            texts = inline[1].split(",") if inline else [pair[2]]
        else:
            texts = []
        if key and (values := [value for value in map(_scalar, texts) if value]):
            found[key] = [*found.get(key, []), *values]
    return {key: values if key in _LISTS else ",".join(values) for key, values in found.items()}


def _scalar(text: str) -> str:
    """The value of a plain or a quoted scalar of one line; nothing for one of several."""
    text = text.strip()
    if double := re.fullmatch(r'"((?:[^"\\]|\\.)*)"(?:\s+#.*)?', text):
        return re.sub(r"\\(.)", r"\1", double[1])
    if single := re.fullmatch(r"'((?:[^']|'')*)'(?:\s+#.*)?", text):
        return single[1].replace("''", "'")
    return "" if text[:1] in tuple("\"'>|&*!{[%@`#") else text.split(" #")[0].strip()


def _begin(path: Path) -> str:
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return file.read(_MOST).decode(errors="replace")
    except OSError:
        return ""


_OURS = re.compile(
    r"^A (model with adapters merged into its weights|LoRA adapter for .*), made with trivet\.$", re.MULTILINE
)


def may_replace(path: Path) -> bool:
    """Whether a card may be written there: nothing is, or an earlier card."""
    if not os.path.exists(path):
        return True
    text = _begin(path)
    return text.startswith("---\n") and _OURS.search(text) is not None


def _page(front: Mapping[str, str | list[str]], *parts: str) -> str:
    head = []
    for key, value in front.items():
        head += (
            [f"{key}:", *(f"- {_quoted(v)}" for v in value)]
            if isinstance(value, list)
            else [f"{key}: {_quoted(value)}"]
        )
    return "\n".join(["---", *head, "---", ""]) + "\n" + "\n\n".join(parts) + "\n"


def _table(facts: Mapping[str, str]) -> str:
    rows = [f"| {_cell(key)} | {_cell(value)} |" for key, value in facts.items()]
    return "\n".join(["| | |", "| --- | --- |", *rows])


def _shell(*commands: str) -> str:
    return "\n".join(["```sh", *map(_line, commands), "```"])


def _line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


def _quoted(text: str) -> str:
    """A YAML string."""
    return '"' + _line(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
