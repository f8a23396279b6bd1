"""Tensor: operators and methods against NumPy, on every device that is there."""

import operator

import numpy as np
import pytest

import trivet as tv
from trivet import runtime
from trivet.errors import DeviceMismatch, DTypeError, InputError, ShapeError, UnsupportedError
from trivet.graph import input as leaf

DEVICES = [d.name for d in tv.devices() if d.available]
X = np.float32([[1.5, -2.0, 3.0], [0.25, 4.0, -1.0]])
Y = np.float32([[2.0, 1.0, 3.0], [0.5, 2.0, 4.0]])


def same(tensor, expected):
    expected = np.asarray(expected)
    assert tensor.shape == expected.shape
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "lt", "le", "gt", "ge", "eq", "ne"])
def test_binary_operators(device, name):
    op = getattr(operator, name)
    x, y = tv.asarray(X, device=device), tv.asarray(Y, device=device)
    same(op(x, y), op(X, Y))
    same(op(x, 2), op(X, np.float32(2)))
    same(op(2.0, x), op(np.float32(2), X))
    same(op(X, y), op(X, Y))
    assert op(X, y).device == device


def test_pow_matmul_and_unary(device):
    x, y = tv.asarray(X, device=device), tv.asarray(Y, device=device)
    same(y**x, Y**X)
    same(2**x, 2**X)
    same(x @ y.T, X @ Y.T)
    same(X @ y.mT, X @ Y.T)
    same(x.matmul(y.T), X @ Y.T)
    same(-x, -X)
    same(abs(x), abs(X))
    same(~(x > 1) | (y > 1) & (x < 0), ~(X > 1) | (Y > 1) & (X < 0))


def test_python_scalars_do_not_widen(device):
    half = tv.asarray(X, "f16", device)
    assert (half * 2.5 + 1).dtype is tv.f16
    ints = tv.asarray([1, 2], device=device)
    assert ((ints + 1).dtype, (ints * 0.5).dtype, (ints / 2).dtype) == (tv.i64, tv.f32, tv.f32)


@pytest.mark.parametrize("method", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1)])
def test_reductions(device, method, axis):
    x = tv.asarray(X, device=device)
    same(getattr(x, method)(axis), getattr(X, method)(axis))
    same(getattr(x, method)(axis, keepdims=True), getattr(X, method)(axis, keepdims=True))


def test_argmax(device):
    x = tv.asarray(X, device=device)
    assert x.argmax().item() == 4
    same(x.argmax(1), X.argmax(1))
    same(x.argmax(keepdims=True), X.argmax(keepdims=True))
    assert x.argmax(0).dtype is tv.i64


def test_shape_changes(device):
    x = tv.asarray(X, device=device)
    same(x.reshape((3, -1)), X.reshape(3, -1))
    same(x.permute_dims((1, 0)), X.T)
    same(x.T, X.T)
    assert (x.ndim, x.size, len(x), x.shape) == (2, 6, 2, (2, 3))
    with pytest.raises(ShapeError, match="T"):
        _ = tv.zeros((2, 3, 4), device=device).T
    with pytest.raises(ShapeError, match="mT"):
        _ = tv.zeros(3, device=device).mT


KEYS = [
    0, -1, (1, 2), slice(1, None), slice(None, None, 2), (slice(None), slice(0, 3, 2)), ..., (..., 0),
    (0, ...), None, (None, 0, None), (slice(5, 1),), (slice(-1, None), None, slice(-2, 99)),
    (np.int64(1), np.int32(-2)),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_indexing_is_numpys(device, key):
    same(tv.asarray(X, device=device)[key], X[key])


@pytest.mark.parametrize("indices", [[1, 0, -1], [[0, 1], [1, 1]], []])
def test_indexing_by_an_array(device, indices):
    x, at = tv.asarray(X, device=device), np.array(indices, np.int64)
    same(x[at], X[at])
    same(x[:, tv.asarray(at, device=device)], X[:, at])
    same(x[1:, None, at.astype(np.int32)], X[1:, None, at])


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (2, IndexError), (-3, IndexError), ((0, 0, 0), ShapeError), ((..., ...), ShapeError),
        (slice(None, None, -1), UnsupportedError), (1.5, DTypeError), ("a", DTypeError),
        (X > 0, UnsupportedError), (([0], [1]), UnsupportedError), (True, DTypeError),
    ],
    ids=repr,
)  # fmt: skip
def test_keys_that_are_refused(key, error):
    with pytest.raises(error, match=r"^\[index\]"):
        tv.asarray(X, device="reference")[key]


