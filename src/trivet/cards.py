"""Model cards: the README.md that lies beside an adapter or a merged model."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

_MOST = 1 << 16  # bytes of a file that are looked at
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


def converted(name: str, source: str) -> str:
    """The card of a model that was written in another format."""
    return _page(
        {"library_name": "transformers", "tags": ["trivet"]},
        f"# {_line(name)}",
        f"{_line(source)} as a folder of safetensors, made with trivet.",
    )


_OURS = re.compile(
    r"^A (model with adapters merged into its weights|LoRA adapter for .*), made with trivet\.$", re.MULTILINE
)


def may_replace(path: Path) -> bool:
    """Whether a card may be written there: nothing is, or an earlier card."""
    if not os.path.exists(path):
        return True
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            text = file.read(_MOST).decode(errors="replace")
    except OSError:
        return False
    return text.startswith("---\n") and _OURS.search(text) is not None


def _page(front: Mapping[str, str | list[str]], *parts: str) -> str:
    head = []
    for key, value in front.items():
        head += (
            [f"{key}:", *(f"- {v}" for v in value)]
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
