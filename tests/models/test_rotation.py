"""Rotations out of metadata and config.json: what does not fit is a typed error, and Llama 3's numbers are
found in the divisors that they made."""

import numpy as np
import pytest

import tiny_model
from trivet import models
from trivet.dtypes import f32
from trivet.errors import ModelError, UnsupportedError
from trivet.models.checkpoint import Checkpoint, Entry, open_checkpoint
from trivet.models.rope import hf_llama3, hf_rope_config, hf_rope_metadata


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return open_checkpoint(tiny_model.write(tmp_path_factory.mktemp("model") / "m.gguf"))


def changed(whole, divisors=None, **keys):
    """The tiny model, whose heads are of 16 elements, with other keys under llama.rope."""
    tensors = dict(whole.tensors)
    if divisors is not None:
        array = np.asarray(divisors, np.float32)
        tensors["rope_freqs.weight"] = Entry(f32, array.shape, lambda: array)
    more = {f"llama.rope.{key.replace('__', '.')}": value for key, value in keys.items()}
    return Checkpoint(whole.path, {**whole.metadata, **more}, tensors)


YARN = {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__original_context_length": 64}


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"freq_base": 10**400}, "freq_base"), ({**YARN, "freq_base": 1.0}, "freq_base"),
        ({**YARN, "scaling__yarn_beta_fast": 1e300}, "beta_fast"),
        ({**YARN, "scaling__original_context_length": 0}, "original_context_length"),
        ({**YARN, "scaling__attn_factor": -1.0}, "attn_factor"),
        ({**YARN, "scaling__yarn_attn_factor": "x"}, "yarn_attn_factor"),
        ({"scaling__factor": 1e-300}, "factor"), ({"scale_linear": "x"}, "scale_linear"),
        ({"divisors": [1, 2, 3, 4, 5, 6, 7, 0]}, "rope_freqs.weight"),
        ({"divisors": [1, 2, 3, 4, 5, 6, 7, np.nan]}, "rope_freqs.weight"),
        ({"divisors": [1, 2, 3]}, "rope_freqs.weight"),
    ],
)  # fmt: skip
def test_metadata_that_does_not_fit(whole, keys, word):
    with pytest.raises(ModelError, match=word):
        models.build(changed(whole, **keys))


def test_scaling_of_older_files(whole):
    new = models.build(changed(whole, scaling__type="linear", scaling__factor=2.0)).config.rope
    for keys in ({"scaling__factor": 2.0}, {"scale_linear": 2.0}):
        assert np.array_equal(models.build(changed(whole, **keys)).config.rope.inv_freq, new.inv_freq)
    for keys in ({"scaling__type": "none", "scaling__factor": 2.0}, {"scaling__factor": 0.0}):
        assert np.array_equal(models.build(changed(whole, **keys)).config.rope.inv_freq, 2 * new.inv_freq)


@pytest.mark.parametrize("dim", [16, 64, 128])
@pytest.mark.parametrize(
    ("factor", "low", "high", "context"), [(8, 1, 4, 8192), (32, 1, 4, 8192), (8, 2, 6, 4096)]
)
def test_llama3s_numbers_are_found(whole, dim, factor, low, high, context):
    theta = 500000.0 if dim > 16 else 10000.0
    scaling = {
        "rope_type": "llama3", "rope_theta": theta, "factor": float(factor), "low_freq_factor": float(low),
        "high_freq_factor": float(high), "original_max_position_embeddings": context,
    }  # fmt: skip
    divisors = hf_llama3({"rope_parameters": scaling}, dim)["rope_freqs.weight"]
    base = changed(whole, divisors, freq_base=theta, dimension_count=dim)
    try:
        made = hf_rope_config(base, dim)
    except UnsupportedError:  # too few frequencies lie between for a line
        assert ((divisors > 1.001) & (divisors < 0.999 * factor)).sum() < 2
        return
    again = hf_llama3(made, dim)["rope_freqs.weight"]
    assert np.allclose(again, divisors, rtol=1e-3)


def test_random_divisors_are_refused_or_found(whole):
    rng = np.random.default_rng(0)
    for _ in range(200):
        divisors = (
            np.exp(rng.uniform(-3, 3, 8)) if rng.random() < 0.5 else rng.choice([1, 2, 8, 1e8, 1e-8], 8)
        )
        with pytest.raises(UnsupportedError):
            hf_rope_config(changed(whole, divisors), 16)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "yarn", "factor": 4.0}, {"rope_type": "llama3", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "truncate": False},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": "x"},
        {"partial_rotary_factor": 1e308}, {"rope_theta": 10**400}, {"type": "bogus"}, [1], 5,
        {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 64},
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit(rope):
    with pytest.raises(ModelError):
        both({"rope_parameters": rope})


def both(config):
    return hf_rope_metadata("llama", config, 16) | hf_llama3(config, 16)


def test_the_newer_of_two_keys_counts():
    rope = {"rope_type": "linear", "type": [1], "factor": 4.0}
    assert both({"rope_parameters": rope})["llama.rope.scaling.type"] == "linear"
