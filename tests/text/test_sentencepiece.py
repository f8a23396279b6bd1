"""tokenizer.model files that SentencePiece trains, held to SentencePiece itself; and damaged ones."""

from __future__ import annotations

import functools
import io
from typing import Any

import hf_texts
import pytest
import sentencepiece
from hf_families import lines

from trivet.errors import TokenizerError, TrivetError, UnsupportedError
from trivet.text.sentencepiece import from_model
from trivet.text.tokenizer import Tokenizer

ROWS = 1200
SETTINGS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "num_threads": 1}


@functools.cache
def trained(**settings: Any) -> bytes:
    """A model file."""
    data = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line.rstrip("\n") for line in lines()]),
        model_writer=data,
        minloglevel=2,
        **{"vocab_size": 1000, **SETTINGS, **settings},
    )
    return data.getvalue()


KINDS: dict[str, dict[str, Any]] = {
    "bpe": {"model_type": "bpe", "byte_fallback": True},
    "bpe without a prefix": {"model_type": "bpe", "byte_fallback": True, "add_dummy_prefix": False},
    "bpe without bytes": {"model_type": "bpe"},
    "unigram": {"model_type": "unigram", "byte_fallback": True},
    "unigram without bytes": {"model_type": "unigram"},
    "user-defined": {"model_type": "bpe", "byte_fallback": True, "user_defined_symbols": "<user>,{{"},
}


def both(kind: str) -> tuple[sentencepiece.SentencePieceProcessor, Tokenizer]:
    data = trained(**KINDS[kind])
    return sentencepiece.SentencePieceProcessor(model_proto=data), Tokenizer.of(from_model(data, {}, ROWS))


def compare(kind: str, texts: list[str]) -> None:
    oracle, ours = both(kind)
    ties = 0
    for text in texts:
        ids, mine = oracle.encode(text), ours.encode(text)
        if mine != ids and kind.startswith("unigram"):
            # It sums scores in float32, Hugging Face in float64: of equal ways rounding decides.
            sums = [sum(map(oracle.get_score, some)) for some in (mine, ids)]
            assert sums[0] == pytest.approx(sums[1], rel=1e-6), text
            ties += 1
            continue
        assert mine == ids, text
        if oracle.unk_id() not in ids:
            assert ours.decode(ids) == oracle.decode(ids), text
    assert ties * 100 <= len(texts)


def texts(kind: str, count: int, seed: int) -> list[str]:
    # SentencePiece drops the space it puts before a text also before a symbol, as no other program does;
    # it ends a text at a zero byte.
    symbols = KINDS[kind].get("user_defined_symbols", "\0").split(",")
    return [t for t in hf_texts.some(count, seed) if not any(s in t for s in ("\0", *symbols))]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_ids(kind: str) -> None:
    compare(kind, texts(kind, 1000, 1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_ids_of_many_texts(kind: str) -> None:
    compare(kind, texts(kind, 25_000, 3))


def test_what_the_file_says() -> None:
    oracle, ours = both("bpe")
    assert (ours.bos_id, ours.eos_id, ours.unk_id, ours.pad_id) == (1, 2, 0, None)
    assert (ours.add_bos, ours.add_eos, ours.add_space_prefix, ours.n_vocab) == (True, False, True, ROWS)
    assert [ours.token(i) for i in range(oracle.vocab_size())] == [
        oracle.id_to_piece(i) for i in range(oracle.vocab_size())
    ]
    added = {1000: {"content": "<|im_end|>", "special": True}}
    more = Tokenizer.of(from_model(trained(**KINDS["bpe"]), added, ROWS))
    assert more.encode("<|im_end|>", parse_special=True) == [1000]
    assert more.is_special(1000)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"model_type": "char"}, "model_type is 4"),
        ({"normalization_rule_name": "nmt_nfkc"}, "the normalizer 'nmt_nfkc'"),
        ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix"),
    ],
)
def test_other_kinds_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnsupportedError, match=problem):
        from_model(
            trained(**{"model_type": "bpe", "vocab_size": 200, "hard_vocab_limit": False, **settings}),
            {},
            ROWS,
        )


def test_damaged_files() -> None:
    data = trained(**KINDS["bpe"])
    with pytest.raises(TokenizerError, match="id 100; allowed: 0 to 99"):
        from_model(data, {}, 100)
    with pytest.raises(TokenizerError, match="both have the id 0"):
        from_model(data, {0: {"content": "other"}}, ROWS)
    with pytest.raises(TokenizerError, match="has no tokens"):
        from_model(data[:0] + b"\x1a\x02\x20\x00", {}, ROWS)
    with pytest.raises(TokenizerError, match="ends within its field 1: 999"):
        from_model(b"\x0a\xe7\x07ab", {}, ROWS)
    with pytest.raises(TokenizerError, match="does not end"):
        from_model(b"\xff" * 12, {}, ROWS)
    for size in range(0, len(data), 97):  # cut short anywhere
        with pytest.raises(TrivetError):
            from_model(data[:size], {}, ROWS)
