"""Tokenizers made from a corpus: the 256 bytes alone, or byte-level BPE (Sennrich et al. 2016, Radford et al.
2019).

Ids: 0 to 255 are the bytes in the order of the characters that spell them, then the merges' products in the
order they were made, then the token that ends a text.

Merged next is the pair of neighbours that occurs most often; of equals, that of the smallest left id, then
of the smallest right id. So the result is a function of the counts of words, whatever order they come in.
"""

from __future__ import annotations

import heapq
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from trivet import arguments

END = "<|endoftext|>"
BYTES = 256
LEAST = BYTES + 1  # tokens of the smallest vocabulary: bytes, and the end
MOST = 1 << 20
LONGEST = 512  # bytes of a word; longer ones are counted in parts
SEEN = 2  # a pair that occurs less often is not merged

_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_PRINTED = (*range(33, 127), *range(161, 173), *range(174, 256))


def _alphabet() -> list[int]:
    """The bytes in the order of the characters that spell them: those that print as themselves, in Latin-1,
    then the rest, from U+0100 on."""
    return [*_PRINTED, *(b for b in range(BYTES) if b not in _PRINTED)]


ALPHABET = bytes(_alphabet())  # id -> byte
_IDS = bytes(ALPHABET.index(b) for b in range(BYTES))  # byte -> id
_SPELLED = [chr(b) if i < len(_PRINTED) else chr(256 + i - len(_PRINTED)) for i, b in enumerate(ALPHABET)]


class Words:
    """Counts the words that GPT-2's pre-tokeniser cuts texts into, as bytes."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._known: set[str] = set()
        self._classes = {"L": set[str](), "N": set[str]()}
        self._pattern = self._compiled()

    def add(self, text: str) -> None:
        """Counts the words of a text."""
        if new := set(text) - self._known:
            self._known |= new
            for char in new:
                if (kind := unicodedata.category(char)[0]) in self._classes:
                    self._classes[kind].add(char)
            self._pattern = self._compiled()
        self.counts.update(self._pattern.findall(text))

    def _compiled(self) -> re.Pattern[str]:
        """The pattern over the characters that were seen: Python has no classes for letters and numbers."""
        letters, numbers = (re.escape("".join(sorted(chars))) for chars in self._classes.values())
        spaces = re.escape(_SPACES)
        runs = [f" ?[{chars}]+" for chars in (letters, numbers) if chars]
        runs += [f" ?[^{spaces}{letters}{numbers}]+", f"[{spaces}]+(?![^{spaces}])", f"[{spaces}]+"]
        return re.compile("|".join(["'(?:s|t|re|ve|m|ll|d)", *runs]))

    def ids(self) -> dict[bytes, int]:
        """The words as byte ids with their counts; long ones in parts."""
        made: Counter[bytes] = Counter()
        for word, count in self.counts.items():
            data = word.encode().translate(_IDS)
            for at in range(0, len(data), LONGEST):
                made[data[at : at + LONGEST]] += count
        return made


def train(
    texts: Iterable[str], vocab: int, advance: Callable[[int], None] = lambda _: None
) -> list[tuple[bytes, bytes]]:
    """The merges of a vocabulary of `vocab` tokens, as pairs of bytes; fewer where the texts have no more.

    `advance` is told how many more merges are made. Raises InputError for a size out of bounds."""
    wanted = arguments.integer(vocab, "[tokenizer] vocab", LEAST, MOST) - LEAST
    words = Words()
    for text in texts:
        words.add(text)
    return _Merging(words.ids()).run(wanted, advance) if wanted else []


@dataclass(slots=True)
class _Merging:
    """Words as lists of ids; how often each pair of neighbours occurs, in which words, and a heap of them, in
    which counts may be older, and so larger, than they are."""

    given: Mapping[bytes, int]
    tokens: list[bytes] = field(default_factory=lambda: [bytes([b]) for b in ALPHABET])
    pairs: Counter[tuple[int, int]] = field(default_factory=Counter)
    where: defaultdict[tuple[int, int], set[int]] = field(default_factory=lambda: defaultdict(set))

    def run(self, wanted: int, advance: Callable[[int], None]) -> list[tuple[bytes, bytes]]:
        words, counts = [list(word) for word in self.given], list(self.given.values())
        for index, word in enumerate(words):
            for pair in pairwise(word):
                self.pairs[pair] += counts[index]
                self.where[pair].add(index)
        heap = [(-count, pair) for pair, count in self.pairs.items()]
        heapq.heapify(heap)
        ids = {token: i for i, token in enumerate(self.tokens)}
        merges: list[tuple[bytes, bytes]] = []
        while heap and len(self.tokens) < BYTES + wanted:
            before, pair = heapq.heappop(heap)
            count = self.pairs[pair]
            if count != -before:
                if count > 0:
                    heapq.heappush(heap, (-count, pair))
                continue
            if count < SEEN:
                break
            left, right = (self.tokens[i] for i in pair)
            product = ids.setdefault(left + right, len(self.tokens))
            if product == len(self.tokens):
                self.tokens.append(left + right)
            merges.append((left, right))
            for made in self._merge(pair, product, words, counts):
                heapq.heappush(heap, (-self.pairs[made], made))
            advance(1)
        return merges

    def _merge(
        self, pair: tuple[int, int], product: int, words: list[list[int]], counts: list[int]
    ) -> set[tuple[int, int]]:
        """Replaces the pair in all words; gives the pairs that occur more often than before."""
        made: set[tuple[int, int]] = set()
        pairs, where = self.pairs, self.where
        for index in where.pop(pair):
            word, count = words[index], counts[index]
            out = _merged(word, pair, product)
            if len(out) == len(word):  # it went with an earlier merge
                continue
            for old in pairwise(word):
                pairs[old] -= count
            for new in pairwise(out):
                pairs[new] += count
                if product in new:
                    made.add(new)
                    where[new].add(index)
            words[index] = out
        return made


def _merged(word: Sequence[int], pair: tuple[int, int], product: int) -> list[int]:
    """The word with the pair made one, from the left.

    >>> _merged([1, 1, 1, 2], (1, 1), 9)
    [9, 1, 2]
    """
    left, right = pair
    out: list[int] = []
    at, last = 0, len(word) - 1
    while at <= last:
        if word[at] == left and at < last and word[at + 1] == right:
            out.append(product)
            at += 2
        else:
            out.append(word[at])
            at += 1
    return out


# --- as GGUF has it ---------------------------------------------------------------------------------------


def spelled(token: bytes) -> str:
    """
    >>> spelled(b" a\\n")
    'ĠaĊ'
    """
    return "".join(_SPELLED[_IDS[b]] for b in token)


def metadata(merges: Sequence[tuple[bytes, bytes]]) -> dict[str, Any]:
    """The tokenizer as GGUF metadata. Without merges a token is a byte."""
    products = dict.fromkeys(left + right for left, right in merges)
    tokens = [*_SPELLED, *map(spelled, products), END]
    pairs = [f"{spelled(left)} {spelled(right)}" for left, right in merges]
    end = np.uint32(len(tokens) - 1)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([1] * (len(tokens) - 1) + [3], np.int32),
        "tokenizer.ggml.merges": np.array(pairs, np.str_),  # an array, for it may be empty
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
    }
