#!/usr/bin/env python
"""Runs trivet on an accelerator that is here, and writes what was seen as JSON, within five minutes.

tests/device/run.py --require cuda       or rocm, tpu, metal: exit 1 if it is not there, or anything is wrong
tests/device/run.py --require xla-cpu --parts table --rows softmax
                                         some of it; xla-cpu and mlx-cpu are JAX and MLX on the processor

table    every sample of each row in each dtype, and its gradient, held to the NumPy backend in float64. A
         row's samples are one program; where it fails, they run one by one, and the wrong ones are named
parity   SmolLM2's logits held to the reference; five steps of full, LoRA and QLoRA training, of a small Llama
         and of SmolLM2, held to the cpu device: losses within 1e-4 in float32
speed    SmolLM2 on the device and on the cpu: tokens a second of a prompt and of a reply, after all else

Needs trivet with the device's extra, and the group `test`. Programs compile side by side, one for each
processor. When the time is up the evidence is written, what is not done is left out of it, and the whole has
failed; so it is when interrupted. Slower machines than an accelerator's host need more --seconds. A GPU's
compiler also times ways of computing products: XLA_FLAGS=--xla_gpu_autotune_level=0 has it not do so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

BEGAN = time.perf_counter()
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
PARTS = ("table", "parity", "speed")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--require", metavar="DEVICE", required=True, help="the device that has to be here")
    parser.add_argument("--out", type=Path, help="where the JSON goes [DEVICE.json]")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rows", default="", help="only rows of the table with this in their name")
    parser.add_argument(
        "--seconds", type=float, default=300, help="what is not done by then is left out [300]"
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


class Seen:
    """What the jobs gave, or why they failed, by part and name."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
        self.failed: dict[str, str] = {}

    def of(self, job: Any) -> None:
        """Runs it."""
        since = time.perf_counter()
        try:
            gave = job.run()
        except Exception as error:
            self.failed[f"{job.part}, {job.name}"] = f"{type(error).__name__}: {error}"[:500]
            gave = {}
        failed = gave.pop("failed", {})
        self.failed |= {f"{job.part}, {job.name}, {case}": why for case, why in failed.items()}
        self.parts[job.part][job.name] = gave | {"seconds": round(time.perf_counter() - since, 2)}
        print(f"{time.perf_counter() - BEGAN:5.0f} s  {job.part}, {job.name}", flush=True)


def finished(stages: Sequence[Sequence[Any]], seen: Seen, workers: int, until: float) -> list[str]:
    """Runs each stage's jobs side by side, one stage after another; gives the names of those that were not
    done when the time was up, or at the first interrupt."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pool = ThreadPoolExecutor(workers)
    try:
        for stage in stages:
            wait([pool.submit(seen.of, job) for job in stage], max(0, until - time.perf_counter()))
            if time.perf_counter() > until:
                break
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    pool.shutdown(wait=False, cancel_futures=True)
    jobs = [job for stage in stages for job in stage]
    return [f"{job.part}, {job.name}" for job in jobs if job.name not in seen.parts[job.part]]


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
    try:
        import cases
    except ModuleNotFoundError as error:
        print(f"{error.name} is missing: {sys.executable} -m pip install --group test", file=sys.stderr)
        return 1
    seen = Seen()
    ready, measured = cases.speed(asked.require) if "speed" in asked.parts else ([], [])
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        jobs = cases.parity(asked.require, Path(folder)) if "parity" in asked.parts else []
        jobs += ready + (cases.table(backend, asked.rows) if "table" in asked.parts else [])
        workers = (os.cpu_count() or 1) if backend.name == "xla" else 1  # the others compile nothing for long
        stages = [jobs, *([job] for job in measured)]
        left_out = finished(stages, seen, workers, BEGAN + asked.seconds)
    return reported(asked, backend, seen, left_out)


def reported(asked: argparse.Namespace, backend: Any, seen: Seen, left_out: Sequence[str]) -> int:
    """Writes the evidence and says what was wrong."""
    parts, failed = {part: dict(seen.parts[part]) for part in asked.parts}, dict(seen.failed)
    evidence = {
        "device": asked.require, "details": backend.details(), "machine": platform.platform(),
        "processors": os.cpu_count(), "commit": commit(), "versions": versions(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **parts, "failed": failed,
        "left out": left_out, "seconds": round(time.perf_counter() - BEGAN, 1),
        "processor seconds": round(time.process_time(), 1),
    }  # fmt: skip
    out = asked.out or Path(f"{asked.require}.json")
    out.write_text(json.dumps(evidence, indent=1) + "\n", "utf-8")
    for name, why in failed.items():
        print(f"FAILED {name}: {why}")
    if left_out:
        print(f"left out, not done in time: {len(left_out)} jobs, such as {left_out[0]}")
    if table := parts.get("table"):
        print(f"{sum(job.get('passed', 0) for job in table.values())} cases of the table passed")
    wrong = bool(failed or left_out)
    print(f"{'FAILED' if wrong else 'passed'} in {evidence['seconds']} s; wrote {out}", flush=True)
    if left_out:
        os._exit(1)  # what still compiles would hold the process
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
