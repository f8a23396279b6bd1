"""Texts that tokenizers disagree about, and random ones of the same kinds."""

from __future__ import annotations

import random
import unicodedata

from hf_families import lines

KNOWN = [
    "This is 🦙.cpp",
    "7777 + 3333",
    "<|endoftext|>text",
    "<s>text</s> text",
    "text <user>  text<|end|>  \n text",
    " leading",
    "  two, trailing  ",
    "it's 'LL I'll WE'VE 'ſ don’t",
    "<|begin_of_text|> <0x41> <unk> ▁ ▁▁▁",
    "eeeeeee eee ee eeeeeeeeeee",
    "\r\n\n\n \t\n x",
    "½ Ⅷ ١٢٣ 1234567890",
    "日本語 한국어 e\u0301 \u1112\u1161\u11ab o\u0308\u0323",
    "",
]
SPECIALS = [
    "<|endoftext|>",
    "<s>",
    "</s>",
    "<user>",
    "<|end|>",
    "<|user|>",
    "<mask>",
    "<unk>",
    "<|eot_id|>",
    "<|x|>",
    "<|begin_of_text|>",
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    "<|EOT|>",
]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u0085", "\x0b", "\x1c", "\u2028", "\u200b"]
SHORT = [
    "'s",
    "'S",
    "'t",
    "'re",
    "'VE",
    "'ll",
    "'d",
    "'ſ",
    "’s",
    "'",
    "/",
    "//",
    "!",
    "?!",
    "...",
    "$",
    "+",
    "=",
]
MARKS = ["\u0301", "\u0308", "\u0323", "\u0327", "\u0338", "\u093c", "\u094d", "\u1161", "\u11a8", "\u0591"]
LETTERS = [
    "a",
    "Z",
    "Zebra",
    "8642",
    "ab",
    "Abc",
    "ABC",
    "aB",
    "é",
    "ǅ",
    "ʰ",
    "ª",
    "日",
    "本語",
    "한",
    "ا",
    "क",
    "ß",
    "İ",
    "Ω",
    "ɐ",
]
NUMBERS = ["0", "7", "12", "3456", "78901", "½", "²", "Ⅷ", "١", "〇"]
_KINDS = [SPACES, SHORT, MARKS, LETTERS, NUMBERS]


def some(count: int, seed: int = 1) -> list[str]:
    """So many texts, the known ones first."""
    draw = random.Random(seed)
    makers = [_mixed, _mixed, _random, _around, _code, _run, _with_specials, _decomposed]
    texts = [*KNOWN, *("".join(w) for w in ([c * 3000] for c in ("a", " ", "\n", "7", "日", "<", "ab ")))]
    while len(texts) < count:
        texts.append(makers[len(texts) % len(makers)](draw))
    return texts


def _point(draw: random.Random) -> str:
    """A character: of the first blocks as often as of all others."""
    while True:
        c = draw.choice(
            (draw.randrange(0x250), draw.randrange(0x3400), draw.randrange(0x20000), draw.randrange(0x110000))
        )
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def _mixed(draw: random.Random) -> str:
    return "".join(draw.choice(draw.choice(_KINDS)) for _ in range(draw.randint(1, 14)))


def _random(draw: random.Random) -> str:
    return "".join(_point(draw) for _ in range(draw.randint(1, 24)))


def _around(draw: random.Random) -> str:
    """A character among letters, digits, signs and spaces: its class decides where the cuts are."""
    a, b = _point(draw), _point(draw)
    return f"a{a}1{a}!{a} {a}{b}Z{b}\n{a}'s{b}/{a}{a}"


def _code(draw: random.Random) -> str:
    return "".join(draw.choice(lines()) for _ in range(draw.randint(1, 3)))


def _run(draw: random.Random) -> str:
    runs = (draw.choice([*SPACES, *LETTERS, *NUMBERS, "▁", "e", "!"]) * draw.randint(1, 40) for _ in range(3))
    return "".join(runs)


def _with_specials(draw: random.Random) -> str:
    return "".join(draw.choice(draw.choice([SPECIALS, SPACES, LETTERS])) for _ in range(draw.randint(1, 8)))


def _decomposed(draw: random.Random) -> str:
    text = "".join(draw.choice([*LETTERS, *MARKS, *MARKS, "o", "A", "\u1100", "\uac00"]) for _ in range(10))
    return unicodedata.normalize("NFD", text + _random(draw)) if draw.random() < 0.5 else text
