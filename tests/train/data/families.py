"""Chat templates of the shapes that model families have, each with a tokenizer that knows its tokens."""

# ruff: noqa: E501  # templates are easiest to read in few lines
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trivet.formats.gguf import write_gguf
from trivet.text.template import ChatTemplate
from trivet.text.tokenizer import Tokenizer

LETTERS = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]
LETTERS += [chr(256 + n) for n in range(68)]  # what stands for the other 68 bytes
LINES = "ĊĊ"  # two line ends, as one token
MARKERS = (
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|endoftext|>", "<|think|>",
)  # fmt: skip
TOKENS = [*LETTERS, LINES, *MARKERS]

CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% elif m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
# Turns that nothing closes: the next one's header is what a reply ends with.
HEADERS = (
    "{% for m in messages %}{{ '<|user|>' if m.role == 'user' else '<|assistant|>' }}\n{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
# Thoughts stay in replies after the last message of the user, and are dropped from earlier ones; a reply
# without thoughts gets empty ones.
THOUGHTS = (
    "{% set ns = namespace(last=0) %}{% for m in messages if m.role == 'user' %}{% set ns.last = ns.last + 1 %}"
    "{% endfor %}{% set ns.seen = 0 %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'user' %}{% set ns.seen = ns.seen + 1 %}{% endif %}"
    "{% if m.role == 'assistant' and ns.seen == ns.last %}"
    "{% set thought = m.content.split('</think>')[0].split('<think>')[-1] if '</think>' in m.content else '' %}"
    "<think>\n{{ thought.strip('\n') }}\n</think>\n\n{{ m.content.split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ m.content.split('</think>')[-1].lstrip('\n') }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The model is given the beginning of its thoughts, which finished turns do not have.
OPENED_THOUGHTS = (
    "{% for m in messages %}{{ '<|user|>' if m.role == 'user' else '<|assistant|>' }}"
    "{{ m.content.split('</think>')[-1] }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
# The system's words stand in the last message, if that is the user's.
SYSTEM_LAST = (
    "{{ bos_token }}{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}[INST]"
    "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "{{ m.content }}[/INST]{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
CALLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}<call>{{ call | tojson }}</call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """A template, its special tokens, and what is trained of a reply."""

    template: str
    eos: str
    reply: Callable[[str], str]
    bos: str | None = None
    system: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)


FAMILIES = {
    "chatml": Family(CHATML, "<|im_end|>", lambda s: f"{s}<|im_end|>"),
    "llama3": Family(LLAMA3, "<|eot_id|>", lambda s: f"{s.strip()}<|eot_id|>", "<s>"),
    "mistral": Family(MISTRAL, "</s>", lambda s: f" {s}</s>", "<s>", system=False),
    "gemma": Family(GEMMA, "</s>", lambda s: f"{s.strip()}<end_of_turn>", "<s>", system=False),
}


@dataclass(frozen=True)
class Source:
    """A model as far as data needs one."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    context: int = 100_000


def source(
    folder: Path, template: str | None, eos: str | None, bos: str | None = None, **more: Any
) -> Source:
    """A byte-level tokenizer, each letter a token, and a template."""
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": np.array([3 if t in MARKERS else 1 for t in TOKENS], np.int32),
        "tokenizer.ggml.merges": ["Ċ Ċ"],
        "tokenizer.ggml.add_bos_token": bos is not None,
    }
    for name, token in (("eos", eos), ("bos", bos)):
        if token is not None:
            metadata[f"tokenizer.ggml.{name}_token_id"] = np.uint32(TOKENS.index(token))
    return opened(folder, {**metadata, **more.pop("metadata", {})}, template, **more)


def sentencepiece(folder: Path, template: str | None, **more: Any) -> Source:
    """A SentencePiece tokenizer that puts a space before each text."""
    pieces = ["▁", *"abcdehilmoprstuy", "he", "▁h", "ll", "▁hell", "[", "]", "▁[", "▁b", "▁by"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * len(pieces), np.int32),
        "tokenizer.ggml.scores": np.arange(len(tokens), dtype=np.float32),
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.bos_token_id": np.uint32(1),
        "tokenizer.ggml.eos_token_id": np.uint32(2),
    }
    return opened(folder, metadata, template, **more)


def opened(folder: Path, metadata: dict[str, Any], template: str | None, context: int = 100_000) -> Source:
    write_gguf(folder / "tables.gguf", metadata, {})
    tokenizer = Tokenizer.open(folder / "tables.gguf")
    made = ChatTemplate(template, tokenizer.bos_token, tokenizer.eos_token) if template else None
    return Source(tokenizer, made, context)


def spelled(tokenizer: Tokenizer, ids: Any) -> str:
    """The bytes of ids, nothing taken off."""
    return b"".join(tokenizer.token_bytes(int(i)) for i in ids).decode("utf-8", "replace")
