"""One contestant of a matrix product in a process of its own.

Reads tasks from standard input, a line each, "matmul KIND M K N SECONDS", the same with "matmul^T" (the
second operand as weights lie, [N, K]), or "linear" (that operand is a weight, arranged once), and answers
with the seconds of a call. All make the same numbers. Calls of a linear with few rows go round many copies of
the weight, as a model's do, so that it comes from memory.

    python benchmarks/products.py trivet|torch|numpy THREADS
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import common
import numpy as np

BYTES = {"f32": 4, "bf16": 2, "f16": 2, "i8": 1}
FEW, MEMORY = 8, 192 << 20  # so many rows are few; bytes of weights that their calls go round
Work = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    op: str
    kind: str
    m: int
    k: int
    n: int

    @property
    def gflop(self) -> float:
        return 2e-9 * self.m * self.k * self.n

    def bound(self, rates: dict[str, float]) -> float:
        """Seconds that arithmetic takes, or reading the operands from memory."""
        peak = rates["f32" if self.kind == "f16" else self.kind]
        moved = BYTES[self.kind] * (self.m * self.k + self.k * self.n)
        return max(2.0 * self.m * self.k * self.n / peak, moved / rates["read_bytes"])

    @property
    def copies(self) -> int:
        """Of the second operand, to go round."""
        if self.op != "linear":
            return 1
        return 1 + MEMORY // (BYTES[self.kind] * self.k * self.n) if self.m <= FEW else 2

    def operands(self) -> tuple[Any, Any]:
        """a and b as arrays that begin with a cache line; bf16 as uint16."""
        draw = np.random.default_rng(1)
        shapes = ((self.m, self.k), (self.k, self.n) if self.op == "matmul" else (self.n, self.k))
        if self.kind == "i8":
            a, b = (draw.integers(-128, 128, shape, np.int8) for shape in shapes)
            return common.aligned(a), common.aligned(b)
        a, b = (draw.standard_normal(shape, np.float32) for shape in shapes)
        if self.kind == "bf16":
            a, b = (((x.view(np.uint32) + 0x8000) >> 16).astype(np.uint16) for x in (a, b))
        if self.kind == "f16":
            a, b = a.astype(np.float16), b.astype(np.float16)
        return common.aligned(a), common.aligned(b)


def trivet(case: Case, a: Any, bs: list[Any]) -> list[Work]:
    """Runs of compiled programs on buffers made once, as a C caller has them."""
    from trivet import dtypes, graph, ops

    kind = getattr(dtypes, case.kind)
    x = graph.input("a", a.shape, kind)
    if case.op == "linear":
        y = ops.linear(x, graph.weight("b", bs[0].shape, kind))
        return [common.program({"c": y}, {"a": a}, lambda _, b=b: b) for b in bs]
    c = ops.matmul(x, graph.input("b", bs[0].shape, kind), transpose_b=case.op == "matmul^T")
    return [common.program({"c": c}, {"a": a, "b": b}) for b in bs]


def torch(case: Case, a: Any, bs: list[Any]) -> list[Work]:
    """Into an output made once, but for linear, which makes its own. Its int8 product refuses fewer than 17
    rows: it gets 17."""
    import torch

    torch.set_num_threads(int(sys.argv[2]))
    torch.set_grad_enabled(False)
    if case.kind == "i8" and case.m <= 16:
        a = np.concatenate([a, np.zeros((17 - case.m, case.k), np.int8)])
    x, *ys = (torch.from_numpy(v) for v in (a, *bs))
    if case.kind == "bf16":
        x, *ys = (v.view(torch.bfloat16) for v in (x, *ys))
    if case.op == "linear":
        return [partial(torch.nn.functional.linear, x, y) for y in ys]
    c = torch.empty(x.shape[0], case.n, dtype=torch.int32 if case.kind == "i8" else x.dtype)
    product = torch._int_mm if case.kind == "i8" else torch.mm
    return [partial(product, x, y if case.op == "matmul" else y.T, out=c) for y in ys]


def numpy(case: Case, a: Any, bs: list[Any]) -> list[Work]:
    c = common.aligned(np.empty((case.m, case.n), np.float32))
    return [partial(np.matmul, a, b if case.op == "matmul" else b.T, out=c) for b in bs]


CONTESTANTS = {"trivet": trivet, "torch": torch, "numpy": numpy}


class Contestant:
    """Keeps the operands of the case it was asked for last."""

    def __init__(self, name: str) -> None:
        self.make = CONTESTANTS[name]
        self.case: Case | None = None
        self.works: list[Work] = []

    def seconds(self, task: str) -> float:
        op, kind, *numbers, seconds = task.split()
        case = Case(op, kind, *map(int, numbers))
        if case != self.case:
            self.works = []
            a, b = case.operands()
            bs = [b, *(common.aligned(b) for _ in range(case.copies - 1))]
            self.case, self.works = case, self.make(case, a, bs)
        return common.timed(self.works, float(seconds))


class Contest:
    """All contestants' processes; one runs at a time."""

    def __init__(self, names: Sequence[str], threads: int) -> None:
        self.workers = {name: common.Worker(__file__, name, str(threads)) for name in names}

    def measure(self, case: Case, rounds: int, seconds: float) -> dict[str, list[float]]:
        task = f"{case.op} {case.kind} {case.m} {case.k} {case.n} {seconds}"
        names = [name for name in self.workers if name != "numpy" or case.kind == "f32"]
        return common.in_turn({name: partial(self.workers[name].alone, task) for name in names}, rounds)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()


