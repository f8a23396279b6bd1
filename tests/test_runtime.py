"""Devices, evaluation, and what neither does silently."""

import asyncio
import subprocess
import sys
import threading

import numpy as np
import pytest

import trivet as tv
from devices import DEVICES, EXTRA
from trivet import backends, graph, ops, runtime
from trivet.dtypes import bf16, f32, q4_0
from trivet.errors import CapacityError, DeviceMismatch, DeviceUnavailable, InputError

X = np.float32([1.0, 2.0, 3.0])


def buffer(device="reference", array=X):
    return runtime.put(array, f32, device)


@pytest.fixture
def metal(monkeypatch):
    """A second device: the NumPy backend under another name."""
    monkeypatch.setitem(runtime.BACKENDS, "metal", "numpy")
    return "metal"


def test_every_device_says_what_it_is_or_why_not():
    found = {d.name: d for d in runtime.devices()}
    assert list(found) == ["cpu", "cuda", "rocm", "tpu", "metal", "reference", *EXTRA]
    assert found["reference"].available
    assert not found["tpu"].available
    assert "pip install" in found["tpu"].details


def test_asking_for_what_is_not_there_says_why():
    with pytest.raises(DeviceUnavailable, match=r"cuda is not available: .*JAX .*pip install '"):
        runtime.resolve("cuda")
    with pytest.raises(InputError, match="no device 'gpu'; known: auto, cpu, cuda"):
        runtime.resolve("gpu")


def test_auto_is_the_first_that_is_there_and_never_the_reference(metal, monkeypatch):
    assert runtime.resolve("auto") == runtime.resolve(None) == "metal"
    monkeypatch.setattr(runtime, "AUTO", ("tpu", "cuda"))
    with pytest.raises(DeviceUnavailable, match=r"none is available: tpu: .*JAX .*pip install .*; cuda: "):
        runtime.resolve("auto")


@pytest.mark.parametrize("name", ["gpu", "", "CPU", "cuda:0", 2, ["cpu"], {}, b"cpu", "x" * 10**6])
def test_what_is_no_device_is_refused_in_every_call(name):
    x = tv.zeros(2, device="reference")
    for call in (runtime.resolve, tv.device, x.to, lambda d: tv.ones(2, device=d), lambda d: tv.load("m", d)):
        with pytest.raises(InputError, match=r"\[device\] no device .*; known: auto, cpu, cuda") as raised:
            call(name)
        assert len(str(raised.value)) < 300


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mesh", ["foo", "data", "data:0", "data:2,", " ", None, 0, [], {"data": 2}])
def test_what_is_no_mesh_is_refused_in_the_same_words_everywhere(mesh, device):
    with pytest.raises(InputError, match=r"\[mesh\] .*: wanted the axes data, model, as in 'data:4,model:2'"):
        tv.load("none.gguf", device, mesh=mesh)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_device_of_one_takes_no_mesh(device, tmp_path):
    runtime.backend(device, "")
    for call in (
        lambda: runtime.backend(device, "data:2"),
        lambda: tv.load(tmp_path / "none.gguf", device, mesh="data:2"),
        lambda: tv.pretrain(tmp_path / "none.txt", out=tmp_path / "o", device=device, mesh="data:2"),
        lambda: tv.finetune("none.gguf", "none", out=tmp_path / "o", device=device, mesh="data:2"),
    ):
        with pytest.raises(InputError, match=r"\[mesh\] 'data:2': the \w+ backend computes on one device"):
            call()


def test_numbers_of_devices_stay():
    known = {"cpu": 0, "metal": 1, "cuda": 2, "tpu": 3, "rocm": 4, "reference": 5}
    assert known == runtime.IDS
    assert set(runtime.IDS) == {d.name for d in runtime.devices()} - set(EXTRA)


def test_a_scope_is_the_default_of_its_thread(metal):
    seen = []
    with runtime.device("reference"):
        other = threading.Thread(target=lambda: seen.append(runtime.resolve()))
        other.start()
        other.join()
        assert runtime.resolve() == runtime.resolve("auto") == "reference"
        with runtime.device("cpu"):
            assert runtime.resolve() == "cpu"
            assert runtime.resolve("reference") == "reference"
        assert runtime.resolve() == "reference"
    assert seen == [runtime.resolve()] == ["metal"]
    with pytest.raises(DeviceUnavailable), runtime.device("tpu"):
        pass
    assert runtime.resolve() == "metal"


def test_a_scope_is_of_one_task():
    async def computed(name, others):
        with runtime.device(name):
            await others.wait()  # until each task is inside its block
            return runtime.resolve()

    async def both():
        others = asyncio.Barrier(2)
        return await asyncio.gather(computed("reference", others), computed("cpu", others))

    before = runtime.resolve()
    assert asyncio.run(both()) == ["reference", "cpu"]
    assert runtime.resolve() == before


def test_a_scope_may_be_entered_again_and_ends_with_an_error():
    there, before = tv.device("reference"), runtime.resolve()
    for _ in range(2):
        with pytest.raises(KeyError), there, there:
            raise KeyError(runtime.resolve())
        assert runtime.resolve() == before
    with pytest.raises(DeviceUnavailable):
        tv.device("tpu")  # at once, not when the block begins


