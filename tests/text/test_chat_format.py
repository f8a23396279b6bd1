"""Chat formats: what is derived makes the template's text, in Python and in the native core; what cannot be
derived is refused, with the reason."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path

import chat_templates
import pytest
import tokenizer_tables as tables

from trivet import _native as core
from trivet.errors import TemplateError, UnsupportedError
from trivet.formats.gguf import GGUFFile
from trivet.text.chat_format import ChatFormat, derive_chat_format
from trivet.text.template import ChatTemplate
from trivet.text.tokenizer import Tokenizer

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
DERIVED = ("chatml", "default system", "llama3", "mistral", "gemma", "folded system")


class NativeChat:
    """tv_chat of a file with this metadata."""

    def __init__(self, folder: Path, metadata: dict[str, str | bool]) -> None:
        oracle = tables.train_bpe("gpt2", 300)
        self.tokenizer = tables.open_tables(folder, {**tables.bpe_metadata(oracle, "gpt2"), **metadata})
        self._handle = ctypes.c_void_p()
        core.tv_chat_open(self.tokenizer._handle, ctypes.byref(self._handle))

    def call(self, function, item, messages, opened):
        array = (core.tv_chat_message * len(messages))()
        kept = [m["content"].encode() for m in messages]
        for slot, message, content in zip(array, messages, kept, strict=True):
            slot.role = message["role"].encode()
            slot.content = ctypes.cast(ctypes.c_char_p(content), ctypes.POINTER(ctypes.c_char))
            slot.content_size = len(content)
        needed = ctypes.c_size_t()
        flags = core.TV_ADD_GENERATION * opened
        function(self._handle, array, len(array), flags, None, 0, ctypes.byref(needed))
        out = (item * max(needed.value, 1))()
        function(self._handle, array, len(array), flags, out, needed.value, ctypes.byref(needed))
        return out[: needed.value]

    def format(self, messages, opened=False) -> str:
        return self.call(core.tv_chat_format, ctypes.c_char, messages, opened).decode()

    def encode(self, messages, opened=False) -> list[int]:
        return self.call(core.tv_chat_encode, ctypes.c_int32, messages, opened)


def conversations(chat: ChatFormat, count: int):
    rng = random.Random(1)
    contents = ["Hi", "", "  a\u3000", "\x1c\n", "日本語 <|end|>", "</s>{{ x }}", "\u0085x\u00a0"]
    for _ in range(count):
        roles = ["system"] * ("system" in chat.roles and rng.random() < 0.5)
        roles += ["user", "assistant"] * rng.randint(0, 3) + ["user"]
        yield [{"role": r, "content": rng.choice(contents)} for r in roles]


@pytest.mark.parametrize("name", DERIVED)
def test_derived_formats_make_the_templates_text(name: str, tmp_path: Path) -> None:
    source = chat_templates.EVERY[name]
    template = ChatTemplate(source, **TOKENS)
    chat = derive_chat_format(source, **TOKENS)
    native = NativeChat(tmp_path, chat.metadata())
    for messages in conversations(chat, 30):
        for opened in (False, True):
            wanted = template.render(messages, opened)
            assert chat.format(messages, opened) == wanted
            assert native.format(messages, opened) == wanted
            assert native.tokenizer.decode(native.encode(messages, opened)) == wanted


def test_what_is_found() -> None:
    chat = derive_chat_format(chat_templates.DEFAULT_SYSTEM)
    assert chat.start == ""
    assert chat.default_system == "<|im_start|>system\nYou are helpful<|im_end|>\n"
    assert chat.roles["user"] == ("<|im_start|>user\n", "<|im_end|>\n")
    assert chat.generation == "<|im_start|>assistant\n"
    assert not chat.trim
    assert derive_chat_format(chat_templates.LLAMA3, **TOKENS).start == "<s>"
    assert derive_chat_format(chat_templates.GEMMA, **TOKENS).trim
    assert "system" not in derive_chat_format(chat_templates.FOLDED_SYSTEM).roles


REFUSED = {
    "joined": "{% for m in messages %}{{ m.content }}{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}",
    "numbered": "{% for m in messages %}{{ loop.index ~ m.content }}.{% endfor %}",
    "cut": "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}{% endfor %}",
    "one side trimmed": "{% for m in messages %}<{{ m.role }}>{{ m.content.rstrip() }}{% endfor %}",
    "empty left out": "{% for m in messages if m.content %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "last only": "{{ messages[-1].content }}",
    "twice": "{% for m in messages %}{{ m.content ~ m.content }}{% endfor %}",
    "dated": "{{ strftime_now('%d') }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "upper": "{% for m in messages %}<{{ m.role }}>{{ m.content | upper }}{% endfor %}",
    "failing": "{{ raise_exception('never') }}",
    "hostile": "{% for i in range(10**9) %}{% endfor %}",
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_templates_are_refused(name: str) -> None:
    with pytest.raises(TemplateError, match=r"\[chat (format|template)\] ."):
        derive_chat_format(REFUSED[name])


def test_tools_handled_specially_leave_the_rest() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'tool' %}<tool>{{ m.content | tojson }}"
        "{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
    )
    assert set(derive_chat_format(source).roles) == {"system", "user", "assistant"}


def test_a_message_cannot_end_its_turn(tmp_path: Path) -> None:
    chat = derive_chat_format("{% for m in messages %}{{ m.role ~ ':' ~ m.content ~ '<|end|>' }}{% endfor %}")
    native = NativeChat(tmp_path, chat.metadata())
    ids = native.encode([{"role": "user", "content": "a<|end|><|end|>"}])
    assert ids.count(native.tokenizer.eos_id) == 1
    with pytest.raises(TemplateError, match="'narrator'"):
        native.format([{"role": "narrator", "content": "x"}])
    with pytest.raises(TemplateError, match="narrator"):
        chat.format([{"role": "narrator", "content": "x"}])


def test_a_file_without_a_format_says_why(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="the template writes the date"):
        NativeChat(tmp_path, {"trivet.chat.refused": "the template writes the date"})


@pytest.mark.model
def test_smollm2(smollm2_path: Path) -> None:
    chat = derive_chat_format(GGUFFile.open(smollm2_path).metadata["tokenizer.chat_template"])
    assert "trained by Hugging Face" in chat.default_system
    text = chat.format([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    ids = Tokenizer.open(smollm2_path).encode(text, parse_special=True)
    assert (ids[0], ids.count(1), ids.count(2)) == (1, 3, 2)
