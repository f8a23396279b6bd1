#!/usr/bin/env python
"""Runs trivet on an accelerator that is here, and writes what was seen as JSON, within five minutes.

tests/device/run.py --require cuda       or rocm, tpu, metal: exit 1 if it is not there, or anything is wrong
tests/device/run.py --require xla-cpu --parts table --rows softmax
                                         some of it; xla-cpu and mlx-cpu are JAX and MLX on the processor

parity   SmolLM2's logits held to the reference; five steps of full, LoRA and QLoRA training, of a small Llama
         and of SmolLM2, held to the cpu device: losses within 1e-4 in float32, and their seconds
speed    SmolLM2 on the device and on the cpu: tokens a second of a prompt and of a reply
table    each row of the table in each dtype, and its gradient, held to the NumPy backend in float64

Needs trivet with the device's extra, and the group `test`. What there is no time for is left out, and then
the whole has failed: give it more --seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/train"), str(ROOT / "tests/device")]
PACKAGES = (
    "jax",
    "jaxlib",
    "libtpu",
    "jax-cuda13-plugin",
    "jax-cuda12-plugin",
    "jax-rocm7-plugin",
    "mlx",
    "numpy",
)
PARTS = ("parity", "speed", "table")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--require", metavar="DEVICE", required=True, help="the device that has to be here")
    parser.add_argument("--out", type=Path, help="where the JSON goes [DEVICE.json]")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rows", default="", help="only rows of the table with this in their name")
    parser.add_argument(
        "--seconds", type=float, default=300, help="what is not begun by then is left out [300]"
    )
    return parser.parse_args()


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit that runs, with a + if files were changed since."""
    git = ["git", "-C", str(ROOT)]
    try:
        found = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(
            [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip() + "+" * bool(changed.stdout)


def main() -> int:
    asked = arguments()
    os.environ.setdefault("TRIVET_TEST_DEVICES", "xla-cpu,mlx-cpu")
    import devices  # noqa: F401  gives JAX's and MLX's processors names
    from trivet import runtime
    from trivet.errors import TrivetError

    try:
        backend = runtime.backend(asked.require)
    except TrivetError as error:
        print(error, file=sys.stderr)
        return 1
    import cases

    began = time.perf_counter()
    evidence = {
        "device": asked.require, "details": backend.details(), "machine": platform.platform(),
        "commit": commit(), "versions": versions(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip
    run = cases.Run(asked.require, backend, began + asked.seconds, asked.rows)
    for part in asked.parts:
        since = time.perf_counter()
        evidence[part] = getattr(run, part)()
        print(f"{part}: {time.perf_counter() - since:.0f} s, {len(run.failed)} failed", flush=True)
    evidence |= {
        "failed": run.failed,
        "left out": run.left_out,
        "seconds": round(time.perf_counter() - began, 1),
    }
    out = asked.out or Path(f"{asked.require}.json")
    out.write_text(json.dumps(evidence, indent=1) + "\n", "utf-8")
    print(*(f"FAILED {name}: {why}" for name, why in run.failed.items()), sep="\n")
    if run.left_out:
        print(f"left out, there was no time: {len(run.left_out)} cases, such as {run.left_out[0]}")
    wrong = bool(run.failed or run.left_out)
    print(f"{'FAILED' if wrong else 'passed'} in {evidence['seconds']} s; wrote {out}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
