"""Programs over several devices: eight of JAX's on the processor, and four chips of a described TPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import device_programs
import device_targets
import numpy as np
import pytest

from devices import EXTRA
from trivet import dtypes, graph, ops
from trivet.errors import DeviceUnavailable, InputError
from trivet.graph import Dim, Graph

if "xla-cpu" not in EXTRA:
    pytest.skip("compiles for minutes: make test-accel", allow_module_level=True)
pytest.importorskip("jax", reason="JAX is not installed: make test-accel")
pytest.importorskip("flatbuffers", reason="flatbuffers is not installed: make test-accel")

from trivet.backends.xla import BACKEND
from trivet.backends.xla.placement import divided, parse

MESHES = ["data:8", "data:4,model:2"]
HERE = Path(__file__).parent


@pytest.mark.parametrize("name", ["forward", "full step f32", "LoRA step f32", "QLoRA step f32"])
def test_a_mesh_computes_what_one_device_computes(name, tmp_path):
    path = os.pathsep.join([str(HERE), str(HERE.parent / "train"), str(HERE.parent), *sys.path])
    child = subprocess.run(
        [sys.executable, str(HERE / "sharded.py"), str(tmp_path), name, *MESHES],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    found = [json.loads(line) for line in child.stdout.splitlines()]
    assert [f["mesh"] for f in found] == MESHES
    for f in found:
        for key, far in f["far"].items():  # caches are of bf16, and second moments are squares
            most = 1e-3 if key.startswith("kv.") else 2e-5 if key.startswith("v.") else 1e-5
            assert far < most, (f["mesh"], key)
    assert any("model" in place for place in found[1]["places"].values())


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


def test_a_mesh_of_one_device_computes():
    x = graph.input("x", (2,), dtypes.f32)
    out = BACKEND.over("model:1").compile(Graph({"y": ops.neg(x)})).run({"x": np.float32([1, -2])})
    assert BACKEND.to_numpy(out["y"]).tolist() == [-1, 2]