def against_best(times: dict[str, list[float]]) -> float:
    """The median over rounds of the best peer's time by ours."""
    best = min((times[name] for name in times if name != "trivet"), key=median)
    return common.ratio(best, times["trivet"])


def line(case: Case, times: dict[str, list[float]], rates: dict[str, float]) -> str:
    share = 100 * case.bound(rates) / median(times["trivet"])
    speeds = "".join(f"{case.gflop / median(found):10.1f}" for found in times.values())
    low, high = (pick(times["trivet"]) for pick in (min, max))
    name = f"{case.op:9}{case.kind:5}{case.m:5}{case.k:6}{case.n:6}"
    return f"{name}{share:6.0f} %{100 * (high - low) / low:6.0f} %{against_best(times):7.2f}{speeds}"


HEAD = f"{'':9}{'':5}{'m':>5}{'k':>6}{'n':>6}{'bound':>8}{'spread':>8}{'ratio':>7}"


def options(doc: str | None, kinds: Sequence[str], rows: Sequence[int]) -> argparse.ArgumentParser:
    """What a claim's script can be told."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.02, help="per contestant and round, at least")
    parser.add_argument("--kinds", nargs="+", default=list(kinds), choices=kinds)
    parser.add_argument("--rows", type=int, nargs="*", default=list(rows))
    parser.add_argument("--json", help="write the raw results here")
    return parser


def run(
    claim: str, contestants: Sequence[str], cases: Iterable[Case], args: argparse.Namespace, unit: str
) -> None:
    """Measures the cases, prints a line each, and writes the results."""
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # a peer runs as it would by itself
        os.environ.pop(name, None)
    for name in ("TRIVET_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = str(args.threads)
    info = common.machine(args.threads)
    contest = Contest(contestants, args.threads)
    print(HEAD + "".join(f"{name:>10}" for name in contestants) + f"   {unit}")
    results = []
    for case in cases:
        times = contest.measure(case, args.rounds, args.seconds)
        results.append({**asdict(case), "seconds": times, "ratio": against_best(times)})
        print(line(case, times, info["rates"]), flush=True)
    contest.close()
    common.write(claim, args.json, {"machine": info, "args": vars(args), "cases": results})


if __name__ == "__main__":
    common.serve(Contestant(sys.argv[1]).seconds)
