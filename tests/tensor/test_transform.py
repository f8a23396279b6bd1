"""Gradients of functions of tensors, against their formulas."""

import numpy as np
import pytest

import trivet as tv
from trivet.errors import DTypeError, InputError, ShapeError

X = np.float32([[1.0, 2.0], [3.0, 4.0]])
Y = np.float32([[0.5, -1.0], [2.0, 0.25]])


def test_value_and_gradient(device):
    value, slope = tv.value_and_grad(lambda x: (x * x * x).sum())(tv.asarray(X, device=device))
    tv.eval(value, slope)
    assert value.item() == 100.0
    np.testing.assert_allclose(slope.numpy(), 3 * X * X)
    assert slope.device == device


def test_several_arguments_and_forms(device):
    x, y = tv.asarray(X, device=device), tv.asarray(Y, device=device)

    def loss(scale, params, offset):
        return (scale * params["w"][0] * params["w"][1]).sum() + (params["b"] * 0.0).sum() + offset

    scale = tv.asarray(2.0, device=device)
    params, of_scale = tv.grad(loss, (1, 0))(scale, {"w": [x, y], "b": y}, 1.0)
    np.testing.assert_allclose(params["w"][0].numpy(), 2 * Y)
    np.testing.assert_allclose(params["w"][1].numpy(), 2 * X)
    np.testing.assert_allclose(params["b"].numpy(), 0 * Y)
    np.testing.assert_allclose(of_scale.item(), (X * Y).sum())


def test_an_argument_given_twice_has_a_gradient_for_each(device):
    x = tv.asarray(X, device=device)
    a, b = tv.grad(lambda a, b: (a * a * b).sum(), (0, 1))(x, x)
    np.testing.assert_allclose(a.numpy(), 2 * X * X)
    np.testing.assert_allclose(b.numpy(), X * X)


def test_zeros_where_nothing_depends(device):
    x, y = tv.asarray(X, device=device), tv.asarray([np.inf, np.nan], device=device)
    slope = tv.grad(lambda x, y: x.sum(), 1)(x, y)
    assert slope.tolist() == [0.0, 0.0]


def test_looking_at_values_on_the_way_does_not_cut_the_gradient(device):
    seen = []

    def f(x):
        y = x * x
        seen.append(y.tolist())
        tv.eval(y)
        return (y * x).sum()

    slope = tv.grad(f)(tv.asarray(X, device=device))
    np.testing.assert_allclose(slope.numpy(), 3 * X * X)
    assert seen == [(X * X).tolist()]


def test_second_derivatives(device):
    inner = tv.grad(lambda x: (x * x * x).sum())
    slope = tv.grad(lambda x: inner(x).sum())(tv.asarray(X, device=device))
    np.testing.assert_allclose(slope.numpy(), 6 * X)


@pytest.mark.parametrize(
    ("function", "argument", "error"),
    [
        (lambda x: x, X, ShapeError),
        (lambda x: 1.0, X, ShapeError),
        (lambda x: x.sum(), X.astype(np.int64), DTypeError),
        (lambda x: (x > 1).sum(), X, DTypeError),
    ],
)
def test_what_has_no_gradient(function, argument, error):
    with pytest.raises(error):
        tv.grad(function)(tv.asarray(argument, device="reference"))


def test_what_is_not_a_tensor():
    with pytest.raises(InputError, match="argument of float"):
        tv.grad(lambda x: x)(1.0)
    with pytest.raises(InputError, match="argnums"):
        tv.grad(lambda x: x, 3)(tv.zeros(1, device="reference"))


def test_a_failure_leaves_evaluation_as_it_was():
    x = tv.asarray(X, device="reference")
    with pytest.raises(ZeroDivisionError):
        tv.grad(lambda x: 1 / 0)(x)
    y = x + 1
    tv.eval(y)
    assert y.node.op == "buffer"
