"""Claim: `trivet quantize` beside llama.cpp's own quantiser: time, and what is left of the model.

SmolLM2-135M in float32, out of the shipped Q4_1 file (there is no finer one to be had as a package), to
every packed type. Time: both write a file, in turn, on as many threads; ours is synced to the disk, as
it always is, theirs is not. A figure is the median over rounds, a ratio the median over rounds of theirs
by ours. Quality: the mean NLL of tests/golden/nll_text.txt in one window, and of 2,048 tokens of
Python's own help texts in windows of 1,024, by the same engine for both files; "calibrated" is ours with
an importance matrix of another part of the help texts.

    python benchmarks/quantize.py --threads 2 --rounds 5
    python benchmarks/quantize.py --quality
"""

from __future__ import annotations

import argparse
import ctypes
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median
from typing import Any

import llama_cpp
from common import RESULTS, in_turn, machine, ratio, write
from files import file

from trivet import calibration, mixes
from trivet.generate.model import load
from trivet.quantizing import quantize

TEXT = Path(__file__).parent.parent / "tests/golden/nll_text.txt"
PAGE = Path(__file__).parent.parent / "docs/quantization.md"
HELP = "\n\n".join(topics[name] for name in sorted(topics))
TOKENS, WINDOW = 2048, 1024
TYPES = [name for name, mix in mixes.MIXES.items() if mix.base.is_packed]


def theirs(source: Path, out: Path, kind: str, threads: int) -> None:
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread = mixes.MIXES[kind].number, threads
    if llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(options)):
        raise SystemExit(f"llama.cpp could not make {kind}")


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def speed(source: Path, folder: Path, kind: str, args: argparse.Namespace) -> dict[str, list[float]]:
    ours, other = folder / f"ours-{kind}.gguf", folder / f"theirs-{kind}.gguf"
    return in_turn(
        {
            "trivet": lambda: seconds(lambda: quantize(source, ours, type=kind, threads=args.threads)),
            "llama.cpp": lambda: seconds(lambda: theirs(source, other, kind, args.threads)),
        },
        args.rounds,
    )


def nll(path: Path, threads: int) -> list[float]:
    model = load(path, "cpu", threads=threads)
    text = model.tokenizer.encode(TEXT.read_text("utf-8"))
    told = model.tokenizer.encode(HELP)[2000 : 2000 + TOKENS]
    return [float(model.nll(text).mean()), float(model.nll(told, window=WINDOW).mean())]


def quality(source: Path, folder: Path, kind: str, threads: int) -> dict[str, Any]:
    imatrix = folder / "importance.gguf"
    if not imatrix.exists():
        model = load(source, "cpu", threads=threads)
        calibration.save(imatrix, calibration.collect(model, HELP[200_000:240_000]), "help texts")
    paths = {name: folder / f"{name}-{kind}.gguf" for name in ("trivet", "calibrated", "llama.cpp")}
    done = quantize(source, paths["trivet"], type=kind, threads=threads)
    quantize(source, paths["calibrated"], type=kind, imatrix=imatrix, threads=threads)
    theirs(source, paths["llama.cpp"], kind, threads)
    found: dict[str, Any] = {name: nll(path, threads) for name, path in paths.items()}
    found["bytes"] = {name: path.stat().st_size for name, path in paths.items()}
    found["bits"] = done.bits_per_weight
    for path in paths.values():
        path.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--types", nargs="+", default=TYPES, choices=TYPES)
    parser.add_argument("--quality", action="store_true", help="measure what is left, not time")
    args = parser.parse_args()
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, None)
    source, kept = file("F32"), RESULTS / "quantize.json"
    result = _earlier(kept) | {"machine": machine(args.threads)}
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        if args.quality:
            result.setdefault("nll", {}).setdefault("f32", {"source": nll(source, args.threads)})
        for kind in args.types:
            if args.quality:
                found = result["nll"][kind] = quality(source, Path(folder), kind, args.threads)
                print(kind, {name: found[name] for name in ("trivet", "calibrated", "llama.cpp")}, flush=True)
            else:
                times = result.setdefault("seconds", {})[kind] = speed(source, Path(folder), kind, args)
                by = ratio(times["llama.cpp"], times["trivet"])
                print(f"{kind:8} {median(times['trivet']):.2f} s, {by:.2f} times as fast", flush=True)
            write("quantize", None, result)
    if "nll" in result:
        _page(result)


def _earlier(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def _page(result: dict[str, Any]) -> None:
    """Puts the figures into docs/quantization.md."""
    lines = [
        "| type | bits a weight | MB | NLL | llama.cpp's | calibrated"
        " | NLL, help texts | llama.cpp's | calibrated | speed |",
        "| --- |" + " --: |" * 9,
    ]
    for kind in TYPES:
        found, times = result.get("nll", {}).get(kind), result.get("seconds", {}).get(kind)
        if found is None:
            continue
        losses = [f"{found[who][i]:.4f}" for i in (0, 1) for who in ("trivet", "llama.cpp", "calibrated")]
        fast = f"{ratio(times['llama.cpp'], times['trivet']):.2f}" if times else ""
        size = f"{found['bytes']['trivet'] / 1e6:.1f}"
        lines.append(f"| `{kind}` | {found['bits']:.2f} | {size} | {' | '.join(losses)} | {fast} |")
    begin, end = "<!-- benchmarks/quantize.py -->\n", "<!-- end -->"
    text = PAGE.read_text("utf-8")
    head, rest = text.split(begin)
    exact = result["nll"]["f32"]["source"]
    told = f"In float32 the NLL is {exact[0]:.4f}, and {exact[1]:.4f} of the help texts.\n\n"
    PAGE.write_text(head + begin + told + "\n".join(lines) + "\n" + end + rest.split(end)[1], "utf-8")


if __name__ == "__main__":
    main()
