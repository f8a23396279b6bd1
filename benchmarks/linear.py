"""Claim: products with a weight matrix, arranged once, beside PyTorch's linear.

Both take the same numbers, on the same threads, in turn, into outputs made once or as PyTorch makes them; a
figure is the median over rounds of the median time of a call, a ratio the median over rounds of theirs by
ours. Calls of few rows go round many weights, as a model's do, so that a weight comes from memory; calls of
many, which wait for arithmetic, take two in turn. Trivet's calls are runs of compiled programs on buffers
made once, as a C caller has them. "of bound" is the share of what this processor can do at most, measured
before: arithmetic or, if that is less, reading the weight.

    python benchmarks/linear.py --threads 2 --rounds 5
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

ROWS = (1, 8, 64, 512)
SHAPES = ((576, 576), (576, 1536), (1536, 576), (2048, 8192), (576, 49152))  # K, N
KINDS = ("f32", "bf16")
BYTES = {"f32": 4, "bf16": 2}
FEW, MEMORY = 8, 192 << 20  # so many rows are few; bytes of weights that their calls go round
Work = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    kind: str
    m: int
    k: int
    n: int

    @property
    def gflop(self) -> float:
        return 2e-9 * self.m * self.k * self.n

    @property
    def weight_bytes(self) -> int:
        return BYTES[self.kind] * self.k * self.n

    def bound(self, rates: dict[str, float]) -> float:
        """Seconds that arithmetic takes, or reading the weight."""
        return max(2.0 * self.m * self.k * self.n / rates[self.kind], self.weight_bytes / rates["read_bytes"])


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for kind in args.kinds:
        yield from (Case(kind, m, k, n) for k, n in SHAPES for m in args.rows)


def trivet_works(case: Case, x: Any, weights: list[Any]) -> list[Work]:
    """A call for each weight."""
    from common import program, stored

    from trivet import dtypes, graph, ops

    kind = getattr(dtypes, case.kind)
    y = ops.linear(graph.input("x", tuple(x.shape), kind), graph.weight("w", (case.n, case.k), kind))
    return [program({"y": y}, {"x": stored(x)}, lambda _, w=w: stored(w)) for w in weights]


def torch_works(x: Any, weights: list[Any]) -> list[Work]:
    from torch.nn import functional

    return [partial(functional.linear, x, w) for w in weights]


def timed(works: list[Work], seconds: float) -> float:
    """The median time of a call, over calls that last `seconds` together and use every weight."""
    time.sleep(0.005)  # let the other side's threads go to sleep
    taken: list[float] = []
    while len(taken) < max(len(works), 3) or sum(taken) < seconds:
        began = time.perf_counter()
        works[len(taken) % len(works)]()
        taken.append(time.perf_counter() - began)
    return median(taken)


def measure(case: Case, rounds: int, seconds: float) -> dict[str, list[float]]:
    import torch
    from common import in_turn

    torch.manual_seed(1)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[case.kind]
    x = torch.randn(case.m, case.k).to(dtype)
    first = torch.randn(case.n, case.k).to(dtype)
    copies = 1 + MEMORY // case.weight_bytes if case.m <= FEW else 2
    weights = [first.clone() for _ in range(copies)]
    works = {"trivet": trivet_works(case, x, weights), "torch": torch_works(x, weights)}
    with torch.no_grad():
        return in_turn({name: partial(timed, work, seconds) for name, work in works.items()}, rounds)


def line(case: Case, times: dict[str, list[float]], ratio: float, rates: dict[str, float]) -> str:
    ours, theirs = (case.gflop / median(times[name]) for name in ("trivet", "torch"))
    share = 100 * case.bound(rates) / median(times["trivet"])
    return f"{case.kind:5}{case.m:5}{case.k:6}{case.n:6}{ours:10.1f}{share:6.0f} %{theirs:9.1f}{ratio:7.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.02, help="per contestant and round, at least")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--json", help="write the raw results here")
    args = parser.parse_args()
    for name in ("TRIVET_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = str(args.threads)

    import torch
    from common import machine, ratio, write

    torch.set_num_threads(args.threads)
    info = machine(args.threads)
    print("          m     k     n    trivet of bound    torch  ratio   (GFLOP/s)")
    results = []
    for case in cases(args):
        times = measure(case, args.rounds, args.seconds)
        against = ratio(times["torch"], times["trivet"])
        results.append({**asdict(case), "seconds": times, "ratio": against})
        print(line(case, times, against, info["rates"]), flush=True)
    write("linear", args.json, {"machine": info, "args": vars(args), "cases": results})


if __name__ == "__main__":
    main()
