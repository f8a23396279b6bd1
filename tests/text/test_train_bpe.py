"""Tokenizers made from a corpus, held to the trainer of Hugging Face's `tokenizers`."""

import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivet.errors import InputError
from trivet.text import train_bpe
from trivet.text.tokenizer import Tokenizer

tokenizers = pytest.importorskip("tokenizers")

import tokenizer_tables  # noqa: E402

TEXT = "\n".join(tokenizer_tables.corpus())
MIXED = (
    "aaaa aaaaaaaa abab ababab\n\n\n  x  y\t\r\n٣٤५ ½Ⅷ 一二 e\u0301 \u2028\u3000\x85\x1c_A9'll'LL naïve's\x00"
)
MIXED += " \U0001f999\U0001f999"


def theirs(texts, vocab):
    """Their merges, in our order of ids: without special tokens, with all bytes, nothing seen only once."""
    oracle = tokenizers.Tokenizer(tokenizers.models.BPE())
    oracle.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab - 1,
        min_frequency=train_bpe.SEEN,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    oracle.train_from_iterator(texts, trainer)
    return oracle


def spelled(merges):
    return [[train_bpe.spelled(a), train_bpe.spelled(b)] for a, b in merges]


@pytest.mark.parametrize("texts", [[TEXT], TEXT.splitlines(), [MIXED], [TEXT, MIXED], ["aaaaaaaaaaaa"], [""]])
@pytest.mark.parametrize("vocab", [257, 300, 900])
def test_merges_are_those_of_hugging_face(texts, vocab):
    """Ties and all: they, too, take the smallest ids of equals, and number the bytes alike."""
    oracle = theirs(texts, vocab)
    merges = train_bpe.train(texts, vocab)
    assert spelled(merges) == json.loads(oracle.to_str())["model"]["merges"]
    ours = Tokenizer.of(train_bpe.metadata(merges))
    assert ours.n_vocab == oracle.get_vocab_size() + 1
    for text in (TEXT, MIXED, "unseen: Größe, 漢字, 🙂"):
        assert ours.encode(text) == oracle.encode(text).ids
        assert ours.decode(ours.encode(text)) == text


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(st.sampled_from("ab c'\n1é\u3000"), max_size=40), max_size=6), st.integers(257, 330))
def test_any_text_gives_their_merges(texts, vocab):
    merges = json.loads(theirs(texts, vocab).to_str())["model"]["merges"]
    assert spelled(train_bpe.train(texts, vocab)) == merges


def test_words_are_those_of_the_core():
    """No merge crosses a border between words: a tokenizer with all words as tokens gives each one back."""
    words = train_bpe.Words()
    words.add(MIXED + TEXT)
    counted = Counter[str]()
    oracle = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    counted.update(word for word, _ in oracle.pre_tokenize_str(MIXED + TEXT))
    assert {train_bpe.spelled(w.encode()): n for w, n in words.counts.items()} == counted


def test_the_order_of_texts_does_not_matter():
    texts = TEXT.splitlines()
    merges = train_bpe.train(texts, 700)
    for seed in range(3):
        random.Random(seed).shuffle(texts)
        assert train_bpe.train(texts, 700) == merges


def test_bytes_alone():
    tokenizer = Tokenizer.of(train_bpe.metadata([]))
    assert tokenizer.n_vocab == 257
    assert tokenizer.bos_id == tokenizer.eos_id == 256
    assert tokenizer.end_ids == {256}
    assert not tokenizer.add_bos
    assert tokenizer.token(256) == train_bpe.END
    assert b"".join(map(tokenizer.token_bytes, range(256))) == train_bpe.ALPHABET
    assert sorted(train_bpe.ALPHABET) == list(range(256))
    assert len(tokenizer.encode(MIXED)) == len(MIXED.encode())
    assert tokenizer.encode(train_bpe.END, parse_special=True) == [256]
    assert len(tokenizer.encode(train_bpe.END)) == len(train_bpe.END)


def test_a_word_without_end_takes_no_time_without_end():
    merges = train_bpe.train(["ab" * 300_000, "acgt" * 100_000], 400)
    assert len(merges) > 10


@pytest.mark.parametrize("vocab", [0, 256, -1, 2**21, True, "900"])
def test_a_size_out_of_bounds(vocab):
    with pytest.raises(InputError, match="vocab"):
        train_bpe.train(["text"], vocab)
