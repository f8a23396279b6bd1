"""Claim: two cores help, and more threads than cores do no harm. Trivet and llama.cpp, each by itself, with
1, 2 and more threads, in turn.

    python benchmarks/threads.py --threads 1 2 4
"""

from __future__ import annotations

import argparse
from functools import partial

from common import in_turn, machine, ratio, spread, write
from engines import ENGINES, spawn
from files import TYPES, file

TASKS = {"prefill 512": 512, "decode 128 0": 128}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--type", choices=TYPES, default="Q4_1")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="where the raw results go; benchmarks/results/threads.json")
    args = parser.parse_args()
    cases = []
    for engine in ENGINES:
        workers = {str(n): spawn(engine, file(args.type), n) for n in args.threads}
        for task, tokens in TASKS.items():
            seconds = in_turn({n: partial(w.seconds, task) for n, w in workers.items()}, args.rounds)
            rates = {n: [tokens / s for s in taken] for n, taken in seconds.items()}
            first = rates[str(args.threads[0])]
            scaling = {n: ratio(found, first) for n, found in rates.items()}
            cases.append({"engine": engine, "task": task, "rates": rates, "scaling": scaling})
            line = "   ".join(f"{n} threads {spread(r)} = {scaling[n]:.2f}x" for n, r in rates.items())
            print(f"{engine:10} {task:13} {line}", flush=True)
        for worker in workers.values():
            worker.close()
    write("threads", args.json, {"machine": machine(2), "type": args.type, "cases": cases})


if __name__ == "__main__":
    main()
