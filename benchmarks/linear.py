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
from collections.abc import Iterator

from products import Case, options, run

ROWS = (1, 8, 64, 512)
SHAPES = ((576, 576), (576, 1536), (1536, 576), (2048, 8192), (576, 49152))  # K, N
KINDS = ("f32", "bf16")
CONTESTANTS = ("trivet", "torch")


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for kind in args.kinds:
        yield from (Case("linear", kind, m, k, n) for k, n in SHAPES for m in args.rows)


def main() -> None:
    parser = options(__doc__, KINDS, ROWS)
    args = parser.parse_args()
    run("linear", CONTESTANTS, cases(args), args, "(GFLOP/s)")


if __name__ == "__main__":
    main()
