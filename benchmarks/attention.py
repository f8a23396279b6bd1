"""Claim: attention, forward and with its gradients, beside PyTorch's scaled_dot_product_attention.

Both take the same numbers, on the same threads, in turn; a figure is the median over rounds of the time of
one call (in a round the least of several), a ratio the median over rounds of theirs by ours. PyTorch has
[B, H, T, D] in memory, which it likes best, and trivet [B, T, H, D], as projections leave it. Trivet's calls
are runs of a compiled program on buffers made once, as a C caller has them: Python's own `run` adds about
0.05 ms. A product of hidden scores is counted on neither side. PyTorch has no window: it gets a mask.

    python benchmarks/attention.py --threads 2 --rounds 5
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from common import machine, program, ratio, stored, write

from trivet import autograd, graph, ops
from trivet.backends.native import BACKEND
from trivet.dtypes import bf16, f32

HEADS = {64: 9, 128: 4, 256: 2}
DTYPES = {"f32": (f32, torch.float32), "bf16": (bf16, torch.bfloat16)}
Work = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    dtype: str
    depth: int
    tokens: int
    window: int = 0

    @property
    def heads(self) -> int:
        return HEADS[self.depth]

    def gflop(self, products: int) -> float:
        """Of `products` matrix products over the scores that causality and the window leave."""
        t, w = self.tokens, self.window or self.tokens
        return products * 2 * self.heads * self.depth * (w * (w + 1) / 2 + (t - w) * w) / 1e9


def numbers(case: Case) -> list[torch.Tensor]:
    """g, q, k, v as [1, T, H, D]."""
    torch.manual_seed(1)
    shape = (1, case.tokens, case.heads, case.depth)
    return [torch.randn(shape, dtype=torch.float32).to(DTYPES[case.dtype][1]) for _ in range(4)]


def trivet_work(case: Case) -> tuple[Work, Work]:
    """Forward, and forward with gradients."""
    kind = DTYPES[case.dtype][0]
    arrays = {}
    for name, x in zip("gqkv", numbers(case), strict=True):
        arrays[name] = BACKEND.from_numpy(stored(x), kind)
    g, q, k, v = (graph.input(name, arrays[name].shape, kind) for name in "gqkv")
    o = ops.attention(q, k, v, causal=True, window=case.window)
    dq, dk, dv = autograd.grad(o, [q, k, v], [g])
    return program({"o": o}, arrays), program({"o": o, "dq": dq, "dk": dk, "dv": dv}, arrays)


def torch_work(case: Case) -> tuple[Work, Work]:
    g, q, k, v = (x.transpose(1, 2).contiguous() for x in numbers(case))
    options: dict[str, Any] = {"is_causal": True}
    if case.window:
        far = torch.arange(case.tokens)[:, None] - torch.arange(case.tokens)[None]
        options = {"attn_mask": (far >= 0) & (far < case.window)}
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    def both() -> tuple[torch.Tensor, ...]:
        o = torch.nn.functional.scaled_dot_product_attention(*leaves, **options)
        return torch.autograd.grad(o, leaves, g)

    return forward, both


def timed(work: Work, seconds: float) -> float:
    """The least time of a call, over calls that last `seconds` together and are at least two."""
    time.sleep(0.005)  # let the other side's threads go to sleep
    best, spent, calls = float("inf"), 0.0, 0
    while spent < seconds or calls < 2:
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
        best, spent, calls = min(best, took), spent + took, calls + 1
    return best


def measure(case: Case, rounds: int, seconds: float) -> dict[str, Any]:
    """Times in seconds per round, of both engines, forward and forward + backward."""
    engines = {"trivet": trivet_work(case), "torch": torch_work(case)}
    times: dict[str, list[float]] = {}
    for turn in range(rounds + 1):  # the first is to warm up
        for name, works in engines.items():
            for what, work in zip(("forward", "both"), works, strict=True):
                took = timed(work, seconds if turn else 0)
                if turn:
                    times.setdefault(f"{name} {what}", []).append(took)
    ratios = {what: ratio(times[f"torch {what}"], times[f"trivet {what}"]) for what in ("forward", "both")}
    return {**asdict(case), "heads": case.heads, "seconds": times, "ratios": ratios}


def line(case: Case, result: dict[str, Any]) -> str:
    text = f"{case.dtype:5}{case.depth:4}{case.tokens:6}{case.window or '-':>6}"
    for what, products in (("forward", 2), ("both", 7)):
        ours, theirs = (result["seconds"][f"{name} {what}"] for name in ("trivet", "torch"))
        work = case.gflop(products)
        text += f" |{median(ours) * 1e3:9.2f}{work / median(ours):7.0f}"
        text += f"{median(theirs) * 1e3:10.2f}{work / median(theirs):7.0f}{ratio(theirs, ours):7.2f}"
    return text


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for dtype in args.dtypes:
        for depth in args.depths:
            yield from (Case(dtype, depth, tokens) for tokens in args.tokens)
            yield from (Case(dtype, depth, tokens, args.window) for tokens in args.tokens[-1:] if args.window)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch; trivet's are TRIVET_THREADS")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.03, help="per measurement at least")
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096])
    parser.add_argument("--depths", type=int, nargs="+", default=[64, 128, 256], choices=HEADS)
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--window", type=int, default=1024, help="of one more case per head size; 0: none")
    parser.add_argument("--json", help="write the raw results here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    info = machine(args.threads)
    print(
        "      head tokens window |   trivet ms GFLOP/s, torch ms GFLOP/s, ratio: forward, forward + backward"
    )
    results = []
    for case in cases(args):
        results.append(measure(case, args.rounds, args.seconds))
        print(line(case, results[-1]), flush=True)
    write("attention", args.json, {"machine": info, "args": vars(args), "cases": results})


if __name__ == "__main__":
    main()
