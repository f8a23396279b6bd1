#!/usr/bin/env python
"""How many cycles a row alone takes on a TPU by the schedule of its compiler: tpu_schedule.py ROW TARGET.

tpu_schedule.py "one token x q4_1" v5e           with kernels of ours, where there is one
tpu_schedule.py "one token x q4_1" v5e --plain   as XLA computes it

A TPU runs what its compiler has scheduled, a bundle of instructions a cycle. The compiler writes the bundles
of each operation into a folder if asked to before it is loaded; a bundle counts as often as the loops around
it turn. Waits for memory are not counted, and loops that read ahead count a turn or two too many.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|\d+) +(LB:|..:)? *:? *([> ]*)\{(.*)")
_TURNS = re.compile(r", (\d+) /\* loop exit test")


def cycles(listing: str) -> int:
    """The bundles of an operation's listing, each as often as it runs. There is a > for each loop around."""
    within, turns = [0], [1]  # of the loops that are open: the bundles of a turn, and how often it turns
    for header, marks, what in _BUNDLE.findall(listing):
        depth = marks.count(">") if marks or what != "}" else len(within) - 1  # an empty one has no marks
        while len(within) - 1 > depth or (header == "LB:" and len(within) - 1 == depth):
            _close(within, turns)
        while len(within) - 1 < depth:
            within.append(0)
            turns.append(1)
        within[-1] += 1
        if found := _TURNS.search(what):
            turns[-1] = int(found[1])
    while len(within) > 1:
        _close(within, turns)
    return within[0]


def _close(within: list[int], turns: list[int]) -> None:
    inner = within.pop() * turns.pop()
    within[-1] += inner


def of(row: str, target: str, *plain: str) -> int:
    """What `main` prints, from a process of its own: the compiler is asked before it is loaded."""
    asked = [sys.executable, __file__, row, target, *plain]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    row, target, *plain = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LIBTPU_INIT_ARGS"] = (
            f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
            " --xla_jf_dump_llo_pass_label_regex=final_bundles"
        )
        sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/accel"), str(ROOT / "tests/train")]
        import device_programs
        import device_targets

        from trivet.backends.xla import packed_linear
        from trivet.backends.xla import target as xla

        if plain:
            packed_linear.takes = lambda *_: False
        made = device_programs.row(row)
        xla.compiled(made.graph, made.sizes, device_targets.topology(target), "tpu")
        listings = [p for p in Path(folder).glob("*-final_bundles.txt") if "schedule-analysis" not in p.name]
        print(sum(cycles(p.read_text("utf-8")) for p in listings))


if __name__ == "__main__":
    main()
