"""The programs of devices that are not here: lowered for them and run on JAX's client for processors, and
compiled by the devices' own compilers."""

import re

import device_programs
import device_targets
import numpy as np
import pytest
import tpu_schedule

from devices import EXTRA

if "xla-cpu" not in EXTRA:
    pytest.skip("compiles for minutes: make test-accel", allow_module_level=True)
pytest.importorskip("jax", reason="JAX is not installed: make test-accel")
pytest.importorskip("flatbuffers", reason="flatbuffers is not installed: make test-accel")

import jax

from trivet import dtypes, graph, ops
from trivet.backends.xla import BACKEND, target

TOLERANCE = {"f32": 2e-5, "bf16": 2e-2}
#: how many products on the matrix units a bf16 step of the small model has at least, of all
MOST = 0.95


def close(got, want, tolerance, name):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert np.isfinite(want).all(), name
    assert np.abs(got - want).max(initial=0) <= tolerance * (1 + np.abs(want).max(initial=0)), name


@pytest.mark.parametrize("name", device_programs.NAMES)
def test_lowered_programs_give_what_the_processors_program_gives(name, small):
    """One artifact is the program of TPU, CUDA and ROCm; it runs here, too."""
    made = device_programs.build(name, small)
    state, given = device_programs.first_state(made), device_programs.inputs(made)
    program = BACKEND.compile(made.graph, weights=made.checkpoint.load, state=state, sizes=made.sizes)
    lowered = target.exported(made.graph, made.sizes)
    assert lowered.platforms == ("tpu", "cuda", "rocm")
    with jax.enable_x64(True):
        _, arguments = program.arguments(given)
        out, updates = lowered.call(*arguments)
    before = {n: np.asarray(a) for n, a in arguments[0].items()}
    want, after = program.run(given), program.state
    tolerance = TOLERANCE.get(name.split()[-1], 2e-5)
    for key in want:
        close(out[key], want[key], tolerance, key)
    for key, value in updates.items():
        close(value, after[key], tolerance, key)
    assert any(np.any(np.asarray(after[n]) != before[n]) for n in updates)


@pytest.mark.parametrize("platform", target.PLATFORMS)
def test_a_program_is_lowered_for_one_platform_as_for_all(platform, small):
    made = device_programs.build("decode step", small)
    alone = target.exported(made.graph, made.sizes, (platform,))
    assert alone.platforms == (platform,)
    assert len(alone.serialize()) > 1000


@pytest.mark.parametrize("aim", device_targets.TARGETS)
@pytest.mark.parametrize("name", device_programs.NAMES)
def test_small_programs_compile(name, aim, small, compile_for):
    found = compile_for(aim, "small Llama", name, device_programs.build(name, small))
    assert found["aliased"] > 0  # states are updated in place
    if "step" in name and name != "decode step":
        products_are_of(name.split()[-1], found, aim)


def products_are_of(kind, found, aim):
    """Nearly all products have both operands in the dtype that is computed in."""
    products = found["products"]
    assert products.get(kind, 0) > 20
    assert products[kind] >= MOST * sum(products.values()), products
    if device_targets.TARGETS[aim][0] == "cuda" and kind == "bf16":
        assert sum(n for i, n in found["instructions"].items() if i.endswith(" bf16")) > 20, found


@pytest.mark.parametrize("aim", device_targets.TARGETS)
@pytest.mark.parametrize("name", device_programs.ROWS)
def test_rows_compile_alone(name, aim, compile_for, keep):
    """What is read and written beside what is given says whether a kernel of one's own would pay."""
    found = compile_for(aim, device_targets.ALONE, name, device_programs.row(name))
    if "pages" in name and aim != "h200":
        keep(aim, device_targets.ALONE, name, {"cycles of XLA": tpu_schedule.of(name, aim)})
    if name == "a row of q8_0":  # of one row of it, not of the whole table
        assert found["accessed"] + found["temporaries"] < 0.01 * found["arguments"]


@pytest.mark.parametrize("aim", ["v5e", "v6e"])
@pytest.mark.parametrize("name", [n for n in device_programs.ROWS if " x q" in n])
def test_the_packed_kernel_pays(name, aim, keep):
    """By the schedule of TPU's compiler it takes less than half of the cycles of XLA's own program."""
    if reason := device_targets.missing(aim):
        pytest.skip(reason)
    ours, plain = tpu_schedule.of(name, aim), tpu_schedule.of(name, aim, "--plain")
    keep(aim, device_targets.ALONE, name, {"cycles": ours, "cycles of XLA": plain})
    assert 10_000 < ours < 0.5 * plain


def test_rows_that_do_not_fill_lanes_are_not_turned():
    """TPU would keep these rows the other way round, and turn them for the kernel each time."""
    if reason := device_targets.missing("v5e"):
        pytest.skip(reason)
    w = graph.weight("w", (1536, 576), dtypes.q4_1)
    made = graph.Graph({"y": ops.linear(graph.input("x", (1, 576), dtypes.f32), w)})
    text = target.compiled(made, {}, device_targets.topology("v5e"), "tpu").as_text()
    assert "u8[1536,360]{1,0:" in text
    assert "custom-call" in text
    assert not re.search(r" = u8\S* copy\(", text)


def test_bundles_count_as_often_as_their_loops_turn():
    listing = """
     0   :  { %s1 = smov 0 }
   0x1 LB: > { %s2 = sphi %s1 }
   0x2   :  {}
   0x3 LB: >> { %v1 = vld [vmem:[%s3]] }
   0x4   : >> { %p1 = scmp.ge.s32.totalorder %s3, 10 /* loop exit test */ }
   0x5   : > { %p2 = scmp.ge.s32.totalorder %s2, 3 /* loop exit test */ }
   0x6   :  { %5 = vsyncpa [#allocation1], 1 }
"""
    assert tpu_schedule.cycles(listing) == 1 + 3 * (3 + 10 * 2) + 1


@pytest.mark.slow
@pytest.mark.parametrize("aim", ["v5e", "h200"])
@pytest.mark.parametrize(
    "name", ["forward", "decode step", "full step bf16", "LoRA step bf16", "QLoRA step bf16"]
)
def test_programs_of_smollm2s_shape_compile(name, aim, compile_for):
    found = compile_for(aim, "SmolLM2-135M", name, device_programs.build(name, device_programs.smollm2()))
    assert found["arguments"] + found["temporaries"] < 8e9
    if name.endswith("bf16"):
        products_are_of("bf16", found, aim)
