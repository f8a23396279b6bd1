"""Frequencies against transformers, and what the rotation keeps."""

import math

import numpy as np
import pytest

from trivet import dtypes, graph, ops
from trivet.backends.numpy import BACKEND
from trivet.errors import InputError, ShapeError
from trivet.graph import Graph

YARN = {"type": "yarn", "factor": 4.0, "original_context": 1024}
LLAMA3 = {
    "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context": 512,
}  # fmt: skip


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "linear", "factor": 2.5},
        YARN,
        YARN | {"beta_fast": 16, "beta_slow": 2},
        YARN | {"attention_factor": 1.25},
        YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
        YARN | {"truncate": False},
        LLAMA3,
    ],
    ids=lambda s: "-".join(map(str, s.values())),
)
def test_frequencies_are_those_of_transformers(scaling):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    names = {"type": "rope_type", "original_context": "original_max_position_embeddings"}
    parameters = {names.get(k, k): v for k, v in scaling.items()} | {"rope_theta": 5e4}
    config = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=4096, rope_parameters=parameters
    )
    want, scale = ROPE_INIT_FUNCTIONS[scaling["type"]](config, "cpu")
    got, ours = ops.rope_frequencies(64, 5e4, scaling)
    np.testing.assert_allclose(got, want.numpy(), rtol=2e-6)
    assert ours == pytest.approx(scale)


def test_plain_frequencies_and_factors():
    plain, scale = ops.rope_frequencies(8, 1e4)
    np.testing.assert_allclose(plain, [1, 0.1, 0.01, 0.001])
    assert plain.dtype == np.float64
    assert scale == 1
    factored, _ = ops.rope_frequencies(8, 1e4, {"type": "factors", "factors": [1, 2, 4, 8]})
    np.testing.assert_allclose(factored, plain / [1, 2, 4, 8])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((7, 1e4), "dim 7, wanted an even number"),
        ((8, 0.0), "theta 0.0, wanted a positive number"),
        ((8, 1e4, {"type": "abc"}), "rope_type 'abc', wanted one of default, linear"),
        ((8, 1e4, {"type": "linear"}), r"scaling\['factor'\] is None, wanted a positive number"),
        ((8, 1e4, {"type": "linear", "factor": math.inf}), "wanted a positive number"),
        ((8, 1e4, {"type": "factors", "factors": [1.0]}), r"factors of shape \(1,\), wanted \(4,\)"),
        (
            (8, 1e4, LLAMA3 | {"low_freq_factor": 4.0}),
            "low_freq_factor 4.0 is not below high_freq_factor 4.0",
        ),
    ],
)
def test_wrong_scalings_say_what_is_wrong(arguments, message):
    with pytest.raises(InputError, match=message):
        ops.rope_frequencies(*arguments)


def test_scores_depend_on_the_distance_only():
    """Rotating queries and keys by their positions leaves q.k a function of their difference."""
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 8))
    at = np.array([3, 7, 103, 107], np.int32)
    x = np.stack([q, k, q, k]).astype(np.float32)[:, None]
    for interleaved in (False, True):
        table = ops.rope_table(at, ops.rope_frequencies(8, 1e4)[0])
        program = BACKEND.compile(Graph({"y": ops.rope(x, *table, interleaved=interleaved)}))
        y = program.run({})["y"][:, 0].astype(np.float64)
        assert y[0] @ y[1] == pytest.approx(y[2] @ y[3], abs=1e-5)
        assert y[0] @ y[1] != pytest.approx(q @ k, abs=1e-2)


def test_the_table_is_broadcast_over_a_batch():
    x = graph.input("x", (2, 5, 3, 8), dtypes.f16)
    table = ops.rope_table(np.arange(5), ops.rope_frequencies(8, 1e4)[0])
    assert ops.rope(x, *table).spec == x.spec
    with pytest.raises(ShapeError, match=r"\[rope\] cos .* rotates 2\*5 elements of the 8"):
        ops.rope(x, *ops.rope_table(np.arange(5), ops.rope_frequencies(10, 1e4)[0]))
