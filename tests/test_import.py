"""Importing trivet is cheap: nothing heavy comes with it, and memory stays small."""

import json
import subprocess
import sys

import trivet as tv

PROBE = """
import json, sys, time
start = time.perf_counter()
import trivet
seconds = time.perf_counter() - start
memory = next(line for line in open("/proc/self/status") if line.startswith("VmRSS:"))
print(json.dumps({"seconds": seconds, "kib": int(memory.split()[1]), "modules": sorted(sys.modules)}))
"""


def probe():
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_import_brings_nothing_heavy_and_little_memory():
    found = probe()
    heavy = {"numpy", "torch", "jinja2", "rich", "typer", "safetensors", "ctypes", "asyncio", "trivet.ops"}
    assert heavy.isdisjoint(found["modules"])
    assert found["kib"] < 40 * 1024, f"{found['kib']} KiB"
    print(f"import trivet: {found['seconds'] * 1000:.1f} ms, {found['kib'] / 1024:.1f} MiB")


def test_every_public_name_is_there():
    assert tv.__all__ == sorted(tv.__all__)
    for name in tv.__all__:
        assert getattr(tv, name) is not None
    assert set(tv.__all__) <= set(dir(tv))


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(tv, "nonesuch")


def test_public_names_have_documentation():
    for name in set(tv.__all__) - {
        "__version__",
        "bf16",
        "bool_",
        "f16",
        "f32",
        "f64",
        "i8",
        "i32",
        "i64",
        "u8",
    }:
        assert getattr(tv, name).__doc__, name
