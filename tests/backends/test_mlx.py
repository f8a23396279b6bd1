"""The mlx backend beyond the table: reasons, programs made into kernels, indices that MLX does not check."""

import sys
import threading

import numpy as np
import pytest

from trivet import backends, dtypes, graph, ops
from trivet.backends.mlx import MlxBackend, platforms
from trivet.backends.numpy import BACKEND as NUMPY
from trivet.errors import CapacityError, ShapeError, UnsupportedError
from trivet.graph import Dim, Graph

HERE = backends.find("mlx")
needs_mlx = pytest.mark.skipif(HERE.unavailable() is not None, reason=str(HERE.unavailable()))
T, f32 = Dim("T"), dtypes.f32


# --- where it can be used ------------------------------------------------------------------------


def test_metal_is_asked_for_by_name_and_the_reason_is_given(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    assert HERE.on("metal").unavailable() == "no Metal device: that is a Mac with Apple silicon"
    assert HERE.on("metal") is HERE.on("metal") is not HERE


@pytest.mark.parametrize(("machine", "what"), [("linux", "'mlx[cpu]'"), ("darwin", "'trivet[metal]'")])
def test_what_is_missing_is_said_with_what_to_install(machine, what, monkeypatch):
    monkeypatch.setattr(sys, "platform", machine)
    monkeypatch.setattr(platforms, "version", lambda _: None)
    assert HERE.unavailable() == f"MLX is not installed: pip install {what}"
    monkeypatch.setattr(platforms, "version", lambda _: "0.20.1")
    assert HERE.unavailable() == f"MLX 0.20.1 is too old, 0.32 is needed: pip install -U {what}"


# --- programs ------------------------------------------------------------------------------------


def counted():
    """x [T, 3] is added to a state; the sum is given out, through a chain of elementwise rows."""
    x, total = graph.input("x", (T, 3), f32), graph.state("total", (2, 3), f32)
    new = ops.add(total, ops.sum(x, axis=0))
    return Graph({"y": ops.silu(ops.mul(ops.exp(ops.mul(new, 0.5)), 2.0))}, {"total": new})


@needs_mlx
@pytest.mark.parametrize("fused", [False, True])
def test_a_state_goes_from_run_to_run_whatever_the_sizes(fused):
    program = MlxBackend(fused=fused).compile(counted(), state={"total": np.ones((2, 3), np.float32)})
    truth = NUMPY.compile(counted(), state={"total": np.ones((2, 3), np.float32)})
    for rows in (2, 5, 2):
        given = {"x": np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)}
        got, want = program.run(given), truth.run(given)
        np.testing.assert_allclose(HERE.to_numpy(got["y"]), want["y"], rtol=2e-6)
    np.testing.assert_allclose(HERE.to_numpy(program.state["total"]), truth.state["total"], rtol=1e-6)


@needs_mlx
def test_a_run_that_is_refused_changes_no_state():
    program = HERE.compile(counted(), state={"total": np.ones((2, 3), np.float32)})
    with pytest.raises(ShapeError):
        program.run({"x": np.ones((2, 4), np.float32)})
    assert HERE.to_numpy(program.state["total"]).tolist() == np.ones((2, 3)).tolist()


@needs_mlx
def test_a_state_that_a_run_lost_is_missed_at_once(monkeypatch):
    program = HERE.compile(counted(), state={"total": np.ones((2, 3), np.float32)})
    given = {"x": np.ones((2, 3), np.float32)}

    def fail(*_):
        raise RuntimeError("[malloc] no room\nmore")

    with monkeypatch.context() as broken:
        broken.setattr("mlx.core.eval", fail)
        with pytest.raises(CapacityError, match=r"^\[run\] MLX: \[malloc\] no room$"):
            program.run(given)
    with pytest.raises(CapacityError, match=r"\[run\] the state is lost"):
        program.run(given)
    with pytest.raises(CapacityError, match=r"\[run\] the state is lost"):
        _ = program.state


@needs_mlx
def test_more_elements_than_mlx_counts_to_are_refused():
    n = graph.Dim("N")
    wide = Graph({"y": ops.broadcast_to(graph.input("x", (), f32), (n,))})
    with pytest.raises(CapacityError, match=r"\[run\] MLX: .*2147483648"):
        HERE.compile(wide, sizes={"N": 2**31}).run({"x": np.float32(1)})
    with pytest.raises(CapacityError, match=r"\[compile\] MLX: .*2147483648"):
        HERE.compile(Graph({"y": ops.exp(graph.state("s", (2**31, 0), f32))}))


@needs_mlx
@pytest.mark.parametrize("fused", [False, True])
def test_a_program_runs_in_any_thread(fused):
    program, got = MlxBackend(fused=fused).compile(counted()), []
    given = {"x": np.ones((4, 3), np.float32)}
    program.run(given)
    thread = threading.Thread(target=lambda: got.append(HERE.to_numpy(program.run(given)["y"])))
    thread.start()
    thread.join()
    np.testing.assert_allclose(
        got[0], NUMPY.compile(counted()).run({"x": np.full((4, 3), 2, np.float32)})["y"]
    )


