"""Claim: a step of AdamW, and the global norm of gradients, beside PyTorch's fused AdamW and its norm.

Both take parameters, moments and gradients in the shapes of SmolLM2-135M, on as many threads, in turn, each
in a process of its own that stands still between its turns. A figure is the median over rounds of the time
of a step, the ratio the median over rounds of PyTorch's time by ours. "bound" is the share of what memory
allows: the bytes that are read and written by the rate at which this processor reads.

    python benchmarks/optimizer.py --threads 2 --rounds 5
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import common
import numpy as np

LAYERS, WIDTH, HIDDEN, KEYS, VOCABULARY = 30, 576, 1536, 192, 49152
BLOCK = (
    (WIDTH,), (WIDTH, WIDTH), (KEYS, WIDTH), (KEYS, WIDTH), (WIDTH, WIDTH),
    (WIDTH,), (HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN),
)  # fmt: skip
SHAPES = [(VOCABULARY, WIDTH), *BLOCK * LAYERS, (WIDTH,)]
COUNT = sum(int(np.prod(shape)) for shape in SHAPES)
TASKS = ("adamw f32", "norm f32", "norm bf16")
#: bytes per parameter that are read and written
MOVED = {"adamw f32": 28, "norm f32": 4, "norm bf16": 2}
Work = Callable[[], Any]


def gradients(kind: str) -> list[Any]:
    draw = np.random.default_rng(1)
    made = [draw.standard_normal(shape, np.float32) for shape in SHAPES]
    return made if kind == "f32" else [(x.view(np.uint32) >> 16).astype(np.uint16) for x in made]


def trivet(task: str) -> Work:
    """Runs of a compiled program on buffers made once, as a C caller has them."""
    from trivet import _native as core
    from trivet import dtypes, graph, ops
    from trivet.backends.native import BACKEND
    from trivet.optim import AdamW

    name, kind = task.split()
    dtype = getattr(dtypes, kind)
    gs = [graph.input(f"g{i}", shape, dtype) for i, shape in enumerate(SHAPES)]
    arrays = dict(zip((g.attrs["name"] for g in gs), gradients(kind), strict=True))
    if name == "norm":
        peak, ratio = ops.grad_norm(gs)
        return common.program({"peak": peak, "ratio": ratio}, arrays)
    rates, scale = graph.input("rates", (3,), dtypes.f32), graph.input("scale", (), dtypes.f32)
    arrays |= {"rates": AdamW().rates(1e-3, 1), "scale": np.float32(1)}
    updates: dict[str, Any] = {}
    for i, g in enumerate(gs):
        states = [graph.state(f"{part}{i}", g.shape, dtypes.f32) for part in "pmv"]
        made = ops.adamw(states[0], g, states[1], states[2], rates, scale)
        updates |= {state.attrs["name"]: new for state, new in zip(states, made, strict=True)}
    compiled = BACKEND.compile(graph.Graph({}, updates), sizes={})
    names = compiled._inputs
    ins = common.tensors((np.asarray(arrays[n]) for n in names), [dtypes.f32] * len(names))
    return lambda: core.tv_program_run(compiled._handle, ins, len(ins), None, 0)


def torch(task: str) -> Work:
    import torch

    torch.set_num_threads(int(sys.argv[2]))
    name, kind = task.split()
    gs = [torch.from_numpy(g) for g in gradients(kind)]
    if kind == "bf16":
        gs = [g.view(torch.bfloat16) for g in gs]
    if name == "norm":
        return lambda: torch.nn.utils.get_total_norm(gs, foreach=True)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    for p, g in zip(parameters, gs, strict=True):
        p.grad = g
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True).step


class Contestant:
    """A worker's side; the work of the last task is kept."""

    def __init__(self, name: str) -> None:
        self.make = {"trivet": trivet, "torch": torch}[name]
        self.task, self.work = "", None

    def seconds(self, task: str) -> float:
        if task != self.task:
            self.work = None  # the old one's memory goes first
            self.task, self.work = task, self.make(task)
            self.work()
        return common.timed([self.work], 0.3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="write the raw results here")
    args = parser.parse_args()
    for name in ("TRIVET_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = str(args.threads)
    info = common.machine(args.threads)
    workers = {name: common.Worker(__file__, name, str(args.threads)) for name in ("trivet", "torch")}
    print(f"{'':12}{'bound':>8}{'ratio':>7}{'trivet':>10}{'torch':>10}   (ms per 100 million parameters)")
    results = []
    for task in TASKS:
        runs = {name: lambda worker=worker, task=task: worker.alone(task) for name, worker in workers.items()}
        times = common.in_turn(runs, args.rounds)
        share = MOVED[task] * COUNT / info["rates"]["read_bytes"] / median(times["trivet"])
        speeds = "".join(f"{median(found) * 1e11 / COUNT:10.1f}" for found in times.values())
        print(
            f"{task:12}{share:8.0%}{common.ratio(times['torch'], times['trivet']):7.2f}{speeds}", flush=True
        )
        results.append({"task": task, "parameters": COUNT, "seconds": times})
    for worker in workers.values():
        worker.close()
    common.write("optimizer", args.json, {"machine": info, "args": vars(args), "cases": results})


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("trivet", "torch"):
        common.serve(Contestant(sys.argv[1]).seconds)
    else:
        main()
