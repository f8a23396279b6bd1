"""RESULTS.md and roofline.svg, from the raw results under benchmarks/results/.

python benchmarks/report.py
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from common import RESULTS, ratio, spread

FOLDER = Path(__file__).parent
FASTER = "ᵀ: the second operand is [N, K]; the ratio is to the faster of PyTorch and NumPy's OpenBLAS"
MEMORY = """\
The aim was 80 MB, which f16 misses. Its keys and values are 48 MB, Python with NumPy about 26, the
values between the layers of 256 tokens 5; the rest is trivet's modules and code, 14 MB of it objects of
Python's, and giving free memory back would return 1. Not loading `numpy.random` and `hashlib` took 10 MB
away; prompts in runs of 128 tokens would take 2.7 more, and 7 % of the speed of prefill."""
DECODING = """\
The aim for decode was 75 % of the bandwidth. F16 reached 68 % while floats made the two bf16 planes of each
weight, or one token met them by multiply-adds; 16-bit integers make them in half the operations, and in turn
with the library before, decode is 1.10 times as fast with two threads. The machine read 32 GB/s in the
minutes of F16 and 35.5 in those of BF16: of the latter F16 would have 76 %. BF16, which had 77 % in an
earlier run and is as fast as then beside the older library, misses the aim here. What lies between the
products takes a tenth of the time. After 1,024 tokens, where attention weighs more, the share is 63 to 79
%."""
UNPACKED = """\
The aims were 0.97 of the best peer for squares and 1.1 for the transformer's shapes.

Float32: a tile of 12 x 32 sums alone, on data in the second cache, does 235 GFLOP/s with one thread and 470
with two, 98 % of what this processor can. Within products of 512, 1024 and 2048 on one thread it does 234,
224 and 221, and C in the first cache instead of its place makes that 2 % faster at most. Copying A takes 4, 5
and 7 % of the time. Copying B took 4, 7 and 6; now that eight of its rows are copied at a time instead of 64
it takes 2, 1 and 2. One thread waited for the other for 6 % of the time at 512, and waits for 2 now that both
have as many columns; at 256, where the last panel of A is a third full, both have as many columns now, too,
and the core's own loop does 431 instead of 411; at 1024 one waits for 1. Tried besides, without gain: the
next panel of A fetched ahead from within the tile (copying A takes 3 % instead of 7, the tile as much more),
runs of k from 256 to 1024 with blocks of 256 to 1024 columns, and huge pages.

One row times an operand [N, K] that nothing arranged: sums take k in order, so that a row has the same
bits alone and in company. Copying the operand into panels first came before what is done now: squares of
16 x 16 are turned in registers. That takes 64 shuffles, one a cycle, for 16 multiply-adds, so that in the
second cache two threads can do 59 GFLOP/s. A peer adds up along k and needs no shuffle. For eight rows
the shuffles of a square take as long as its multiply-adds."""
ARRANGED = """\
The aim was 1.1, which 512 rows in float32 miss: there PyTorch reaches 81 % of what the processor can, and
1.1 times that is 89 %. On one thread copying a block of weights into the second cache takes 3 to 6 % of
the time and copying rows up to 5; the tile, 235 GFLOP/s alone, does 223 to 230 in their company. Before
this, rows stayed in the second cache and weights were read where they stand, which was slower."""
LINEAR = "the ratio is to PyTorch's `linear`"
HEIGHTS = {"F16": -6, "BF16": 3, "Q8_0": -13, "Q4_K_M": -6, "Q4_1": 0, "Q4_0": 8}  # of names
COLOURS = {"trivet": "#c2410c", "llama.cpp": "#475569"}


def raw(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [list(head), *(list(row) for row in rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    lines.insert(1, "|" + " --- |" * len(cells[0]))
    return "\n".join(lines)


def introduction(machine: dict[str, Any]) -> str:
    rates = machine["rates"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return f"""# How fast trivet is

Made by `benchmarks/report.py` from the raw results in [`results/`](results). Every figure is a median over
rounds in which trivet and its peer took turns on the same machine, with the lowest and highest in brackets;
a ratio is the median of the rounds' ratios. A shared machine drifts from minute to minute: believe ratios
before tokens per second.

