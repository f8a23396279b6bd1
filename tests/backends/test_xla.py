"""The xla backend beyond the table: reasons, states that are donated, errors of a device as trivet's."""

import os
import subprocess
import sys

import numpy as np
import pytest

from trivet import backends, dtypes, graph, ops
from trivet.backends.numpy import BACKEND as NUMPY
from trivet.backends.xla import platforms
from trivet.errors import CapacityError, DeviceError, ShapeError
from trivet.graph import Dim, Graph

HERE = backends.find("xla")
needs_jax = pytest.mark.skipif(HERE.unavailable() is not None, reason=str(HERE.unavailable()))
T, f32 = Dim("T"), dtypes.f32


# --- where it can be used ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ({}, "JAX is not installed: pip install 'trivet[xla]'"),
        (
            {"jax": "0.9.1", "jaxlib": "0.9.1"},
            "JAX 0.9.1 is too old, 0.10 is needed: pip install -U 'trivet[xla]'",
        ),
        (
            {"jax": "0.10.2", "jaxlib": "0.10.2"},
            "JAX 0.10.2 is here without its cuda plugin: pip install 'jax[cuda13]==0.10.2'",
        ),
        (
            {"jax": "0.10.2", "jaxlib": "0.10.2", "jax-cuda13-plugin": "0.10.2"},
            "no cuda device: none of /nowhere/nvidia* is there",
        ),
        (
            {"jax": "0.10.2", "jaxlib": "0.10.2", "jax-cuda12-plugin": "0.10.1"},
            "jax-cuda12-plugin 0.10.1 does not fit jaxlib 0.10.2: pip install 'jax[cuda13]==0.10.2'",
        ),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_with_what_to_install(installed, said, monkeypatch):
    monkeypatch.setattr(platforms, "version", installed.get)
    monkeypatch.setitem(platforms.DEVICES, "cuda", (*platforms.DEVICES["cuda"][:3], ("/nowhere/nvidia*",)))
    assert HERE.on("cuda").unavailable() == said


@needs_jax
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("XLA_FLAGS", "--nonsense=1", "JAX does not start: Unknown flag in XLA_FLAGS: --nonsense=1"),
        (
            "XLA_FLAGS",
            "--xla_force_host_platform_device_count=x",
            "JAX does not start: Couldn't interpret value x for flag xla_force_host_platform_device_count.",
        ),
        (
            "JAX_ENABLE_X64",
            "maybe",
            "JAX does not start: invalid truth value 'maybe' for environment 'JAX_ENABLE_X64'",
        ),
        ("JAX_PLATFORMS", "tpu,nonsense", "JAX_PLATFORMS is 'tpu,nonsense', which leaves out cpu"),
    ],
)
def test_an_environment_that_jax_refuses_is_a_reason(name, value, said):
    code = "from trivet import backends; print(backends.find('xla').unavailable())"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, env=os.environ | {name: value})
    assert (done.stdout, done.stderr, done.returncode) == (said + "\n", "", 0)


@needs_jax
def test_programs_run_however_jax_is_set_up():
    import jax

    settings = {
        "jax_numpy_dtype_promotion": "strict", "jax_numpy_rank_promotion": "raise",
        "jax_transfer_guard": "disallow_explicit", "jax_debug_nans": True,
    }  # fmt: skip
    before = {name: getattr(jax.config, name) for name in settings}
    x, scale = graph.input("x", (T, 3), f32), graph.weight("scale", (3,), f32)
    given = np.float32([[1, -np.inf, 3], [0, 2, np.nan]])
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        call = Graph({"y": ops.mul(ops.softmax(ops.take(x, ops.iota((2,), 0), axis=0), axis=1), scale)})
        program = HERE.compile(call, weights=lambda name: np.float32([1, 2, 3]))
        got = HERE.to_numpy(program.run({"x": HERE.from_numpy(given, f32)})["y"])
        assert {name: getattr(jax.config, name) for name in settings} == settings
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
    truth = NUMPY.compile(call, weights=lambda name: np.float32([1, 2, 3])).run({"x": given})["y"]
    np.testing.assert_allclose(got, truth, rtol=2e-6)


# --- programs ------------------------------------------------------------------------------------


def counted():
    """x [T, 3] is added to a state; the sum is given out."""
    x, total = graph.input("x", (T, 3), f32), graph.state("total", (2, 3), f32)
    new = ops.add(total, ops.sum(x, axis=0))
    return Graph({"y": ops.silu(new)}, {"total": new})


ONES = np.ones((2, 3), np.float32)


@needs_jax
def test_a_state_goes_from_run_to_run_whatever_the_sizes():
    program, truth = (b.compile(counted(), state={"total": ONES}) for b in (HERE, NUMPY))
    for rows in (2, 5, 2):
        given = {"x": np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)}
        got, want = program.run(given), truth.run(given)
        np.testing.assert_allclose(HERE.to_numpy(got["y"]), want["y"], rtol=2e-6)
    np.testing.assert_allclose(HERE.to_numpy(program.state["total"]), truth.state["total"], rtol=1e-6)


@needs_jax
def test_a_run_that_is_refused_changes_no_state():
    program = HERE.compile(counted(), state={"total": ONES})
    with pytest.raises(ShapeError):
        program.run({"x": np.ones((2, 4), np.float32)})
    assert HERE.to_numpy(program.state["total"]).tolist() == ONES.tolist()


def breaking(program, after):
    """The program, failing as on a device without room; `after` the states were given up, or before."""
    import jax

    def run(changed, *_):
        if after:
            for array in changed.values():
                array.delete()
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room\nmore")

    program._jitted = lambda sizes: run
    return program


@needs_jax
def test_a_run_that_fails_before_it_begins_leaves_the_state():
    program = breaking(HERE.compile(counted(), state={"total": ONES}), after=False)
    with pytest.raises(CapacityError, match=r"^\[run\] XLA: RESOURCE_EXHAUSTED: no room$"):
        program.run({"x": ONES})
    assert HERE.to_numpy(program.state["total"]).tolist() == ONES.tolist()


@needs_jax
@pytest.mark.parametrize(
    ("told", "error"),
    [
        ("INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: Out of memory", CapacityError),
        ("INTERNAL: an illegal memory access was encountered", DeviceError),
    ],
)
@pytest.mark.parametrize("call", ["from_numpy", "run", "compile"])
def test_what_a_device_raises_while_arrays_go_in_is_reported(call, told, error, monkeypatch):
    import jax

    def fail(*_, **__):
        raise jax.errors.JaxRuntimeError(told)

    program = HERE.compile(counted(), state={"total": ONES})
    monkeypatch.setattr(jax, "device_put", fail)
    with pytest.raises(error, match=rf"\[\w+\] XLA: {told}") as raised:
        {
            "from_numpy": lambda: HERE.from_numpy(ONES, f32),
            "run": lambda: program.run({"x": ONES}),
            "compile": lambda: HERE.compile(counted(), state={"total": ONES}),
        }[call]()
    assert type(raised.value) is error


@needs_jax
def test_a_state_that_a_run_lost_is_missed_at_once():
    program = breaking(HERE.compile(counted(), state={"total": ONES}), after=True)
    with pytest.raises(CapacityError, match="no room"):
        program.run({"x": ONES})
    with pytest.raises(CapacityError, match=r"\[run\] the state is lost"):
        program.run({"x": ONES})
    with pytest.raises(CapacityError, match=r"\[run\] the state is lost"):
        _ = program.state


@needs_jax
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
