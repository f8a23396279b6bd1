"""The program of the NumPy backend: rounding, state, symbolic sizes, weights, fallbacks."""

import numpy as np
import pytest

from trivet import backends, blocks, dtypes, graph, ops
from trivet.backends.base import Backend, expand
from trivet.backends.numpy import BACKEND
from trivet.backends.numpy.lowerings import LOWERINGS
from trivet.errors import DeviceUnavailable, DTypeError, InputError, ShapeError, UnsupportedError
from trivet.graph import Dim, Graph
from trivet.ops.table import TABLE

T = Dim("T")


def leaf(name, *shape, dtype=dtypes.f32):
    return graph.input(name, shape, dtype)


def test_backends_are_found_by_name():
    assert backends.get("numpy") is BACKEND
    assert backends.available()["numpy"] is None
    with pytest.raises(DeviceUnavailable, match=r"\[backend\] no backend 'abacus'; known: "):
        backends.find("abacus")


def test_it_computes_every_row_itself():
    missing = [name for name in TABLE if name not in LOWERINGS]
    assert missing == []


@pytest.mark.parametrize(
    ("dtype", "want"),
    [
        (dtypes.f32, 1 + 2**-23),
        (dtypes.f16, 1 + 2**-10),
        (dtypes.bf16, 1.0),
        (dtypes.f64, 1 + 2**-23 + 2**-40),
    ],
)
def test_each_result_is_rounded_to_its_dtype(dtype, want):
    """x + 2**-40 is x in all but f64; 1 + 2**-8 ties to even in bf16."""
    small = {dtypes.f32: 2**-23, dtypes.f16: 2**-10, dtypes.bf16: 2**-8, dtypes.f64: 2**-23}[dtype]
    y = ops.add(ops.add(graph.constant(1.0, dtype), small), 2**-40)
    got = BACKEND.compile(Graph({"y": y})).run({})["y"]
    assert got.dtype == graph.to_numpy(dtype)
    assert (blocks.from_bf16(got) if dtype is dtypes.bf16 else got) == want


def test_exact_rounds_nothing():
    x = leaf("x", dtype=dtypes.f16)
    y = ops.cast(ops.add(x, 1.0), dtypes.bf16)
    got = BACKEND.compile(Graph({"y": y}), exact=True).run({"x": np.array(2.0**-40)})["y"]
    assert got.dtype == np.float64
    assert got == 1 + 2**-40


def test_too_large_is_infinite():
    y = ops.mul(graph.constant(6e4, dtypes.f16), 2.0)
    assert BACKEND.compile(Graph({"y": y})).run({})["y"] == np.inf


def test_the_shapes_of_inputs_give_the_symbols():
    y = ops.concat([ops.reshape(leaf("x", 2 * T + 1, 2), (-1,)), leaf("y", T)])
    program = BACKEND.compile(Graph({"y": y}))
    for t in (0, 3):
        given = {"x": np.zeros((2 * t + 1, 2), np.float32), "y": np.zeros(t, np.float32)}
        assert program.run(given)["y"].shape == (5 * t + 2,)
    for x, y in [((4, 2), 1), ((7, 2), 2), ((7, 3), 3), ((7,), 3)]:
        with pytest.raises(ShapeError, match=r"\[run\] '[xy]' has shape .*, expected \("):
            program.run({"x": np.zeros(x, np.float32), "y": np.zeros(y, np.float32)})


def test_inputs_are_checked():
    program = BACKEND.compile(Graph({"y": ops.neg(leaf("x", 2))}))
    with pytest.raises(InputError, match=r"\[run\] inputs \['z'\], expected \['x'\]"):
        program.run({"z": np.zeros(2, np.float32)})
    with pytest.raises(DTypeError, match=r"\[run\] 'x' is NumPy's float64, expected f32"):
        program.run({"x": np.zeros(2)})
    with pytest.raises(DTypeError, match=r"NumPy's float32 is not how bf16 is stored"):
        BACKEND.from_numpy(np.zeros(2, np.float32), dtypes.bf16)


def counter():
    count = graph.state("count", (T,), dtypes.f32)
    new = ops.add(count, ops.take(leaf("x", 2), leaf("i", T, dtype=dtypes.i32)))
    return Graph({"before": count, "after": new}, {"count": new})


def test_state_lives_between_runs():
    program = BACKEND.compile(counter(), sizes={"T": 3})
    assert program.state["count"].tolist() == [0, 0, 0]
    given = {"x": np.array([1, 10], np.float32), "i": np.array([0, 1, 1], np.int32)}
    first, second = program.run(given), program.run(given)
    assert first["before"].tolist() == [0, 0, 0]
    assert first["after"].tolist() == second["before"].tolist() == [1, 10, 10]
    assert program.state["count"].tolist() == [2, 20, 20]


def test_a_run_that_raises_changes_no_state():
    program = BACKEND.compile(counter(), state={"count": np.ones(2, np.float32)})
    with pytest.raises(InputError, match=r"\[take\]"):
        program.run({"x": np.ones(2, np.float32), "i": np.array([0, 2], np.int32)})
    assert program.state["count"].tolist() == [1, 1]


def test_a_state_of_unknown_size_is_refused():
    with pytest.raises(InputError, match=r"\[run\] no input or state gives the size 'T'"):
        BACKEND.compile(counter())


def test_weights_are_found_once_and_dequantised():
    asked = []
    raw = np.zeros((2, 34), np.uint8)
    raw[:, :2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    raw[:, 2:] = [[3], [0xFE]]  # 3 and -2

    def weights(name):
        asked.append(name)
        return raw

    w = graph.weight("w", (2, 32), dtypes.q8_0)
    program = BACKEND.compile(Graph({"y": ops.linear(leaf("x", T, 32), w)}), weights=weights)
    for _ in range(2):
        got = program.run({"x": np.ones((1, 32), np.float32)})["y"]
        assert got.tolist() == [[48.0, -32.0]]
    assert asked == ["w"]
    with pytest.raises(InputError, match=r"the graph has the weight 'w', and no weights were given"):
        BACKEND.compile(Graph({"w": ops.dequantize(w)})).run({})


def test_fallbacks_of_fallbacks_are_expanded():
    x = leaf("x", 3, 5)
    loss = ops.linear_cross_entropy(x, leaf("w", 7, 5), leaf("t", 3, dtype=dtypes.i32))
    fused = {name for name, row in TABLE.items() if row.fallback}
    simple = expand(Graph({"y": loss}), lambda n: n.op not in fused)
    assert fused.isdisjoint(n.op for n in simple.nodes())
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("x", (3, 5)), ("w", (7, 5)))}
    given["t"] = np.array([0, 6, -100], np.int32)
    want, got = (BACKEND.compile(g).run(given)["y"] for g in (Graph({"y": loss}), simple))
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_row_that_a_backend_lacks_and_that_has_no_fallback_is_named():
    with pytest.raises(UnsupportedError, match=r"\[exp\] this backend does not lower <exp f32\[2\]>"):
        expand(Graph({"y": ops.exp(leaf("x", 2))}), lambda n: False)


def test_the_contract_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Backend()
