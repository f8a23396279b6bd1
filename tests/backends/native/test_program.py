"""Programs of the core: inputs, outputs, weights where they are, state, symbolic sizes, hostile calls."""

import gc
from concurrent.futures import ThreadPoolExecutor
from mmap import ACCESS_READ, mmap

import numpy as np
import pytest

from trivet import blocks, graph, ops
from trivet.backends import find
from trivet.backends.native.bounds import bounds
from trivet.dtypes import bf16, f16, f32, i32, q4_0, q8_0
from trivet.errors import DTypeError, InputError, ShapeError, TrivetError
from trivet.graph import Dim, Graph

NATIVE = find("native")
pytestmark = pytest.mark.skipif(NATIVE.unavailable() is not None, reason=str(NATIVE.unavailable()))
T, N = Dim("T"), Dim("N")
X = np.float32([[1.0, -2.0], [3.0, 0.5], [0.0, 4.0]])


def pool_graph(dtype=f32):
    """A KV pool of pages of 16 that tokens are appended to."""
    pool = graph.state("pool", (N, 2, 16, 4), dtype)
    new = graph.input("new", (T, 2, 4), f32)
    index = [graph.input(n, (T,), i32) for n in ("positions", "sequences")]
    pages = graph.input("pages", (1, Dim("P")), i32)
    grown = ops.kv_append(pool, new, *index, pages, transposed=False)
    return Graph({"kept": ops.mul(new, 2.0)}, {"pool": grown})


def tokens(count, at=0, pages=((2, 0),)):
    return {
        "new": np.arange(count * 8, dtype=np.float32).reshape(count, 2, 4) + 1,
        "positions": np.arange(at, at + count, dtype=np.int32),
        "sequences": np.zeros(count, np.int32),
        "pages": np.array(pages, np.int32),
    }


def test_symbolic_sizes_come_from_the_inputs():
    x = graph.input("x", (T, 2), f32)
    program = NATIVE.compile(Graph({"y": ops.mul(x, x), "z": ops.concat([x, x], 0)}))
    for rows in (3, 1, 0, 2):
        out = program.run({"x": X[:rows]})
        np.testing.assert_array_equal(out["y"], X[:rows] ** 2)
        assert out["z"].shape == (2 * rows, 2)


def test_outputs_are_aligned_and_belong_to_the_caller():
    x = graph.input("x", (T, 2), f32)
    program = NATIVE.compile(Graph({"y": ops.mul(x, 2.0)}))
    first = program.run({"x": X})["y"]
    program.run({"x": X + 1})
    np.testing.assert_array_equal(first, X * 2)
    assert first.ctypes.data % 64 == 0


@pytest.mark.parametrize("case", ["an input", "a constant", "one value twice", "a view"])
def test_outputs_that_are_no_result_of_their_own(case):
    x = graph.input("x", (3, 2), f32)
    y = {"an input": x, "a constant": graph.constant(X), "a view": ops.reshape(x, (6,))}.get(case, ops.exp(x))
    out = NATIVE.compile(Graph({"a": y, "b": y})).run({"x": X} if case != "a constant" else {})
    expected = {"a view": X.reshape(-1), "one value twice": np.exp(X)}.get(case, X)
    np.testing.assert_allclose(out["a"], expected, rtol=1e-6)
    np.testing.assert_array_equal(out["a"], out["b"])
    assert not np.shares_memory(out["a"], out["b"])


def test_inputs_need_not_be_dense():
    x = graph.input("x", (2, 3), f32)
    program = NATIVE.compile(Graph({"y": ops.neg(x)}))
    np.testing.assert_array_equal(program.run({"x": X.T})["y"], -X.T)
    raw = np.zeros(25, np.uint8)
    unaligned = raw[1:].view(np.float32).reshape(2, 3)
    np.testing.assert_array_equal(program.run({"x": unaligned})["y"], -unaligned)


