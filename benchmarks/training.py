"""Claim: training steps beside PyTorch with transformers, peft and bitsandbytes: tokens a second, and memory.

Each contestant is a process of its own that stands still between its turns. A step is forward, backward,
clipping and AdamW on one batch of 512 tokens (the GPT: 8 x 256); a figure is the median over rounds. bf16 is
weights and activations in bf16; trivet's parameters and moments are float32 then, too, PyTorch's are bf16.
qlora and nf4: PyTorch on NF4, double-quantised; trivet on the q4_0 blocks of the file itself, and on the same
NF4.

    python benchmarks/training.py --threads 2 --rounds 5
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from common import Worker, in_turn, machine, ratio, spread, write
from files import file

HERE = Path(__file__).parent
CASES = [(m, d) for m in ("full", "lora", "qlora", "nf4", "gpt") for d in ("f32", "bf16")]


def file_of(method: str) -> str:
    return "" if method == "gpt" else str(file("Q4_0" if method == "qlora" else "F32"))


def measure(method: str, dtype: str, tokens: int, threads: int, rounds: int) -> dict[str, Any]:
    workers = {
        name: Worker(
            str(HERE / "trainers.py"), name, method, dtype, str(tokens), str(threads), file_of(method)
        )
        for name in ("trivet", "torch")
    }
    for worker in workers.values():
        worker.seconds("step")  # the first one lays out memory
    seconds = in_turn({name: (lambda w=w: w.alone("step")) for name, w in workers.items()}, rounds)
    memory = {name: w.alone("memory") for name, w in workers.items()}
    for worker in workers.values():
        worker.close()
    return {"method": method, "dtype": dtype, "tokens": tokens, "seconds": seconds, "memory": memory}


def line(case: dict[str, Any]) -> str:
    speeds = {name: [case["tokens"] / s for s in found] for name, found in case["seconds"].items()}
    ours, theirs = case["memory"]["trivet"], case["memory"]["torch"]
    faster = ratio(case["seconds"]["torch"], case["seconds"]["trivet"])
    return (
        f"{case['method']:6}{case['dtype']:6}{spread(speeds['trivet']):>26}{spread(speeds['torch']):>26}"
        f"{faster:8.2f}{ours / 2**20:9.0f}{theirs / 2**20:9.0f}{ours / theirs:7.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", help="such as full-f32 qlora-bf16")
    parser.add_argument("--json", help="write the raw results here")
    args = parser.parse_args()
    for name in ("TRIVET_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = str(args.threads)
    info = machine(args.threads)
    print("                       trivet tokens/s           PyTorch tokens/s   ratio     MiB   theirs  ratio")
    results = []
    for method, dtype in CASES:
        if args.only and f"{method}-{dtype}" not in args.only:
            continue
        tokens = 2048 if method == "gpt" else 512
        results.append(measure(method, dtype, tokens, args.threads, args.rounds))
        print(line(results[-1]), flush=True)
    write("training", args.json, {"machine": info, "args": vars(args), "cases": results})


if __name__ == "__main__":
    main()
