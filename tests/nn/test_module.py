"""Modules: names of parameters, replacing them, and what the layers compute."""

import numpy as np
import pytest

from trivet import dtypes, graph, nn, ops
from trivet.errors import InputError, ShapeError
from trivet.tensor import asarray, grad, random_key, zeros

REFERENCE = "reference"


def number(value=0.0, width=3):
    return asarray(np.full(width, value, np.float32), device=REFERENCE)


class Block(nn.Module):
    def __init__(self):
        self.scale = number(2.0)
        self.name = "block"
        self.inner = {"a": nn.RMSNorm(number(1.0)), "b": [number(4.0), (number(5.0),)]}
        self.leaf = graph.weight("w", (2,), dtypes.f32)


def test_names_are_dotted_paths_in_the_order_of_attributes():
    block = Block()
    assert list(block.parameters()) == ["scale", "inner.a.weight", "inner.b.0", "inner.b.1.0", "leaf"]
    assert next(n for n, _ in block.named_parameters("x.")) == "x.scale"
    assert block.parameters()["leaf"] is block.leaf


def test_update_replaces_all_or_nothing():
    block = Block()
    block.update({"scale": number(7.0), "inner.a.weight": number(8.0), "inner.b.0": number(9.0)})
    assert [
        block.scale.tolist()[0],
        block.inner["a"].weight.tolist()[0],
        block.inner["b"][0].tolist()[0],
    ] == [7, 8, 9]
    for values, error, message in (
        (
            {"scale": number(1.0), "nonesuch": number()},
            InputError,
            "no parameter 'nonesuch'; there are scale",
        ),
        (
            {"scale": number(1.0), "inner.a.weight": number(width=2)},
            ShapeError,
            r"inner.a.weight is f32\[3\], got",
        ),
        ({"scale": number(1.0).astype("f16")}, ShapeError, "got f16"),
        ({"inner.b.1.0": number(1.0)}, InputError, "tuple"),
    ):
        with pytest.raises(error, match=message):
            block.update(values)
        assert block.scale.tolist()[0] == 7.0


def test_linear():
    layer = nn.Linear.create(random_key(1, device=REFERENCE), 8, 5)
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    w, b = layer.weight.numpy(), layer.bias.numpy()
    assert (w.shape, b.tolist()) == ((5, 8), [0.0] * 5)
    assert np.abs(w).max() <= 8**-0.5
    assert np.unique(w).size == w.size
    np.testing.assert_allclose(layer(asarray(x, device=REFERENCE)).numpy(), x @ w.T, rtol=1e-5, atol=1e-6)
    assert list(nn.Linear.create(random_key(1, device=REFERENCE), 8, 5, bias=False).parameters()) == [
        "weight"
    ]


def test_embedding():
    layer = nn.Embedding.create(random_key(2, device=REFERENCE), 10, 4, dtypes.bf16)
    assert layer.weight.dtype is dtypes.bf16
    out = layer(asarray([[1, 9]], device=REFERENCE))
    np.testing.assert_array_equal(out.numpy(), layer.weight.numpy()[[[1, 9]]])


def test_norms():
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    rms = nn.RMSNorm.create(16, device=REFERENCE)(asarray(x, device=REFERENCE)).numpy()
    np.testing.assert_allclose(rms, x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5), rtol=1e-5)
    layer = nn.LayerNorm.create(16, device=REFERENCE)(asarray(x, device=REFERENCE)).numpy()
    centred = x - x.mean(-1, keepdims=True)
    np.testing.assert_allclose(
        layer, centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5), rtol=1e-4, atol=1e-6
    )


def test_a_module_learns():
    """Least squares by gradient descent through a functional call."""
    layer = nn.Linear(zeros((1, 2), device=REFERENCE), zeros(1, device=REFERENCE))
    x = asarray(np.float32([[1, 0], [0, 1], [1, 1], [2, 1]]), device=REFERENCE)
    y = x @ asarray(np.float32([[3.0], [-1.0]]), device=REFERENCE) + 0.5

    def loss(params):
        layer.update(params)
        error = layer(x) - y
        return ops.mean(error * error)

    params = layer.parameters()
    for _ in range(200):
        slopes = grad(loss)(params)
        params = {n: asarray((p - 0.2 * slopes[n]).numpy(), device=REFERENCE) for n, p in params.items()}
    np.testing.assert_allclose(params["weight"].numpy(), [[3.0, -1.0]], atol=1e-2)
    np.testing.assert_allclose(params["bias"].numpy(), [0.5], atol=1e-2)
