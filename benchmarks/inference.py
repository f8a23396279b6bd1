"""Claim: prefill and decode on the CPU, beside llama.cpp, on the same file in the same run.

Interleaved: each round runs every engine once; medians and spread are over rounds. llama.cpp runs through
llama-cpp-python if it is installed (`make bench-peers`).

    python benchmarks/inference.py smollm2-135m --threads 2 --rounds 5 --json results.json
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from statistics import median

from trivet.generate.model import Model, load
from trivet.models.checkpoint import resolve


class Trivet:
    name = "trivet"

    def __init__(self, path: str, threads: int, context: int) -> None:
        self.model: Model = load(path, "cpu", context=context, threads=threads)
        self.vocab = self.model.config.vocab

    def prefill(self, ids: list[int]) -> None:
        self.session = self.model.session()
        self.model.engine.forward(self.session, ids, [len(ids) - 1])

    def decode(self, token: int) -> None:
        self.model.engine.forward(self.session, [token], [0])


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, path: str, threads: int, context: int) -> None:
        import llama_cpp

        self.llama = llama_cpp.Llama(
            str(path), n_ctx=context, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def prefill(self, ids: list[int]) -> None:
        self.llama.reset()
        self.llama.eval(ids)

    def decode(self, token: int) -> None:
        self.llama.eval([token])


def rates(engine: Trivet | LlamaCpp, vocab: int, prefill: int, decode: int, depth: int) -> dict[str, float]:
    def ids(n: int) -> list[int]:
        return [(7919 * i + 13) % vocab for i in range(n)]

    def timed(work: Callable[[], None]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    found = {f"prefill {prefill}": prefill / timed(lambda: engine.prefill(ids(prefill)))}
    for start in sorted({1, depth} - {0}):
        engine.prefill(ids(start))
        found[f"decode {decode} at {start}"] = decode / timed(
            lambda: [engine.decode(t) for t in ids(decode)] and None
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--depth", type=int, default=1024)
    parser.add_argument("--json", help="write the raw results here")
    args = parser.parse_args()
    path = str(resolve(args.model))
    context = 2048
    engines: list[Trivet | LlamaCpp] = [Trivet(path, args.threads, context)]
    try:
        engines.append(LlamaCpp(path, args.threads, context))
    except ImportError:
        print("llama-cpp-python is not installed: make bench-peers")
    results: dict[str, dict[str, list[float]]] = {e.name: {} for e in engines}
    for turn in range(args.rounds + 1):
        for engine in engines:
            for what, rate in rates(engine, engines[0].vocab, args.prefill, args.decode, args.depth).items():
                if turn:
                    results[engine.name].setdefault(what, []).append(rate)
    for what in results["trivet"]:
        ours = results["trivet"][what]
        line = f"{what:20} trivet {median(ours):8.1f} ({min(ours):.1f}-{max(ours):.1f})"
        if "llama.cpp" in results:
            theirs = results["llama.cpp"][what]
            ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
            line += f"   llama.cpp {median(theirs):8.1f} ({min(theirs):.1f}-{max(theirs):.1f})"
            line += f"   ratio {ratio:.2f}"
        print(line)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({"machine": platform.processor(), "args": vars(args), "rates": results}, out, indent=1)


if __name__ == "__main__":
    main()
