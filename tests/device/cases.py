"""The jobs of `run.py`: each gives what goes into the evidence, or raises. They may run side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import smollm2
import test_table
import trivet as tv
import tuning
from test_table import Case, Check
from trivet.backends.base import Backend
from trivet.errors import UnsupportedError
from trivet.graph import Graph, Node
from trivet.ops.table import TABLE, Row
from trivet.plan import rebuilt, rewrite

READ, WRITTEN = 512, 32  # tokens of a prompt and of a reply, where speed is measured


class Job(NamedTuple):
    part: str
    name: str
    run: Callable[[], dict[str, Any]]


# --- the table -------------------------------------------------------------------------------------------


def table(backend: Backend, rows: str) -> list[Job]:
    """A job for each row, those of most samples first."""
    chosen = sorted((r for r in TABLE.values() if rows in r.name), key=lambda r: -len(r.samples))
    return [Job("table", row.name, lambda row=row: _held(backend, row)) for row in chosen]


def _held(backend: Backend, row: Row) -> dict[str, Any]:
    """All of a row's checks as one program, for programs take long to compile; where that fails, one by one.
    Then each that fails is named, or the whole, where each passes alone."""
    checks = dict(_checks(row))
    try:
        _together(backend, list(checks.values()))
        found, failed = dict.fromkeys(checks, "passed"), {}
    except Exception as error:
        found = {name: _told(backend, check) for name, check in checks.items()}
        failed = {name: told for name, told in found.items() if told.startswith("failed")}
        if not failed and not isinstance(error, UnsupportedError):
            failed = {"all in one program, though each passes alone": told_of(error)}
    return {
        "passed": sum(told == "passed" for told in found.values()),
        "cases": found,
        "tolerances": {str(dtype): bound for dtype, bound in row.tolerance.items()},
        "failed": failed,
    }


def _checks(row: Row) -> Iterator[tuple[str, Check]]:
    for case in CASES.get(row.name, ()):
        yield f"forward {case.id}", test_table.forward(*case.values)
    for case in SLOPES.get(row.name, ()):
        if check := test_table.backward(*case.values[:2]):
            yield f"gradient {case.id}", check


def _by_row(cases: Iterator[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for case in cases:
        found.setdefault(case.values[0].name, []).append(case)
    return found


CASES = _by_row(test_table.cases(test_table.FLOATS))
SLOPES = _by_row(iter(test_table.SMOOTH))


def _together(backend: Backend, checks: Sequence[Check]) -> None:
    """One graph of all their outputs; leaves and outputs bear the number of their check before their name."""
    outputs: dict[str, Node] = {}
    whole = Case(checks[0].case.row, checks[0].case.sample, [], {}, {}, {})
    for i, (case, graph, _) in enumerate(checks):
        leaves = [n for n in graph.nodes() if n.op in ("input", "weight")]
        known = {n: Node(n.op, (), {"name": f"{i}.{n.attrs['name']}"}, n.specs) for n in leaves}
        nodes = rewrite(list(graph.outputs.values()), rebuilt, known)
        outputs |= {f"{i}.{name}": node for name, node in zip(graph.outputs, nodes, strict=True)}
        whole.stored.update({f"{i}.{name}": value for name, value in case.stored.items()})
        whole.packed.update({f"{i}.{name}": value for name, value in case.packed.items()})
    got = iter(whole.run(backend, Graph(outputs)))
    for check in checks:
        check.compare([next(got) for _ in check.graph.outputs])


def _told(backend: Backend, check: Check) -> str:
    try:
        return check.on(backend) or "passed"
    except Exception as error:
        return f"failed: {told_of(error)}"


def told_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


# --- whole models ----------------------------------------------------------------------------------------


def parity(device: str, folder: Path) -> list[Job]:
    small = str(tuning.packed_model(folder / "small.gguf"))
    models = {"SmolLM2": smollm2.NAME, "small Llama": small}
    return [Job("parity", "SmolLM2 logits", lambda: _logits(device))] + [
        Job("parity", f"{model} {method}", lambda p=path, m=method: _training(device, p, m, folder))
        for model, path in models.items()
        for method in smollm2.METHODS
    ]


def _logits(device: str) -> dict[str, float]:
    """On the device and on the reference."""
    got, want = (
        np.asarray(tv.load(smollm2.NAME, d, kv="f32").logits(smollm2.IDS), np.float64)
        for d in (device, "reference")
    )
    far = float(np.abs(got - want).max() / np.abs(want).max())
    assert far < smollm2.LOGITS_ELSEWHERE, f"{far:.2e} from the reference"
    return {"far": far, "tolerance": smollm2.LOGITS_ELSEWHERE}


def _training(device: str, path: str, method: str, folder: Path) -> dict[str, Any]:
    """Five steps on the device and on the cpu."""
    own = folder / f"{Path(path).stem} {method}"
    own.mkdir()
    got, want = (smollm2.five_steps(path, method, d, own)[0] for d in (device, "cpu"))
    far = float(np.abs(np.subtract(got, want)).max())
    assert far < smollm2.LOSS, f"losses {got}, on the cpu {want}"
    return {"losses": got, "far": far, "tolerance": smollm2.LOSS}


# --- speed -----------------------------------------------------------------------------------------------


def speed(device: str) -> tuple[list[Job], list[Job]]:
    """(what makes ready, what measures): one may compile beside all else, the other wants to be alone."""
    kept: dict[str, Any] = {}
    ready, measured = [], []
    for where in dict.fromkeys((device, "cpu")):
        for name, use, tokens in (("read", _read, READ), ("written", _write, WRITTEN)):
            name = f"tokens {name} on {where}"

            def prepare(name: str = name, where: str = where, use: Any = use) -> dict[str, Any]:
                kept[name] = tv.load(smollm2.NAME, where)
                use(kept[name])
                return {}

            def measure(name: str = name, use: Any = use, tokens: int = tokens) -> dict[str, Any]:
                since = time.perf_counter()
                use(kept[name])
                return {"a second": round(tokens / (time.perf_counter() - since), 1)}

            ready.append(Job("speed", f"{name}, made ready", prepare))
            measured.append(Job("speed", name, measure))
    return ready, measured


def _read(model: Any) -> None:
    model.engine.forward(model.session(), [1 + i % 1000 for i in range(READ)], [READ - 1])


def _write(model: Any) -> None:
    session = model.session()
    for i in range(WRITTEN):
        model.engine.forward(session, [i + 1], [0])
