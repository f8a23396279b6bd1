"""Descriptions of devices that are not here, their compilers, and what is read out of compiled programs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

# Before libtpu and the CUDA plugin are loaded: they would look for a machine, and say much about it.
for name, value in {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
}.items():  # fmt: skip
    os.environ.setdefault(name, value)

#: NVIDIA's data sheet, and what CUDA says of sm_90; the "a" of sm_90a is in the feature extension.
H200 = """
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  device_memory_size: 150754820096 memory_bandwidth: 4814000000000 l2_cache_size: 62914560
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  registers_per_block_limit: 65536 registers_per_core_limit: 65536
}
platform_name: "CUDA"
runtime_version { major: 13 minor: 0 }
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H200"
"""
#: target -> (JAX's platform, the wheels of its compiler, its name and options for `get_topology_desc`)
TARGETS: dict[str, tuple[str, tuple[str, ...], str, dict[str, str]]] = {
    "v5e": ("tpu", ("libtpu",), "v5e:2x2", {}),
    "v6e": ("tpu", ("libtpu",), "v6e:2x2", {}),
    "h200": (
        "cuda", ("jax-cuda13-plugin", "jax-cuda13-pjrt"), "h200",
        {"topology": "1x1x1", "target_config": H200},
    ),
}  # fmt: skip


#: the "model" of rows that are compiled alone
ALONE = "a row alone"


def missing(target: str) -> str | None:
    """None if the target's compiler is installed, else what is not."""
    for wheel in ("jax", *TARGETS[target][1]):
        try:
            metadata.version(wheel)
        except metadata.PackageNotFoundError:
            return f"{wheel} is not installed: make test-accel"
    return None


def versions(target: str) -> str:
    """The packages that compile for a target, for the record."""
    return ", ".join(f"{w} {metadata.version(w)}" for w in ("jax", *TARGETS[target][1]))


@cache
def topology(target: str) -> Any:
    from jax.experimental import topologies

    platform, _, name, options = TARGETS[target]
    return topologies.get_topology_desc(name, platform, **options)


def compile_for(target: str, graph: Any, sizes: Mapping[str, int], dump: Path, **more: Any) -> dict[str, Any]:
    """Compiles a graph, and gives what is worth knowing about the program."""
    from trivet.backends.xla import target as xla

    platform = TARGETS[target][0]
    options = {"xla_dump_to": str(dump)} if platform == "cuda" else None
    begin = time.perf_counter()
    made = xla.compiled(graph, sizes, topology(target), platform, options, **more)
    seconds = time.perf_counter() - begin
    memory, text = made.memory_analysis(), made.as_text()
    return {
        "seconds": round(seconds, 1),
        "arguments": memory.argument_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "accessed": int(
            (made.cost_analysis() or {}).get("bytes accessed", 0)
        ),  # the GPU's compiler is silent
        "aliased": memory.alias_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
        "products": products(text),
        "collectives": len(_COLLECTIVE.findall(text)),
        "instructions": instructions(dump),
        "compiler": versions(target),
    }


_COLLECTIVE = re.compile(
    r" (?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
_VALUE = re.compile(r"%([\w.-]+) = \(?(\w+)\[|%?([\w.-]+): (\w+)\[")
_PRODUCT = re.compile(r" (?:dot|convolution)\(%([\w.-]+), %([\w.-]+)\)")
_GEMM = re.compile(r" custom-call\(%([\w.-]+), %([\w.-]+)[^\n]*(?:cublas|gemm)")


def products(text: str) -> dict[str, int]:
    """How many matrix products of which operands an HLO module has: {"bf16": 12, "f32": 3}."""
    kinds = {a or c: b or d for a, b, c, d in _VALUE.findall(text)}
    found: dict[str, int] = {}
    for pattern in (_PRODUCT, _GEMM):
        for left, right in pattern.findall(text):
            kind = " x ".join(sorted({kinds[left], kinds[right]}))
            found[kind] = found.get(kind, 0) + 1
    return dict(sorted(found.items()))


_MMA = re.compile(r"\b(mma\.sync|wgmma\.mma_async)\.[\w.]*?\.f32\.(\w+)\.")


def instructions(dump: Path) -> dict[str, int]:
    """The matrix instructions of the PTX that was dumped: {"mma.sync bf16": 12}."""
    found: dict[str, int] = {}
    for file in dump.glob("*.ptx"):
        for name, kind in _MMA.findall(file.read_text("utf-8")):
            found[f"{name} {kind}"] = found.get(f"{name} {kind}", 0) + 1
    return dict(sorted(found.items()))