Measured on: {machine["processor"]}, {machine["processors"]} processors, kernels for {machine["isa"]}; Python
{machine["python"]}, {versions}. In one of the runs the machine read {rates["read_bytes"] / 1e9:.1f} GB/s and
computed {rates["f32"] / 1e9:.0f} (float32), {rates["bf16"] / 1e9:.0f} (bf16) and
{rates["i8"] / 1e9:.0f} (int8) GOP/s at most (`tv_cpu_measure`).
"""


def inference() -> str:
    found = raw("inference")
    if found is None:
        return ""
    rows = [
        (
            case["type"],
            str(case["threads"]),
            case["task"],
            spread(case["rates"]["trivet"]),
            spread(case["rates"]["llama.cpp"]),
            f"**{case['ratio']:.2f}**",
            f"{100 * case['share']:.0f} %",
        )
        for case in found["cases"]
    ]
    head = ("file", "threads", "task", "trivet, tokens/s", "llama.cpp, tokens/s", "ratio", "of the bound")
    return f"""
## Prefill and decode of SmolLM2-135M, beside llama.cpp

`python benchmarks/inference.py`: both engines open the same file, each in a process of its own; llama.cpp
through its C interface, with flash attention, compiled for this processor but for AMX, with which it crashes
here. The bound is the time to read weights, keys and values once at the measured bandwidth, or to do the
arithmetic in the narrowest type at the measured peak, whichever is longer; it is measured after each pair, so
on a machine that others share a share can pass 100 %.

{table(head, rows)}

{DECODING}

![Roofline: operations per second over operations per byte](roofline.svg)
"""


def start() -> str:
    found = raw("start")
    if found is None:
        return ""
    size = found["memory"]["file_bytes"]
    rows = [
        (
            engine,
            f"{spread(seconds)} s",
            *(f"{(peaks[engine] - size) / 1e6:.0f} MB" for peaks in found["memory"]["peak_bytes"].values()),
            f"{100 * found['idle'][engine]:.1f} %",
        )
        for engine, seconds in found["start"]["seconds"].items()
    ]
    kinds = (f"peak memory beyond the file, KV in {kv}" for kv in found["memory"]["peak_bytes"])
    head = ("engine", "process start to first token", *kinds, "a processor, when idle")
    return f"""
## Start, memory, idling

`python benchmarks/start.py`: {found["type"]}, {size / 1e6:.0f} MB, in the page cache, with 2,000 tokens.

{table(head, rows)}

{MEMORY}
"""


def threads() -> str:
    found = raw("threads")
    if found is None:
        return ""
    counts = list(found["cases"][0]["rates"])
    rows = [
        (
            case["engine"],
            case["task"].removesuffix(" 0"),
            *(f"{median(case['rates'][n]):.4g} ({case['scaling'][n]:.2f}×)" for n in counts),
        )
        for case in found["cases"]
    ]
    return f"""
## Threads

`python benchmarks/threads.py`: tokens/s, and times as many as with one thread.

{table(("engine", "task", *(f"{n} threads" for n in counts)), rows)}
"""


def products(name: str, title: str, peers: str, remark: str = "") -> str:
    """A section of matrix products; a cell is the ratio to the best peer, and trivet's rate."""
    found = raw(name)
    if found is None:
        return ""
    names = list(found["cases"][0]["seconds"])
    rows = []
    for case in found["cases"]:
        work = 2 * case["m"] * case["k"] * case["n"] / 1e9
        times = [case["seconds"].get(name) for name in names]
        rates = [f"{work / median(taken):.0f}" if taken else "–" for taken in times]
        size = " × ".join(str(case[d]) for d in ("m", "k", "n")) + (
            " ᵀ" if case.get("op") == "matmul^T" else ""
        )
        rows.append((case["kind"], size, *rates, f"**{case['ratio']:.2f}**"))
    head = ("type", "M × K × N", *names, "ratio")
    return f"""
## {title}

`python benchmarks/{name}.py`, {found["args"]["threads"]} threads, GFLOP/s (int8: GOP/s); {peers}.

{table(head, rows)}
{remark}"""


