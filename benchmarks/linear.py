"""Claim: products with a weight matrix, arranged once, beside PyTorch's linear.

Each side has a process of its own (products.py); both take the same numbers, on as many threads, in turn. A
figure is the median over rounds of the least time of a call, a ratio the median over rounds of theirs by
ours. Calls of few rows go round many weights, as a model's do, so that a weight comes from memory; calls of
many, which wait for arithmetic, take two in turn. "bound" is the share of what this processor can do at most,
measured before: arithmetic or, if that is less, reading the operands.

    python benchmarks/linear.py --threads 2 --rounds 5
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import asdict

from common import machine, write
from products import HEAD, Case, Contest, against_best, line

ROWS = (1, 8, 64, 512)
SHAPES = ((576, 576), (576, 1536), (1536, 576), (2048, 8192), (576, 49152))  # K, N
KINDS = ("f32", "bf16")
CONTESTANTS = ("trivet", "torch")


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for kind in args.kinds:
        yield from (Case("linear", kind, m, k, n) for k, n in SHAPES for m in args.rows)


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

    info = machine(args.threads)
    contest = Contest(CONTESTANTS, args.threads)
    print(HEAD + "".join(f"{name:>10}" for name in CONTESTANTS) + "   (GFLOP/s)")
    results = []
    for case in cases(args):
        times = contest.measure(case, args.rounds, args.seconds)
        results.append({**asdict(case), "seconds": times, "ratio": against_best(times)})
        print(line(case, times, info["rates"]), flush=True)
    contest.close()
    write("linear", args.json, {"machine": info, "args": vars(args), "cases": results})


if __name__ == "__main__":
    main()