def test_weights_are_read_where_they_are():
    w = graph.weight("w", (2, 64), q8_0)
    packed = blocks.quantize(np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64), q8_0)
    program = NATIVE.compile(Graph({"y": ops.dequantize(w)}), weights={"w": packed}.__getitem__)
    np.testing.assert_array_equal(program.run({})["y"], blocks.dequantize(packed, q8_0, (2, 64)))
    assert np.shares_memory(program._model._arrays["w"], packed)


def test_what_a_run_reads_of_a_mapped_file(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(np.linspace(-1, 1, 64 * 32, dtype=np.float32).tobytes())
    with path.open("rb") as file:
        mapped = mmap(file.fileno(), 0, access=ACCESS_READ)
    there = np.frombuffer(mapped, np.float32).reshape(64, 32)
    x, w = graph.input("x", (128, 32), f32), graph.weight("w", (64, 32), f32)
    y = ops.linear(x, w)
    both = {"y": y, "dx": ops.linear_input_grad(y, w)}

    def read(outputs, array):
        return NATIVE.compile(Graph(outputs), weights=lambda name: array).mapped_bytes

    assert read(both, there) == there.nbytes  # one copy is enough for both directions
    assert read({"y": y}, there) == 0  # arranged
    assert read(both, there.copy()) == 0
    rows = ops.embedding(graph.input("ids", (3,), i32), w)
    assert read({"rows": rows}, there) == 0


def test_weights_stay_while_the_program_does():
    w = graph.weight("w", (1000,), f32)
    program = NATIVE.compile(
        Graph({"y": ops.mul(w, 1.0)}), weights=lambda name: np.full(1000, 3.0, np.float32)
    )
    gc.collect()
    others = [np.full(1000, 7.0, np.float32) for _ in range(20)]
    assert program.run({})["y"].tolist() == [3.0] * 1000
    assert len(others) == 20


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_state_is_kept_between_runs(dtype):
    program = NATIVE.compile(pool_graph(dtype), sizes={"N": 3})
    assert program.state["pool"].shape == (3, 2, 16, 4)
    assert not program.state["pool"].any()
    program.run(tokens(3))
    program.run(tokens(1, at=16))
    pool = program.state["pool"]
    assert pool[2, :, :3].all()
    assert pool[0, :, 0].all()
    assert np.count_nonzero(pool) == 4 * 8


def test_two_programs_of_one_graph_have_each_their_state():
    first, second = (NATIVE.compile(pool_graph(), sizes={"N": 3}) for _ in range(2))
    first.run(tokens(2))
    assert first.state["pool"].any()
    assert not second.state["pool"].any()


def test_first_values_of_a_state():
    start = np.ones((3, 2, 16, 4), np.float32)
    program = NATIVE.compile(pool_graph(), state={"pool": start}, sizes={"N": 3})
    program.run(tokens(1))
    assert program.state["pool"][1].min() == 1.0
    assert start.max() == 1.0
    with pytest.raises(ShapeError, match="'pool' has shape"):
        NATIVE.compile(pool_graph(), state={"pool": start[:2]}, sizes={"N": 3})


def test_a_state_outlives_its_program():
    state = NATIVE.compile(pool_graph(), sizes={"N": 3}).state["pool"]
    gc.collect()
    state[:] = 5
    assert state.min() == 5


def test_plain_updates_take_place_after_the_run():
    a, b = graph.state("a", (2,), f32), graph.state("b", (2,), f32)
    graph_ = Graph({"old": ops.mul(a, 1.0)}, {"a": ops.add(b, 1.0), "b": ops.sub(a, 1.0)})
    program = NATIVE.compile(graph_)
    assert program.run({})["old"].tolist() == [0.0, 0.0]
    assert (program.state["a"].tolist(), program.state["b"].tolist()) == ([1.0] * 2, [-1.0] * 2)
    assert program.run({})["old"].tolist() == [1.0, 1.0]
    assert (program.state["a"].tolist(), program.state["b"].tolist()) == ([0.0] * 2, [0.0] * 2)


def test_programs_without_state_are_kept():
    def once():
        x = graph.input("x", (T, 2), f32)
        return NATIVE.compile(Graph({"y": ops.add(ops.exp(x), 1.0)}))

    assert once() is once()


def test_kept_programs_are_bounded(monkeypatch):
    cache = type(NATIVE._programs)()
    monkeypatch.setattr(NATIVE, "_programs", cache)
    monkeypatch.setattr(cache, "COUNT", 5)
    for size in range(1, 12):
        NATIVE.compile(Graph({"y": ops.exp(graph.input("x", (size,), f32))}))
    assert len(cache._programs) == 5
    monkeypatch.setattr(cache, "BYTES", 0)
    program = NATIVE.compile(Graph({"y": ops.exp(ops.exp(graph.input("x", (64,), f32)))}))
    program.run({"x": np.zeros(64, np.float32)})
    NATIVE.compile(Graph({"y": ops.neg(graph.input("x", (2,), f32))}))
    assert len(cache._programs) < 5


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({}, InputError, r"\['x'\] are missing"),
        ({"x": X.astype(np.float64)}, DTypeError, "'x' is float64, wanted f32"),
        ({"x": X[:, :1]}, ShapeError, "'x' has shape"),
        ({"x": X[0]}, ShapeError, "'x' has shape"),
    ],
)
def test_inputs_that_do_not_fit(inputs, error, message):
    program = NATIVE.compile(Graph({"y": ops.exp(graph.input("x", (T, 2), f32))}))
    with pytest.raises(error, match=message):
        program.run(inputs)


