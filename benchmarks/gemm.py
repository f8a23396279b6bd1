"""Claim: matrix products in float32, bf16, f16 and int8, beside PyTorch's and (float32) NumPy's OpenBLAS.

Each contestant has a process of its own (products.py); all take the same numbers, on as many threads, in
turn. A figure is the median over rounds of the least time of a call, the ratio the median over rounds of the
best peer's time by ours. matmul^T has the second operand as weights lie, [N, K]. "bound" is the share of what
this processor can do at most, measured before: arithmetic or, if that is less, reading the operands from
memory (they may lie in a cache, so it can pass 100 %).

    python benchmarks/gemm.py --threads 2 --rounds 5
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from products import Case, options, run

SQUARES = (256, 512, 1024, 2048, 4096)
ROWS = (1, 8, 64, 512)
WEIGHTS = ((576, 1536), (1536, 576), (2048, 8192), (576, 49152))  # K, N
KINDS = ("f32", "bf16", "f16", "i8")
CONTESTANTS = ("trivet", "torch", "numpy")


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for kind in args.kinds:
        yield from (Case("matmul", kind, n, n, n) for n in args.squares)
        yield from (Case("matmul^T", kind, m, k, n) for k, n in WEIGHTS for m in args.rows)
        yield from (Case("matmul", kind, 1, k, n) for k, n in WEIGHTS if 1 in args.rows)


def main() -> None:
    parser = options(__doc__, KINDS, ROWS)
    parser.add_argument("--squares", type=int, nargs="*", default=list(SQUARES))
    args = parser.parse_args()
    run("gemm", CONTESTANTS, cases(args), args, "(GFLOP/s, int8: GOP/s)")


if __name__ == "__main__":
    main()