def test_a_reason_is_given_at_once_and_without_noise():
    """A process of its own: nothing may be imported, nor started, to find out that it is not there."""
    code = (
        "import sys; from trivet import runtime; found = runtime.devices();"
        "assert not {'jax', 'mlx'} & set(sys.modules); print(*[d.details for d in found], sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(runtime.BACKENDS) - len(EXTRA)


def test_put_copies_and_fetch_is_read_only():
    array = X.copy()
    node = buffer(array=array)
    array[:] = 0
    assert runtime.fetch(node).tolist() == X.tolist()
    assert not runtime.fetch(node).flags.writeable


def test_bf16_is_stored_as_bits():
    node = runtime.put(np.uint16([0x3F80]), bf16, "reference")
    assert runtime.fetch(ops.add(node, node)).tolist() == [0x4000]


def test_memory_that_is_not_there_is_a_capacity_error(monkeypatch):
    node, numpy = buffer(), backends.find("numpy")

    def fail(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(numpy, "to_numpy", fail)
    with pytest.raises(CapacityError, match=r"\[fetch\] out of memory on reference: no room"):
        runtime.fetch(node)
    monkeypatch.setattr(numpy, "from_numpy", fail)
    with pytest.raises(CapacityError, match=r"\[put\] out of memory on reference: no room"):
        buffer()


BITS = [
    (np.array([[0x7FC1, 0x8000, 1, 0xFF80]], np.uint16), bf16),
    (np.arange(2 * 36, dtype=np.uint8).reshape(2, 36), q4_0),
    (np.array([np.nan, -0.0, 1e-45, np.inf], np.float32), f32),
]


@pytest.mark.parametrize("there", DEVICES)
@pytest.mark.parametrize(("array", "dtype"), BITS)
def test_values_move_bit_by_bit(array, dtype, there):
    for here in DEVICES:
        moved = runtime.move(runtime.put(array, dtype, here), there)
        assert (moved.device, moved.dtype) == (there, dtype)
        assert runtime.fetch(moved).tobytes() == array.tobytes()


def test_nodes_without_a_device_are_computed_where_one_asks():
    (value,) = runtime.evaluate([ops.iota((3,), 0)], "reference")
    assert value.device == "reference"
    assert runtime.fetch(value).tolist() == [0, 1, 2]


def test_a_node_without_a_device_may_be_computed_on_several(metal):
    index = ops.iota((3,), 0)
    assert [runtime.evaluate([index], d)[0].device for d in ("reference", metal)] == ["reference", metal]
    assert runtime.evaluate([ops.mul(index, index)], metal)[0].device == metal


def test_devices_do_not_mix(metal):
    a, b = buffer(), buffer(metal)
    with pytest.raises(DeviceMismatch, match=r"\[add\] inputs on reference and on metal"):
        ops.add(a, b)
    with pytest.raises(DeviceMismatch, match="values on metal and on reference"):
        runtime.evaluate([ops.exp(a), ops.exp(b)])
    with pytest.raises(DeviceMismatch):
        runtime.evaluate([ops.exp(a)], metal)
    moved = runtime.move(ops.exp(a), metal)
    assert moved.device == metal
    assert runtime.fetch(ops.add(moved, b)).shape == (3,)


def test_values_are_computed_once_and_used_by_later_graphs(monkeypatch):
    seen = []
    compute = runtime._compute
    monkeypatch.setattr(runtime, "_compute", lambda nodes, where: seen.append(nodes) or compute(nodes, where))
    y = ops.exp(buffer())
    z = ops.add(y, y)
    first, again = runtime.evaluate([y, y])
    assert first is again
    runtime.evaluate([z, y])
    assert seen == [[y], [z]]


def test_what_an_evaluated_node_stood_on_is_not_run_again(monkeypatch):
    y = ops.exp(buffer())
    runtime.evaluate([y])
    graphs = []
    numpy = backends.find("numpy")
    compile_ = numpy.compile
    monkeypatch.setattr(numpy, "compile", lambda graph, **k: graphs.append(graph) or compile_(graph, **k))
    runtime.evaluate([ops.add(y, ops.sum(y))])
    assert sorted(n.op for n in graphs[0].nodes()) == ["add", "input", "sum"]


def test_outputs_of_one_call_are_taken_apart():
    positions = runtime.put(np.int32([0, 1]), graph.of_numpy(np.dtype(np.int32)), "reference")
    cos, sin = ops.rope_table(positions, np.array([1.0]), scale=1.0)
    runtime.evaluate([cos])
    both = ops.add(ops.mul(cos, cos), ops.mul(sin, sin))
    np.testing.assert_allclose(runtime.fetch(both), 1.0, rtol=1e-6)


def test_a_value_goes_when_its_node_does():
    y = ops.exp(buffer())
    runtime.evaluate([y])
    count = len(runtime._done)
    del y
    assert len(runtime._done) == count - 1


def test_large_constants_are_inputs_and_small_ones_are_not(monkeypatch):
    given = []
    numpy = backends.find("numpy")
    compile_ = numpy.compile
    monkeypatch.setattr(numpy, "compile", lambda graph, **k: given.append(graph) or compile_(graph, **k))
    x = buffer(array=np.zeros(1000, np.float32))
    runtime.evaluate([ops.add(ops.mul(x, 2.0), np.ones(1000, np.float32))])
    assert sorted(n.op for n in given[0].nodes()) == ["add", "constant", "input", "input", "mul"]


@pytest.mark.parametrize("leaf", [graph.input, graph.weight, graph.state])
def test_leaves_without_a_value_are_refused(leaf):
    with pytest.raises(InputError, match="has no value"):
        runtime.evaluate([ops.exp(leaf("x", (3,), f32))], "reference")


def test_symbolic_shapes_are_refused():
    with pytest.raises(InputError, match="symbolic size T"):
        runtime.evaluate([ops.iota((graph.Dim("T"),), 0)], "reference")