def test_sizes_must_agree_between_inputs():
    x, y = graph.input("x", (T,), f32), graph.input("y", (2 * T,), f32)
    program = NATIVE.compile(Graph({"z": ops.concat([x, y], 0)}))
    assert program.run({"x": X[0], "y": X[:2].reshape(-1)})["z"].shape == (6,)
    for size in (3, 6):
        with pytest.raises(ShapeError, match="'y' has shape"):
            program.run({"x": X[0], "y": np.zeros(size, np.float32)})


def test_missing_and_wrong_weights():
    graph_ = Graph({"y": ops.exp(graph.weight("w", (3, 2), f32))})
    with pytest.raises(InputError, match=r"weights \['w'\], but none are given"):
        NATIVE.compile(graph_)
    with pytest.raises(ShapeError, match="'w' has shape"):
        NATIVE.compile(graph_, weights=lambda name: X.T)
    with pytest.raises(DTypeError, match="'w' is int64"):
        NATIVE.compile(graph_, weights=lambda name: np.zeros((3, 2), np.int64))


def test_state_sizes_must_be_given():
    with pytest.raises(TrivetError, match="N"):
        NATIVE.compile(pool_graph())


def test_bad_indices_are_an_error_that_names_the_row():
    table, ids = graph.input("table", (4, 2), f32), graph.input("ids", (T,), i32)
    program = NATIVE.compile(Graph({"y": ops.take(table, ids)}))
    for bad in (4, -1, 2**31 - 1, -(2**31)):
        with pytest.raises(InputError, match="take"):
            program.run({"table": np.zeros((4, 2), np.float32), "ids": np.array([0, bad], np.int32)})
    assert program.run({"table": np.ones((4, 2), np.float32), "ids": np.int32([3])})["y"].tolist() == [[1, 1]]


def test_bounds_are_as_wide_as_a_plan_allows():
    x = graph.input("x", (T - 1, 2**20), f32)
    low, high = bounds(Graph({"x": x}), {})["T"]
    assert low == 1
    assert 2**24 <= high < 2**26
    assert bounds(Graph({"x": x}), {"T": 7}) == {"T": (7, 7)}
    assert bounds(Graph({"w": graph.weight("w", (4, 32), q4_0)}), {"T": 7}) == {}


def test_threads_may_share_a_program():
    program = NATIVE.compile(Graph({"y": ops.add(ops.mul(graph.input("x", (T,), f32), 3.0), 1.0)}))

    def work(value):
        x = np.full(1000 + value, value, np.float32)
        return all(np.array_equal(program.run({"x": x})["y"], x * 3 + 1) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))
