"""Claim: matrix products in float32, bf16, f16 and int8, beside PyTorch's and (float32) NumPy's OpenBLAS.

All take the same numbers, on the same threads, in turn, into outputs made once; a figure is the median over
rounds of the least time of a call, the ratio the median over rounds of the best peer's time by ours.
Trivet's calls are runs of a compiled program on buffers made once, as a C caller has them. Flat shapes have
the second operand as weights lie, [N, K]. PyTorch's int8 product refuses fewer than 17 rows: it gets 17. "of
bound" is the share of what this processor can do at most, measured before: arithmetic or, if that is less,
reading the operands from memory (they may lie in a cache, so it can pass 100 %).

    python benchmarks/gemm.py --threads 2 --rounds 5
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

SQUARES = (256, 512, 1024, 2048, 4096)
ROWS = (1, 8, 64, 512)
WEIGHTS = ((576, 1536), (1536, 576), (2048, 8192), (576, 49152))  # K, N
KINDS = ("f32", "bf16", "f16", "i8")
BYTES = {"f32": 4, "bf16": 2, "f16": 2, "i8": 1}
IDLE = 0.04  # seconds before a contestant's turn, for the threads of the one before to go to sleep
Work = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    kind: str
    m: int
    k: int
    n: int
    transposed: bool

    @property
    def gflop(self) -> float:
        return 2e-9 * self.m * self.k * self.n

    def bound(self, rates: dict[str, float]) -> float:
        """Seconds that arithmetic takes, or reading the operands."""
        peak = rates["f32" if self.kind == "f16" else self.kind]
        moved = BYTES[self.kind] * (self.m * self.k + self.k * self.n)
        return max(2.0 * self.m * self.k * self.n / peak, moved / rates["read_bytes"])


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for kind in args.kinds:
        yield from (Case(kind, n, n, n, False) for n in args.squares)
        yield from (Case(kind, m, k, n, True) for k, n in WEIGHTS for m in args.rows)


def operands(case: Case) -> tuple[Any, Any]:
    """a and b as torch tensors."""
    import torch

    torch.manual_seed(1)
    shapes = ((case.m, case.k), (case.n, case.k) if case.transposed else (case.k, case.n))
    if case.kind == "i8":
        a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in shapes)
    else:
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[case.kind]
        a, b = (torch.randn(shape).to(dtype) for shape in shapes)
    return a, b


def trivet_work(case: Case, a: Any, b: Any) -> Work:
    from common import program, stored

    from trivet import dtypes, graph, ops

    arrays = {"a": stored(a), "b": stored(b)}
    kind = getattr(dtypes, case.kind)
    x, y = (graph.input(name, array.shape, kind) for name, array in arrays.items())
    return program({"c": ops.matmul(x, y, transpose_b=case.transposed)}, arrays)


def torch_work(case: Case, a: Any, b: Any) -> Work:
    import torch

    if case.transposed:
        b = b.T
    if case.kind != "i8":
        c = torch.empty(case.m, case.n, dtype=a.dtype)
        return lambda: torch.mm(a, b, out=c)
    if case.m <= 16:
        a = torch.cat([a, torch.zeros(17 - case.m, case.k, dtype=torch.int8)])
    c = torch.empty(a.shape[0], case.n, dtype=torch.int32)
    return lambda: torch._int_mm(a, b, out=c)


def numpy_work(case: Case, a: Any, b: Any) -> Work:
    import numpy as np

    x, y = a.numpy(), b.numpy()
    if case.transposed:
        y = y.T
    c = np.empty((case.m, case.n), np.float32)
    return lambda: np.matmul(x, y, out=c)


def timed(work: Work, seconds: float) -> float:
    """The least time of a call, over calls that last `seconds` together."""
    time.sleep(IDLE)
    best, spent = float("inf"), 0.0
    while spent < seconds:
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
        best, spent = min(best, took), spent + took
    return best


def measure(case: Case, rounds: int, seconds: float) -> dict[str, list[float]]:
    from common import in_turn

    a, b = operands(case)
    works = {"trivet": trivet_work(case, a, b), "torch": torch_work(case, a, b)}
    if case.kind == "f32":
        works["numpy"] = numpy_work(case, a, b)
    return in_turn({name: (lambda w=work: timed(w, seconds)) for name, work in works.items()}, rounds)


def against_best(times: dict[str, list[float]]) -> float:
    """The median over rounds of the best peer's time by ours."""
    peers = [times[name] for name in times if name != "trivet"]
    best = min(peers, key=median)
    return median(b / a for a, b in zip(times["trivet"], best, strict=True))


def line(case: Case, times: dict[str, list[float]], rates: dict[str, float]) -> str:
    speed = {name: case.gflop / median(found) for name, found in times.items()}
    share = 100 * case.bound(rates) / median(times["trivet"])
    return (
        f"{case.kind:5}{case.m:5}{case.k:6}{case.n:6}{' b^T' if case.transposed else '':5}"
        f"{speed['trivet']:9.1f}{share:6.0f} %{speed['torch']:9.1f}{speed.get('numpy', 0):9.1f}"
        f"{against_best(times):7.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.02, help="per contestant and round, at least")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--squares", type=int, nargs="*", default=list(SQUARES))
    parser.add_argument("--rows", type=int, nargs="*", default=list(ROWS))
    parser.add_argument("--json", help="write the raw results here")
    args = parser.parse_args()
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # a peer runs as it would by itself
        os.environ.pop(name, None)
    for name in ("TRIVET_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = str(args.threads)

    import torch
    from common import machine, write

    torch.set_num_threads(args.threads)
    info = machine(args.threads)
    print("           m     k     n       trivet of bound    torch    numpy  ratio   (GFLOP/s, GOP/s)")
    results = []
    for case in cases(args):
        times = measure(case, args.rounds, args.seconds)
        results.append({**asdict(case), "seconds": times, "ratio": against_best(times)})
        print(line(case, times, info["rates"]), flush=True)
    write("gemm", args.json, {"machine": info, "args": vars(args), "cases": results})


if __name__ == "__main__":
    sys.exit(main())
