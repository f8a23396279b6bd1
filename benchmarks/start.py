"""Claim: from a cold process to the first token, and peak memory with a full context, beside llama.cpp.

Every run is a process of its own; files are in the page cache. "start": the interpreter starts, the library
is imported, the file opened, one token fed. "memory": 2,000 tokens are fed and 8 replied, with keys and
values in f16 and in q8_0. "idle": processor time that a loaded engine uses while nobody asks for anything.

    python benchmarks/start.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from common import in_turn, machine, ratio, spread, write
from engines import ENGINES, spawn
from files import TYPES, file

KV_TYPES = ("f16", "q8_0")
FULL = "decode 8 2000"
SCRIPT = Path(__file__).parent / "engines.py"


def run(engine: str, path: Path, threads: int, task: str, kv: str = "f16") -> tuple[float, int]:
    """Seconds and peak bytes of a process that does one task."""
    began = time.perf_counter()
    command = [sys.executable, str(SCRIPT), engine, str(path), str(threads), kv]
    # An installed package has its compiled modules beside it; so should this one after the first round.
    compiled = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=compiled)
    assert process.stdin is not None
    process.stdin.write(f"{task}\n".encode())
    process.stdin.close()
    _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{engine} ended with status {status}")
    return time.perf_counter() - began, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def idle(engine: str, path: Path, threads: int, seconds: float = 2.0) -> float:
    """Share of one processor that a loaded engine uses while it waits (Linux)."""
    worker = spawn(engine, path, threads)
    worker.seconds("decode 4 0")
    time.sleep(0.5)
    before = _processor_seconds(worker.process.pid)
    time.sleep(seconds)
    used = _processor_seconds(worker.process.pid) - before
    worker.close()
    return used / seconds


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--type", choices=TYPES, default="Q4_1")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="where the raw results go; benchmarks/results/start.json")
    args = parser.parse_args()
    path, found = file(args.type), dict[str, Any]()

    start = in_turn({e: lambda e=e: run(e, path, args.threads, "prefill 1")[0] for e in ENGINES}, args.rounds)
    for engine, seconds in start.items():
        print(f"start   {engine:10} {spread(seconds)} s")
    found["start"] = {"seconds": start, "ratio": ratio(start["llama.cpp"], start["trivet"])}
    size = path.stat().st_size
    found["memory"] = {"file_bytes": size, "peak_bytes": {}}
    for kv in KV_TYPES:
        peaks = {e: median(run(e, path, args.threads, FULL, kv)[1] for _ in range(3)) for e in ENGINES}
        found["memory"]["peak_bytes"][kv] = peaks
        for engine, peak in peaks.items():
            print(
                f"memory  {engine:10} {kv:4} {peak / 1e6:.0f} MB, the file and {(peak - size) / 1e6:.0f} MB"
            )
    found["idle"] = {engine: partial(idle, engine, path, args.threads)() for engine in ENGINES}
    for engine, share in found["idle"].items():
        print(f"idle    {engine:10} {100 * share:.1f} % of a processor")
    write("start", args.json, {"machine": machine(args.threads), "type": args.type} | found)


if __name__ == "__main__":
    main()