def attention() -> str:
    found = raw("attention")
    if found is None:
        return ""
    rows = [
        (
            case["dtype"],
            f"{case['heads']} × {case['depth']}",
            str(case["tokens"]),
            str(case["window"] or "–"),
            *(
                f"{1e3 * median(case['seconds'][f'{who} {what}']):.3g}"
                for what in ("forward", "both")
                for who in ("trivet", "torch")
            ),
            *(f"**{case['ratios'][what]:.2f}**" for what in ("forward", "both")),
        )
        for case in found["cases"]
    ]
    head = ("type", "heads", "tokens", "window", "trivet, ms", "torch, ms", "trivet with gradients, ms")
    return f"""
## Attention

`python benchmarks/attention.py`, {found["args"]["threads"]} threads, causal; beside PyTorch's
`scaled_dot_product_attention`. Ratios: forward, and forward with gradients.

{table((*head, "torch with gradients, ms", "forward", "with gradients"), rows)}
"""


def training() -> str:
    found = raw("training")
    if found is None:
        return ""
    rows = []
    for case in found["cases"]:
        speeds = {name: [case["tokens"] / t for t in times] for name, times in case["seconds"].items()}
        ours, theirs = (case["memory"][name] / 2**20 for name in ("trivet", "torch"))
        faster = ratio(case["seconds"]["torch"], case["seconds"]["trivet"])
        rows.append(
            (
                case["method"], case["dtype"], spread(speeds["trivet"]), spread(speeds["torch"]),
                f"{faster:.2f}", f"{ours:.0f} / {theirs:.0f}", f"{ours / theirs:.2f}",
            )
        )  # fmt: skip
    head = ("method", "compute", "trivet, tokens/s", "PyTorch", "ratio", "peak MiB", "ratio")
    return f"""
## Training

`python benchmarks/training.py`: whole steps (forward, backward, clipping, AdamW) of SmolLM2-135M's shape on
512 tokens, beside PyTorch with transformers, peft and bitsandbytes; the GPT is 6 layers of 384 on 8 x 256. In
bf16 trivet's masters and moments are float32, PyTorch's bf16. qlora and nf4: PyTorch on NF4,
double-quantised; trivet on the file's own Q4_0 blocks, and on the same NF4.

{table(head, rows)}
"""


def roofline() -> None:
    """Operations per second over operations per byte: each file's tasks under the machine's roofs."""
    found = raw("inference")
    if found is None:
        return
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "trivet", "font.size": 9})
    figure, axes = plt.subplots(figsize=(8, 5))
    rates = found["machine"]["rates"]
    left, right = 0.3, 5e3
    for name in ("f32", "bf16", "i8"):
        ridge = rates[name] / rates["read_bytes"]
        roof = [left * rates["read_bytes"], rates[name], rates[name]]
        axes.plot([left, ridge, right], roof, color="#94a3b8", lw=1)
        label = f"{name} {rates[name] / 1e9:.0f} GOP/s"
        axes.annotate(label, (1.2 * ridge, rates[name]), va="bottom")
    for case in found["cases"]:
        if case["threads"] != found["machine"]["threads"] or " at " in case["task"]:
            continue
        x = case["operations"] / case["read"]
        for engine, colour in COLOURS.items():
            y = median(case["rates"][engine]) * case["operations"]
            what = case["task"].split()[0]
            shape = "o" if what == "prefill" else "s"
            axes.plot(x, y, shape, color=colour, ms=5, label=f"{engine}, {what}")
            if engine == "trivet":
                up = HEIGHTS.get(case["type"], 2)
                axes.annotate(case["type"], (x, y), fontsize=7, xytext=(6, up), textcoords="offset points")
    axes.set(xscale="log", yscale="log", xlim=(left, right))
    axes.set(xlabel="operations per byte read", ylabel="operations per second")
    axes.set_title(
        f"SmolLM2-135M under the roofs; memory reads {rates['read_bytes'] / 1e9:.1f} GB/s", fontsize=9
    )
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.legend(unique.values(), unique.keys(), loc="lower right", frameon=False)
    figure.savefig(FOLDER / "roofline.svg", metadata={"Date": None}, bbox_inches="tight")


def main() -> None:
    newest = next((r for r in map(raw, ("inference", "start", "threads", "gemm")) if r), None)
    if newest is None:
        raise SystemExit("no results yet: run the scripts beside this one first")
    roofline()
    gemm = products("gemm", "Matrix products", FASTER, f"\n{UNPACKED}\n")
    linear = products("linear", "Products with a weight, arranged once", LINEAR, f"\n{ARRANGED}\n")
    decoding = (inference(), start(), threads())
    parts = (introduction(newest["machine"]), *decoding, gemm, linear, attention(), training())
    (FOLDER / "RESULTS.md").write_text("".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
