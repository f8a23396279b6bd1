"""What `run.py` runs: each part gives what goes into the evidence, and notes what failed or was left out."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import smollm2
import test_table
import trivet as tv
import tuning
from trivet.backends.base import Backend

READ, WRITTEN = 512, 32  # tokens of a prompt and of a reply, where speed is measured


class Run:
    """One device. After `until` nothing new is begun."""

    def __init__(self, device: str, backend: Backend, until: float, rows: str) -> None:
        self.device, self.backend, self.until, self.rows = device, backend, until, rows
        self.failed: dict[str, str] = {}
        self.left_out: list[str] = []
        self.folder = Path(tempfile.mkdtemp())
        self._steps = cache(self._five_steps)

    def _tried(self, name: str, case: Callable[[], Any]) -> Any:
        """What the case gives; None, with a note, where it fails or there is no time."""
        if time.perf_counter() > self.until:
            self.left_out.append(name)
            return None
        try:
            return case()
        except Exception as error:
            self.failed[name] = f"{type(error).__name__}: {error}"[:500]
            return None

    # --- the table ---

    def table(self) -> dict[str, Any]:
        """Programs compile side by side where that takes time."""
        forward = [c for c in test_table.cases(test_table.FLOATS) if self.rows in c.values[0].name]
        slopes = [c for c in test_table.SMOOTH if self.rows in c.values[0].name]
        checks = [(f"forward {c.id}", test_table.check_forward, c.values) for c in forward]
        checks += [(f"gradient {c.id}", test_table.check_gradient, c.values[:2]) for c in slopes]
        workers = (os.cpu_count() or 1) if self.backend.name == "xla" else 1

        def one(check: Any) -> Any:
            name, function, values = check
            return self._tried(name, lambda: function(self.backend, *values) or "passed")

        with ThreadPoolExecutor(workers) as pool:
            found = dict(zip((name for name, _, _ in checks), pool.map(one, checks), strict=True))
        rows = {c.values[0].name: c.values[0].tolerance for c in forward}
        return {
            "passed": sum(told == "passed" for told in found.values()),
            "cases": found,
            "tolerances": {name: {str(d): t for d, t in of.items()} for name, of in rows.items()},
        }

    # --- whole models ---

    def parity(self) -> dict[str, Any]:
        made: dict[str, Any] = {"tolerances": {"logits": smollm2.LOGITS_ELSEWHERE, "loss": smollm2.LOSS}}
        made["SmolLM2 logits"] = self._tried("SmolLM2 logits", self._logits)
        small = tuning.packed_model(self.folder / "small.gguf")
        for model, path in (("small Llama", str(small)), ("SmolLM2", smollm2.NAME)):
            for method in smollm2.METHODS:
                name = f"{model} {method}"
                made[name] = self._tried(name, lambda p=path, m=method: self._training(p, m))
        return made

    def _logits(self) -> dict[str, float]:
        """On the device and on the reference."""
        got, want = (
            np.asarray(tv.load(smollm2.NAME, device, kv="f32").logits(smollm2.IDS), np.float64)
            for device in (self.device, "reference")
        )
        far = float(np.abs(got - want).max() / np.abs(want).max())
        assert far < smollm2.LOGITS_ELSEWHERE, f"{far:.2e} from the reference"
        return {"far": far}

    def _training(self, path: str, method: str) -> dict[str, Any]:
        """On the device and on the cpu."""
        (got, seconds), (want, on_cpu) = (self._steps(path, method, d) for d in (self.device, "cpu"))
        far = float(np.abs(np.subtract(got, want)).max())
        assert far < smollm2.LOSS, f"losses {got}, on the cpu {want}"
        return {"losses": got, "far": far, "seconds": seconds, "seconds on the cpu": on_cpu}

    def _five_steps(self, path: str, method: str, device: str) -> tuple[list[float], list[float]]:
        return smollm2.five_steps(path, method, device, self.folder)

    # --- speed ---

    def speed(self) -> dict[str, Any]:
        return {d: self._tried(f"speed on {d}", lambda d=d: _speed(d)) for d in (self.device, "cpu")}


def _speed(device: str) -> dict[str, float]:
    """SmolLM2's tokens a second, read and written, the second time each."""
    model = tv.load(smollm2.NAME, device)
    prompt = [1 + i % 1000 for i in range(READ)]
    for _ in range(2):
        session, since = model.session(), time.perf_counter()
        model.engine.forward(session, prompt, [READ - 1])
        read = time.perf_counter()
        for i in range(WRITTEN):
            model.engine.forward(session, [i + 1], [0])
        written = time.perf_counter()
    return {"read": round(READ / (read - since), 1), "written": round(WRITTEN / (written - read), 1)}