@needs_mlx
def test_the_same_long_sum_may_stand_in_a_compiled_program_twice():
    x = graph.input("x", (3, 1000), f32)
    both = {name: ops.sum(ops.exp(x), axis=1) for name in ("a", "b")}
    given = {"x": np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)}
    got, want = (b.compile(Graph(both)).run(given) for b in (MlxBackend(fused=True), NUMPY))
    for name, sums in want.items():
        np.testing.assert_allclose(HERE.to_numpy(got[name]), sums, rtol=2e-6)


# --- arrays --------------------------------------------------------------------------------------


@needs_mlx
@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([[0x7FC1, 0x8000, 1]], np.uint16), dtypes.bf16),
        (np.array([np.pi, -0.0, 5e-324, np.inf]), dtypes.f64),
        (np.array([-(2**63), 2**63 - 1]), dtypes.i64),
        (np.arange(20, dtype=np.uint8), dtypes.q4_1),
        (np.float16(2.5).reshape(()), dtypes.f16),
        (np.arange(6, dtype=np.int32).reshape(2, 3).T, dtypes.i32),
        (np.zeros((0, 4), np.bool_), dtypes.bool_),
    ],
)
def test_arrays_come_back_bit_by_bit(array, dtype):
    back = HERE.to_numpy(HERE.from_numpy(array, dtype))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()


@needs_mlx
def test_64_bit_floats_are_refused_where_they_would_be_computed_with():
    x = graph.input("x", (2,), dtypes.f64)
    with pytest.raises(UnsupportedError, match=r"\[add\] f64: Metal has no 64-bit floats"):
        HERE.compile(Graph({"y": ops.add(x, x)}))
    (given,) = HERE.compile(Graph({"x": x})).run({"x": np.array([0.1, 2.0])}).values()
    assert HERE.to_numpy(given).tolist() == [0.1, 2.0]


@needs_mlx
def test_angles_of_far_positions_are_those_of_float64():
    positions = np.r_[0, 2 ** np.arange(31), 2**20 - np.arange(1, 50)].astype(np.int32)
    for freq in (np.array([1.0, 0.5, 3e-5, 6.0, 0.0, -0.25, 2**-60]), 1e6 ** -np.linspace(0, 1, 64)):
        at = graph.input("at", positions.shape, dtypes.i32)
        cos, sin = ops.rope_table(at, freq)
        out = HERE.compile(Graph({"cos": cos, "sin": sin})).run({"at": positions})
        angle = positions[:, None] * freq
        np.testing.assert_allclose(HERE.to_numpy(out["cos"]), np.cos(angle), atol=5e-7)
        np.testing.assert_allclose(HERE.to_numpy(out["sin"]), np.sin(angle), atol=5e-7)


# --- indices -------------------------------------------------------------------------------------


@needs_mlx
def test_an_index_that_does_not_exist_reads_nothing_and_writes_nothing():
    x, ids = graph.input("x", (3, 2), f32), graph.input("ids", (4,), dtypes.i64)
    whole = ops.scatter_add(x, ids, np.ones((4, 2), np.float32), axis=0)
    counts = ops.scatter_add(ops.cast(x, dtypes.i64), ids, np.ones((4, 2), np.int64), axis=0)
    asked = {"taken": ops.take(x, ids), "whole": whole, "counts": counts}
    given = {"x": np.zeros((3, 2), np.float32), "ids": np.array([2, -1, 3, 10**12])}
    out = {k: HERE.to_numpy(v)[:, 0] for k, v in HERE.compile(Graph(asked)).run(given).items()}
    np.testing.assert_array_equal(out["taken"], [0, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(out["whole"], [0, 0, 1])
    np.testing.assert_array_equal(out["counts"], [0, 0, 1])


@needs_mlx
@pytest.mark.parametrize("kind", [dtypes.f32, dtypes.bf16, dtypes.q8_0])
@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize("positions", [[-1, 3, 17], [3, -1, -1], [-1, -1, -1], [40, -1, -1]])
def test_a_token_without_a_place_writes_nothing(kind, keys, positions):
    new = np.random.default_rng(1).standard_normal((3, 2, 32)).astype(np.float32)
    shape = (3, 2, 32, 32)
    at, pages = graph.input("at", (3,), dtypes.i32), np.array([[1]], np.int32)
    pool = graph.state("pool", shape, kind)
    made = ops.kv_append(pool, new, at, np.zeros(3, np.int32), pages, transposed=keys)
    program, truth = (b.compile(Graph({}, {"pool": made})) for b in (HERE, NUMPY))
    program.run({"at": np.array([0, 1, 2], np.int32)})
    before = HERE.to_numpy(program.state["pool"]).copy()
    assert before.any()
    program.run({"at": np.array(positions, np.int32)})
    after = HERE.to_numpy(program.state["pool"])
    truth.run({"at": np.array([0, 1, 2], np.int32)})
    good = [i for i, p in enumerate(positions) if 0 <= p < 32]
    if good:  # as if the others were not there: each at its own place, in the order of the tokens
        rest = ops.kv_append(
            graph.state("pool", shape, kind), new[good], np.array([positions[i] for i in good], np.int32),
            np.zeros(len(good), np.int32), pages, transposed=keys,
        )  # fmt: skip
        second = NUMPY.compile(Graph({}, {"pool": rest}), state=dict(truth.state))
        second.run({})
        np.testing.assert_array_equal(after, second.state["pool"])
    else:
        np.testing.assert_array_equal(after, before)
