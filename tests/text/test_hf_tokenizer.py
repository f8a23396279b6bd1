"""A GGUF file's tokenizer as Hugging Face's: the same ids."""

import json

import hf_texts
import numpy as np
import pytest
from hf_families import FAMILIES, lines
from test_hf_families import rows
from test_sentencepiece import KINDS, both, trained
from tokenizer_tables import CORPUS, PRE_TOKENIZERS, SPECIAL, bpe_metadata, train_bpe
from tokenizers import Tokenizer

import tiny_model
from trivet.errors import TokenizerError, UnsupportedError
from trivet.formats.gguf import GGUFFile
from trivet.text.hf_json import from_json
from trivet.text.hf_tokenizer import tokenizer_files
from trivet.text.sentencepiece import from_model
from trivet.text.tokenizer import Tokenizer as Ours


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_the_same_ids(pre):
    oracle = train_bpe(pre)
    written = Tokenizer.from_str(tokenizer_files(bpe_metadata(oracle, pre))["tokenizer.json"])
    for text in (CORPUS, f"one{SPECIAL}two <user>  12345", "", " \n\n x", "I'll WE'VE é\u0301"):
        assert written.encode(text).ids == oracle.encode(text).ids
        assert written.decode(written.encode(text).ids) == oracle.decode(oracle.encode(text).ids)


def test_bos_is_added_where_the_file_says_so():
    metadata = tiny_model.metadata() | {"tokenizer.ggml.bos_token_id": 260}
    plain = Tokenizer.from_str(tokenizer_files(metadata)["tokenizer.json"]).encode("hell").ids
    metadata["tokenizer.ggml.add_bos_token"] = True
    assert Tokenizer.from_str(tokenizer_files(metadata)["tokenizer.json"]).encode("hell").ids == [260, *plain]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_there_and_back(family):
    whole = FAMILIES[family]()
    metadata = from_json(whole, rows(whole))
    text = tokenizer_files(metadata)["tokenizer.json"]
    again = from_json(json.loads(text), rows(whole))
    assert again.keys() >= metadata.keys() - {"tokenizer.ggml.bos_token_id"}
    for key, value in metadata.items():
        assert np.array_equal(again[key], value), key
    theirs, written = Tokenizer.from_str(json.dumps(whole)), Tokenizer.from_str(text)
    texts = hf_texts.some(200, seed=5)
    for one, other in zip(theirs.encode_batch(texts), written.encode_batch(texts), strict=True):
        assert one.ids == other.ids


@pytest.mark.parametrize("kind", ["bpe", "bpe without a prefix", "unigram"])
def test_scores_without_merges(kind):
    ours = both(kind)[1]
    metadata = from_model(trained(**KINDS[kind]), {}, 1200)
    written = Tokenizer.from_str(tokenizer_files(metadata)["tokenizer.json"])
    # Lines of code; see tokenizer_files of runs, in which the two may differ.
    texts = [t for line in lines() if len(set(t := line.strip())) > len(t) // 3]
    for text, theirs in zip(texts, written.encode_batch(texts), strict=True):
        assert ours.encode(text, add_special=True) == theirs.ids, text


@pytest.mark.model
def test_a_real_vocabulary(smollm2_path):
    metadata = GGUFFile.open(smollm2_path).metadata
    ours, written = Ours.open(smollm2_path), Tokenizer.from_str(tokenizer_files(metadata)["tokenizer.json"])
    texts = hf_texts.some(500, seed=6)
    for text, theirs in zip(texts, written.encode_batch(texts, add_special_tokens=False), strict=True):
        assert ours.encode(text, parse_special=True) == theirs.ids, text


@pytest.mark.slow
@pytest.mark.model
def test_a_real_vocabulary_of_scores(gemma3_path):
    metadata = GGUFFile.open(gemma3_path).metadata
    ours, text = Ours.open(gemma3_path), tokenizer_files(metadata)["tokenizer.json"]
    written, again = Tokenizer.from_str(text), Ours.of(from_json(json.loads(text), ours.n_vocab))
    texts = hf_texts.some(20_000, seed=6)
    for text, theirs in zip(texts, written.encode_batch(texts, add_special_tokens=False), strict=True):
        assert ours.encode(text, parse_special=True) == theirs.ids, text
        assert again.encode(text, parse_special=True) == theirs.ids, text


def test_refused():
    with pytest.raises(UnsupportedError, match=r"tokenizer \(bert, gpt2\)"):
        tokenizer_files(tiny_model.metadata() | {"tokenizer.ggml.model": "bert"})
    with pytest.raises(UnsupportedError, match="chameleon"):
        tokenizer_files(tiny_model.metadata() | {"tokenizer.ggml.pre": "chameleon"})
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.merges"):
        tokenizer_files({k: v for k, v in tiny_model.metadata().items() if not k.endswith("merges")})
