"""What the benchmark scripts share: the machine, rounds in turn, and results as JSON."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"


def processor() -> str:
    """The processor's name, as the system has it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine(threads: int) -> dict[str, Any]:
    """The processor, what it can do at most with so many threads, and the versions of who is compared."""
    from trivet.backends.native import cpu_rates
    from trivet.backends.native.backend import cpu_info

    info, rates = cpu_info(), cpu_rates(threads)
    versions = {}
    for name in ("numpy", "torch", "llama_cpp_python"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": processor(),
        "isa": info.isa.decode(),
        "features": info.features.decode(),
        "processors": info.processors,
        "threads": threads,
        "rates": {name: getattr(rates, name) for name in ("read_bytes", "f32", "bf16", "i8")},
        "python": platform.python_version(),
        "versions": versions,
    }


class Worker:
    """A contestant in a process of its own: a script that answers tasks, as serve() does."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self, task: str) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(task + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.process.args} ended at {task!r}")
        return float(answer)

    def alone(self, task: str) -> float:
        """The same of a process that stands still between its tasks: its threads may wait awake."""
        self.process.send_signal(signal.SIGCONT)
        seconds = self.seconds(task)
        self.process.send_signal(signal.SIGSTOP)
        return seconds

    def close(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.communicate()


def serve(seconds: Callable[[str], float]) -> None:
    """A worker's side: a task a line on standard input, the seconds it took on standard output."""
    for task in sys.stdin:
        print(seconds(task.strip()), flush=True)


def timed(works: Sequence[Callable[[], Any]], seconds: float) -> float:
    """The least time of a call, of calls that last `seconds` together, at least three, and use every work:
    other programs are in the way of some."""
    taken: list[float] = []
    while len(taken) < max(len(works), 3) or sum(taken) < seconds:
        began = time.perf_counter()
        works[len(taken) % len(works)]()
        taken.append(time.perf_counter() - began)
    return min(taken)


def in_turn(contestants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Runs each contestant once a round, in order: what each gave, round by round. A first round is thrown
    away."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, run in contestants.items():
            value = run()
            if turn:
                found[name].append(value)
    return found


def aligned(x: Any) -> Any:
    """A copy that begins where a cache line does."""
    import numpy as np

    memory = np.zeros(x.nbytes + 63, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def tensors(arrays: Iterable[Any], kinds: Iterable[Any]) -> Any:
    """NumPy arrays as the core takes them, each with its trivet dtype."""
    from trivet import _native as core

    kept = list(arrays)
    views: Any = (core.tv_tensor * len(kept))()
    views.kept = kept
    for view, x, kind in zip(views, kept, kinds, strict=True):
        view.data, view.dtype, view.rank = x.ctypes.data, kind.id, x.ndim
        view.shape = (ctypes.c_int64 * x.ndim)(*x.shape)
    return views


def stored(x: Any) -> Any:
    """A torch tensor's numbers as trivet keeps them."""
    import numpy as np
    import torch

    return x.view(torch.int16).numpy().view(np.uint16) if x.dtype == torch.bfloat16 else x.numpy()


def program(outputs: Mapping[str, Any], arrays: Mapping[str, Any], weights: Any = None) -> Callable[[], Any]:
    """Runs of a graph on buffers made once, as a C caller has them."""
    import numpy as np

    from trivet import _native as core
    from trivet import graph
    from trivet.backends.native import BACKEND

    made = graph.Graph(outputs)
    kinds = {node.attrs["name"]: node.dtype for node in made.nodes() if node.op == "input"}
    compiled = BACKEND.compile(made, weights=weights, sizes={})
    names = compiled._inputs
    ins = tensors((arrays[name] for name in names), [kinds[name] for name in names])
    zeros = (aligned(np.zeros(node.shape, graph.to_numpy(node.dtype))) for node in outputs.values())
    outs = tensors(zeros, [node.dtype for node in outputs.values()])
    return lambda: core.tv_program_run(compiled._handle, ins, len(ins), outs, len(outs))


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios round by round: what drifts from round to round cancels."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def spread(values: list[float]) -> str:
    return f"{median(values):.4g} ({min(values):.4g}–{max(values):.4g})"


def write(name: str, path: str | None, result: Mapping[str, Any]) -> None:
    """The raw results as JSON, at `path` or among the results kept beside the scripts."""
    out = Path(path) if path else RESULTS / f"{name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"raw results: {out}", file=sys.stderr)
