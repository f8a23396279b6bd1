"""Programs over several devices: eight of JAX's on the processor, and four chips of a described TPU."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import device_programs
import device_targets
import numpy as np
import pytest

import trivet as tv
from devices import EXTRA
from trivet import dtypes, graph, ops
from trivet.errors import DeviceUnavailable, InputError
from trivet.graph import Dim, Graph

if "xla-cpu" not in EXTRA:
    pytest.skip("compiles for minutes: make test-accel", allow_module_level=True)
pytest.importorskip("jax", reason="JAX is not installed: make test-accel")
pytest.importorskip("flatbuffers", reason="flatbuffers is not installed: make test-accel")

import jax
from jax.sharding import AbstractMesh

from trivet.backends.mesh import parse
from trivet.backends.xla import BACKEND
from trivet.backends.xla.placement import Placement, divided

MESHES = ["data:8", "data:4,model:2"]
HERE = Path(__file__).parent


def printed(script, *arguments):
    """The JSON lines that a child with eight devices prints."""
    path = os.pathsep.join([str(HERE), str(HERE.parent / "train"), str(HERE.parent), *sys.path])
    child = subprocess.run(
        [sys.executable, str(HERE / script), *map(str, arguments)],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return [json.loads(line) for line in child.stdout.splitlines()]


@pytest.mark.parametrize("name", ["forward", "full step f32", "LoRA step f32", "QLoRA step f32"])
def test_a_mesh_computes_what_one_device_computes(name, tmp_path):
    found = printed("sharded.py", tmp_path, name, *MESHES)
    assert [f["mesh"] for f in found] == MESHES
    for f in found:
        for key, far in f["far"].items():  # caches are of bf16, and second moments are squares
            most = 1e-3 if key.startswith("kv.") else 2e-5 if key.startswith("v.") else 1e-5
            assert far < most, (f["mesh"], key)
    assert any("model" in place for place in found[1]["places"].values())


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_a_model_is_tuned_over_a_mesh_as_on_one_device(method, tmp_path):
    (found,) = printed("meshed.py", tmp_path, method, "data:4,model:2")
    np.testing.assert_allclose(*found["losses"], rtol=1e-5)
    assert found["logits"] < 1e-5
    assert max(found["far"].values()) < 1e-4  # AdamW divides small gradients by their own size
    assert found["on"] == [[8], [1]]  # a run goes on over its own mesh, or over another


@pytest.mark.parametrize("aim", ["v5e", "v6e"])
@pytest.mark.parametrize("name", ["forward", "full step bf16", "QLoRA step bf16"])
def test_a_step_over_four_chips_compiles(name, aim, small, compile_for):
    made = device_programs.build(name, small)
    found = compile_for(aim, "small Llama on 4 chips", name, made, mesh="data:2,model:2")
    assert len(device_targets.topology(aim).devices) == 4
    assert found["collectives"] > 4


PLACES = {
    "blk.3.attn_q.weight": (0, "model"),
    "blk.3.ffn_down.weight": (1, "model"),
    "m.blk.3.ffn_down.weight": (1, "model"),
    "v.blk.3.ffn_up.weight@64": (0, "model"),
    "token_embd.weight": (0, "model"),
    "blk.3.attn_q.weight.lora_a": (None, "model"),
    "blk.3.attn_q.weight.lora_b": (0, "model"),
    "blk.3.attn_output.weight.lora_a": (1, "model"),
    "m.blk.3.attn_output.weight.lora_b": (None, "model"),
    "kv.0.k": (1, "model"),
}


@pytest.mark.parametrize("name", PLACES)
def test_names_say_where_matrices_are_divided(name):
    assert divided(graph.state(name, (8, 8), dtypes.f32)) == PLACES[name]


def test_tokens_are_divided_and_vectors_are_not():
    assert divided(graph.input("ids", (Dim("T"),), dtypes.i32)) == (0, "data")
    assert divided(graph.input("rates", (3,), dtypes.f32))[0] is None
    assert divided(graph.weight("output_norm.weight", (8,), dtypes.f32))[0] is None


@pytest.mark.parametrize("mesh", ["data", "data:0", "rows:2", "data:2,data:2", "data:2;model:2", "model:-1"])
def test_a_mesh_that_is_none_is_refused(mesh):
    with pytest.raises(InputError, match="wanted the axes data, model"):
        parse(mesh)


def test_a_mesh_of_more_devices_than_there_are_is_refused():
    x = graph.input("x", (2,), dtypes.f32)
    with pytest.raises(DeviceUnavailable, match=r"'data:64' wants 64 devices; there are \d"):
        BACKEND.over("data:64").compile(Graph({"y": ops.neg(x)}))


@pytest.mark.parametrize(
    ("mesh", "error", "said"),
    [
        ("rows:2", InputError, "wanted the axes data, model"),
        ("data:3", InputError, "data:3 does not divide 256 tokens"),
        ("data:64", DeviceUnavailable, "wants 64 devices"),
    ],
)
def test_a_wrong_mesh_is_refused_before_a_file_is_opened(mesh, error, said, tmp_path):
    with pytest.raises(error, match=said):
        tv.load(tmp_path / "none.gguf", "xla-cpu", mesh=mesh)
    with pytest.raises(error, match=said):
        tv.finetune(
            tmp_path / "none.gguf", tmp_path / "none", out=tmp_path / "o", device="xla-cpu", mesh=mesh
        )


@pytest.mark.parametrize(("rows", "refused"), [(6, False), (7, True)])
def test_an_axis_that_divides_nothing_is_refused(rows, refused):
    """As two devices would have it; there need not be two."""
    placement = Placement(jax.devices()[:1] * 2)
    placement.mesh = AbstractMesh((2,), ("model",))
    x, w = graph.input("x", (3, 5), dtypes.f32), graph.weight("blk.0.attn_q.weight", (rows, 5), dtypes.f32)
    given = Graph({"y": ops.linear(x, w)})
    with pytest.raises(InputError, match="divides none of 1 matri") if refused else nullcontext():
        placement.refuse_idle(given)


def test_a_mesh_of_one_device_computes():
    x = graph.input("x", (2,), dtypes.f32)
    out = BACKEND.over("model:1").compile(Graph({"y": ops.neg(x)})).run({"x": np.float32([1, -2])})
    assert BACKEND.to_numpy(out["y"]).tolist() == [-1, 2]
