"""A GGUF file's tokenizer as Hugging Face's: the same ids."""

import pytest
from tokenizer_tables import CORPUS, PRE_TOKENIZERS, SPECIAL, bpe_metadata, train_bpe
from tokenizers import Tokenizer

import tiny_model
from trivet.errors import TokenizerError, UnsupportedError
from trivet.text.hf_tokenizer import tokenizer_files


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


def test_refused():
    with pytest.raises(UnsupportedError, match=r"tokenizer \(llama, gpt2\)"):
        tokenizer_files(tiny_model.metadata() | {"tokenizer.ggml.model": "llama"})
    with pytest.raises(UnsupportedError, match="chameleon"):
        tokenizer_files(tiny_model.metadata() | {"tokenizer.ggml.pre": "chameleon"})
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.merges"):
        tokenizer_files({k: v for k, v in tiny_model.metadata().items() if not k.endswith("merges")})
