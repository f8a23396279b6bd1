"""Claim: prefill and decode on the CPU beside llama.cpp, on the same files in the same run.

Each engine runs in a process of its own and takes its turn, round by round; medians and spread are over
rounds, a ratio is the median of the rounds' ratios. Needs llama-cpp-python: `make bench-peers`.

    python benchmarks/inference.py                          # every type, one thread and two: some minutes
    python benchmarks/inference.py --types Q4_1 --threads 2
    python benchmarks/inference.py --types gemma-3-270m-q4_k_m.gguf --json gemma.json
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from common import in_turn, machine, ratio, spread, write
from engines import ENGINES, spawn
from files import TYPES, file

# Names and what to tell an engine. Rates are tokens over seconds.
TASKS = {"prefill 512": "prefill 512", "decode 128": "decode 128 0", "decode 64 at 1024": "decode 64 1024"}


def compare(kind: str, threads: int, rounds: int, tasks: list[str]) -> list[dict[str, Any]]:
    """Every task on one file with so many threads: tokens per second of each engine, round by round."""
    workers = {name: spawn(name, file(kind), threads) for name in ENGINES}
    cases = []
    for task in tasks:
        tokens = int(task.split()[1])
        seconds = in_turn({name: partial(w.seconds, TASKS[task]) for name, w in workers.items()}, rounds)
        rates = {name: [tokens / s for s in taken] for name, taken in seconds.items()}
        against = ratio(rates["trivet"], rates["llama.cpp"])
        cases.append({"type": kind, "threads": threads, "task": task, "rates": rates, "ratio": against})
        line = "   ".join(f"{name} {spread(r)}" for name, r in rates.items())
        print(f"{Path(kind).name:7} {threads} threads  {task:18} {line}   ratio {against:.2f}", flush=True)
    for worker in workers.values():
        worker.close()
    return cases


def against_bound(case: dict[str, Any], rates: Any) -> dict[str, float]:
    """What a token of the case reads and computes, the tokens per second that a machine of these rates
    allows, and the share of them that was reached."""
    from trivet.generate.benchmark import Task
    from trivet.generate.model import load

    what, *numbers = TASKS[case["task"]].split()
    task, model = Task(what, *map(int, numbers)), load(file(case["type"]), "cpu", context=2048)
    work, tokens = task.work(model), task.tokens if what == "prefill" else 1
    bound = task.bound(model, rates)
    return {
        "read": work.read / tokens,
        "operations": sum(work.operations.values()) / tokens,
        "read_bytes": rates.read_bytes,
        "bound": bound,
        "share": median(case["rates"]["trivet"]) / bound,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--types", nargs="+", default=list(TYPES), help="of SmolLM2, or paths of files")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="where the raw results go; benchmarks/results/inference.json")
    args = parser.parse_args()
    from trivet.backends.native import cpu_rates

    cases = []
    for threads in args.threads:
        for kind in args.types:
            found = compare(kind, threads, args.rounds, args.tasks)
            rates = cpu_rates(threads)  # in the same minutes as what is held against it
            cases += [case | against_bound(case, rates) for case in found]
    write("inference", args.json, {"machine": machine(max(args.threads)), "cases": cases})


if __name__ == "__main__":
    main()
