"""Which files a name stands for."""

import pytest

from trivet.errors import HubError, InputError
from trivet.hub.names import Choice, Name, choose, parse, parsed, quantisations


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("owner/repo", Name("owner/repo")),
        ("o.w-n_er/Re.po-GGUF:q4_K_m", Name("o.w-n_er/Re.po-GGUF", "q4_K_m")),
        ("owner/repo:UD-Q4_K_XL", Name("owner/repo", "UD-Q4_K_XL")),
        ("owner/repo:a/m-Q4_0", Name("owner/repo", "a/m-Q4_0")),
    ],
)
def test_names(text, name):
    assert parse(text) == name
    assert str(name) == text


@pytest.mark.parametrize(
    "text",
    ["repo", "a/b/c", "/a/b", "./a", "../b", "a/b:", "a/..", "a/b..c", "a--b/c", "a/b c", "a/b\n", "é/b", ""],
)
def test_what_is_no_name(text):
    assert parse(text) is None
    with pytest.raises(InputError, match="OWNER/REPO"):
        parsed("pull", text)


@pytest.mark.parametrize(
    ("file", "label"),
    [
        ("SmolLM2-135M-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("smollm2.q8_0.gguf", "Q8_0"),
        ("gemma-3-270m-it-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Qwen3-0.6B-IQ4_XS.gguf", "IQ4_XS"),
        ("model-BF16.gguf", "BF16"),
        ("model-fp16.gguf", "FP16"),
        ("model-f32.gguf", "F32"),
        ("gpt-oss-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("model-TQ1_0.gguf", "TQ1_0"),
        ("Q6_K/model-Q6_K.gguf", "Q6_K"),
        ("ggml-model-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("tinyllama.gguf", "tinyllama"),
        ("SmolLM2-F16-tuned.gguf", "SmolLM2-F16-tuned"),
    ],
)
def test_quantisation_of_a_file_name(file, label):
    assert quantisations([file]) == {label: (file,)}


def test_what_is_no_model_is_left_out():
    assert quantisations(["mmproj-F16.gguf", "a/mmproj-model-F16.gguf", "m.imatrix.gguf", "README.md"]) == {}


def test_parts_are_one_model_and_only_if_all_are_there():
    parts = [f"Q8_0/m-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert quantisations(parts[::-1]) == {"Q8_0": tuple(parts)}
    assert quantisations(parts[:2]) == {}
    assert quantisations(parts[1:]) == {}
    assert quantisations([*parts, "m-Q4_0.gguf"]) == {"Q8_0": tuple(parts), "Q4_0": ("m-Q4_0.gguf",)}


def test_two_of_one_quantisation_have_their_names():
    files = ["a/x-Q4_0.gguf", "b/x-q4_0.gguf", "x-Q8_0.gguf"]
    assert quantisations(files) == {
        "a/x-Q4_0": ("a/x-Q4_0.gguf",), "b/x-q4_0": ("b/x-q4_0.gguf",), "Q8_0": ("x-Q8_0.gguf",)
    }  # fmt: skip
    assert choose(Name("o/r", "b/x-q4_0"), files).files == ("b/x-q4_0.gguf",)


GGUFS = ["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf"]
FOLDER = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "README.md",
    "pytorch_model.bin",
    "a/model.safetensors",
]


def test_the_default_and_any_case():
    assert choose(Name("o/r"), GGUFS) == Choice("Q4_K_M", ("m-Q4_K_M.gguf",))
    assert choose(Name("o/r", "q8_0"), GGUFS) == Choice("Q8_0", ("m-Q8_0.gguf",))
    assert choose(Name("o/r", "M-Q8_0.GGUF"), GGUFS) == Choice("Q8_0", ("m-Q8_0.gguf",))
    assert choose(Name("o/r"), ["m-Q2_K.gguf"]) == Choice("Q2_K", ("m-Q2_K.gguf",))


def test_a_quantisation_that_is_not_there_lists_those_that_are():
    with pytest.raises(HubError, match=r"o/r has no Q5_0; it has: Q4_K_M, Q8_0$"):
        choose(Name("o/r", "Q5_0"), GGUFS)
    with pytest.raises(HubError, match=r"has no Q4_K_M; say which: Q2_K, Q8_0; as in o/r:Q2_K"):
        choose(Name("o/r"), ["m-Q2_K.gguf", "m-Q8_0.gguf"])


def test_safetensors_before_gguf_unless_a_quantisation_is_asked_for():
    side = ("config.json", "tokenizer.json", "model.safetensors")
    assert choose(Name("o/r"), [*GGUFS, *FOLDER]) == Choice(None, side)
    assert choose(Name("o/r", "Q8_0"), [*GGUFS, *FOLDER]).files == ("m-Q8_0.gguf",)
    with pytest.raises(HubError, match="no GGUF file, so no Q8_0; it has safetensors: leave out :Q8_0"):
        choose(Name("o/r", "Q8_0"), FOLDER)


def test_shards_come_with_their_index_and_without_what_is_no_shard():
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = "model.safetensors.index.json"
    found = choose(Name("o/r"), ["config.json", index, *shards, "consolidated.safetensors"])
    assert found.files == ("config.json", index, *shards)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (["config.json", "pytorch_model.bin"], "pickle.*pytorch_model.bin.*runs code"),
        (["adapter_config.json", "adapter_model.safetensors"], "adapter"),
        (["README.md"], "no model in it"),
        ([], "no model in it"),
        (["model.safetensors"], "no model in it"),
    ],
)
def test_what_is_not_fetched_says_why(files, why):
    with pytest.raises(HubError, match=why):
        choose(Name("o/r"), files)
