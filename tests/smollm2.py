"""SmolLM2-135M as tests use it whole: ids to give logits of, and five steps of each method of training."""

from __future__ import annotations

import json
import time
from pathlib import Path

from trivet.train.data import Position
from trivet.train.recipes import prepared

NAME = "smollm2-135m"
IDS = (504, 3575, 282, 4649, 314, 7042, 28, 284, 260, 7976, 338, 6020, 827, 357, 314, 260, 34222, 30)
TEXTS = ["The order was shipped on Monday.", "A red bus came late.", "Where is my parcel now?", "It is here."]
METHODS = {
    "full": {"method": "full"},
    "lora": {"method": "lora"},
    "qlora": {"method": "qlora", "base": "nf4"},
}
#: how far losses may be from those of another device, in float32
LOSS = 1e-4
#: how far logits may be from the reference's, of the largest. The core rounds what meets packed weights.
LOGITS = {"cpu": 1e-3}
LOGITS_ELSEWHERE = 2e-5


def five_steps(model: Path | str, method: str, device: str, folder: Path) -> tuple[list[float], list[float]]:
    """(losses, seconds) of five steps over all the texts, in float32 at the method's usual learning rate."""
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), "utf-8")
    given = {"model": str(model), "data": str(data), "train_on": "all", "out": str(folder / "out")}
    session = prepared("finetune", given | METHODS[method], device)
    losses, seconds = [], []
    for epoch in range(5):
        since = time.perf_counter()
        report = session.trainer.step(session.batches.step(Position(epoch, 0)), session.config.rate)
        seconds.append(round(time.perf_counter() - since, 4))
        losses.append(report.loss)
    return losses, seconds