def test_iteration_and_conversions(device):
    x = tv.asarray(X, device=device)
    assert [row.tolist() for row in x] == X.tolist()
    assert float(x[0, 0]) == 1.5
    assert int(x[1, 1]) == 4
    assert bool(x[0, 0] > 1)
    assert [10, 20][tv.asarray(1, device=device)] == 20
    with pytest.raises(ShapeError, match="6 elements"):
        x.item()
    with pytest.raises(DTypeError, match="not an integer"):
        operator.index(x[0, 0])
    with pytest.raises(TypeError):
        hash(x)


def test_astype_takes_names_and_dtypes(device):
    x = tv.asarray(X, device=device)
    same(x.astype("i32"), X.astype(np.int32))
    same(x.astype(tv.f16).astype(tv.bool_), X.astype(bool))
    with pytest.raises(DTypeError, match="no dtype 'float'"):
        x.astype("float")


def test_numpy_is_read_only_and_over_the_same_memory(device):
    x = tv.asarray(X, device=device) + 1
    a, b = x.numpy(), np.asarray(x)
    assert np.shares_memory(a, b)
    with pytest.raises(ValueError, match="read-only"):
        a[0, 0] = 7
    copy = np.array(x)
    copy[0, 0] = 7
    same(x, X + 1)


def test_bf16_comes_to_numpy_as_float32_exactly(device):
    values = np.float32([1.0, 3.140625, -0.0, np.inf, 3.0e38])
    x = tv.asarray(values, "bf16", device)
    assert x.numpy().dtype == np.float32
    np.testing.assert_array_equal(x.numpy()[:4], values[:4])
    assert np.asarray(x, np.float64).dtype == np.float64


def test_values_do_not_follow_the_callers_array(device):
    array = X.copy()
    x = tv.asarray(array, device=device)
    array[:] = 0
    same(x, X)


def test_moving_copies_and_mixing_is_refused():
    x = tv.asarray(X, device="reference")
    moved = x.to("reference")
    assert not np.shares_memory(x.numpy(), moved.numpy())
    if "cpu" not in DEVICES:
        pytest.skip("one device only")
    y = x.to("cpu")
    assert (y.device, (y + 1).device, x.device) == ("cpu", "cpu", "reference")
    same(y, X)
    with pytest.raises(DeviceMismatch, match="add"):
        x + y


def test_a_symbolic_tensor_has_no_value():
    t = tv.Tensor(leaf("t", (3,), tv.f32))
    with pytest.raises(InputError, match="has no value"):
        (t + 1).numpy()


def test_printing_shows_value_dtype_and_device(device):
    assert repr(tv.asarray([1, 2], device=device)) == f"Tensor([1, 2], i64[2], {device})"
    assert repr(tv.Tensor(leaf("t", (tv.graph.Dim("T"),), tv.f32))) == "Tensor(f32[T])"


def test_nothing_is_computed_before_it_is_asked_for(device, monkeypatch):
    runs = []
    compute = runtime._compute
    monkeypatch.setattr(
        runtime, "_compute", lambda nodes, where: runs.append(len(nodes)) or compute(nodes, where)
    )
    x = tv.asarray(X, device=device)
    y, z = x * 2, x + 1
    w = y + z
    assert runs == []
    tv.eval(y, z)
    assert runs == [2]
    w.numpy(), y.numpy(), w.numpy()
    assert runs == [2, 1]
    assert y.node.op == "buffer"


def test_a_long_chain_is_let_go(device):
    x = tv.asarray(np.float32([1.0]), device=device)
    for _ in range(300):
        x = x + 1
        tv.eval(x)
    assert x.node.inputs == ()
    assert x.item() == 301.0


def test_a_deep_graph_evaluates(device):
    x = tv.asarray(np.float32([0.0]), device=device)
    for _ in range(5000):
        x = x + 1
    assert x.item() == 5000.0
