"""The ways byte-level BPE tokenizers cut a text before merging: the names GGUF gives them, and the regular
expressions Hugging Face's tokenizer.json spells them with. One table for reading and for writing.

A way is a chain of expressions: each cuts what the one before left, into its matches and what lies between.
The native scanners of the same names are in native/src/text/pretokenize.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGIT = r"\p{N}"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s|" + _TAIL
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_MARKED = (
    _SHORT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Letters that have case, as Unicode stood when DeepSeek's tokenizers were made.
_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
_SIGNS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

_TEKKEN = _CASED % ("", "", "")
_GPT4O = _CASED % (_SHORT + "?", _SHORT + "?", "{1,3}")

Chain = tuple[str, ...]
WORDS3: Chain = (_WORDS % "{1,3}",)
WORDS1: Chain = (_WORDS % "",)
#: expressions that cut as another does -> that other
_SAME = {_CL100K % "{1,3}": WORDS3[0], _CL100K % "": WORDS1[0], _WORDS % "{1}": WORDS1[0]}
#: expressions that leave nothing between their matches
_ALL = (WORDS3[0], WORDS1[0], _MARKED, _TEKKEN, _GPT4O)


@dataclass(frozen=True, slots=True)
class Family:
    """`whole`: a piece that is a token is not merged. `nfc`: text is first normalised to NFC."""

    chain: Chain
    whole: bool = False
    nfc: bool = False


#: tokenizer.ggml.pre -> how its tokenizers work, unless the file says otherwise (see METADATA)
FAMILIES: dict[str, Family] = {
    "gpt-2": Family((GPT2,)),
    "olmo": Family((GPT2,), nfc=True),
    "smollm": Family((DIGIT, GPT2)),
    "llama-bpe": Family(WORDS3, whole=True),
    "dbrx": Family(WORDS3),
    "qwen2": Family(WORDS1, nfc=True),
    "stablelm2": Family(WORDS1),
    "qwen35": Family((_MARKED,)),
    "tekken": Family((_TEKKEN,), whole=True),
    "gpt-4o": Family((_GPT4O,)),
    "deepseek-llm": Family(("[\r\n]", rf"\s?[{_LETTERS}]+", rf"\s?[{_SIGNS}]+", r"\s+$", _HAN, DIGIT)),
    "deepseek-coder": Family(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, DIGIT)),
    "deepseek-v3": Family((r"\p{N}{1,3}", _KANA, _V3)),
}
#: other names for the same
ALIASES = {
    **dict.fromkeys(("default", "gpt2", "mpt", "phi-2"), "gpt-2"),
    **dict.fromkeys(("starcoder", "refact", "command-r"), "smollm"),
    **dict.fromkeys(("llama3", "llama-v3"), "llama-bpe"),
    "smaug-bpe": "dbrx",
    "deepseek-r1-qwen": "stablelm2",
}
#: metadata keys of ours for what a name does not say
NFC, WHOLE = "trivet.tokenizer.nfc", "trivet.tokenizer.ignore_merges"


def family(metadata: Mapping[str, Any]) -> Family | None:
    """The family of a byte-level tokenizer's metadata, or None if it has a name not known here."""
    pre = metadata.get("tokenizer.ggml.pre", "default")
    named = FAMILIES.get(ALIASES.get(pre, pre)) if isinstance(pre, str) else None
    if named is None:
        return None
    nfc, whole = metadata.get(NFC, named.nfc), metadata.get(WHOLE, named.whole)
    return Family(named.chain, bool(whole), bool(nfc))


def metadata(wanted: Family) -> dict[str, Any] | None:
    """The metadata that says a family: its name, and what the name does not say. None without one."""
    named = [(name, f) for name, f in FAMILIES.items() if f.chain == wanted.chain]
    if not named:
        return None
    # The name that says most, and of those the first.
    name, nearest = max(named, key=lambda n: 2 * (n[1].whole == wanted.whole) + (n[1].nfc == wanted.nfc))
    said: dict[str, Any] = {"tokenizer.ggml.pre": name}
    if nearest.nfc != wanted.nfc:
        said[NFC] = wanted.nfc
    if nearest.whole != wanted.whole:
        said[WHOLE] = wanted.whole
    return said


def chain_of(pre_tokenizer: Any) -> Chain | None:
    """The chain of a pre_tokenizer of tokenizer.json; None where it is not cuts and then ByteLevel."""
    steps: Any = [pre_tokenizer]
    if isinstance(pre_tokenizer, dict) and pre_tokenizer.get("type") == "Sequence":
        steps = pre_tokenizer.get("pretokenizers")
    if not isinstance(steps, list) or not steps or not all(isinstance(s, dict) for s in steps):
        return None
    *splits, last = steps
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True):
        return None
    chain = [_expression(step) for step in splits]
    if last.get("use_regex", True):
        chain.append(GPT2)
    known = [_SAME.get(e, e) for e in chain if e is not None]
    return tuple(known) if len(known) == len(chain) else None


def _expression(step: dict[str, Any]) -> str | None:
    if step.get("type") == "Digits":
        return DIGIT if step.get("individual_digits") else DIGIT + "+"
    ways = (("Isolated", False), ("Removed", True))  # "Removed", inverted, keeps the matches alone
    pattern = step.get("pattern")
    if step.get("type") != "Split" or (step.get("behavior"), step.get("invert", False)) not in ways:
        return None
    if not isinstance(pattern, dict) or not isinstance(pattern.get("Regex"), str):
        return None
    expression: str = pattern["Regex"]
    return expression if step["behavior"] == "Isolated" or _SAME.get(expression, expression) in _ALL else None


def pre_tokenizer(chain: Chain) -> dict[str, Any]:
    """The pre_tokenizer of tokenizer.json for a chain: the inverse of chain_of."""
    *splits, last = chain
    if last != GPT2:
        splits.append(last)
    steps = [
        {"type": "Digits", "individual_digits": True}
        if e == DIGIT
        else {"type": "Split", "pattern": {"Regex": e}, "behavior": "Isolated", "invert": False}
        for e in splits
    ]
    return {"type": "Sequence", "pretokenizers": [*steps, byte_level(use_regex=last == GPT2)]}


def byte_level(use_regex: bool = True) -> dict[str, Any]:
    """The step, the decoder or the post-processor that spells bytes."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
