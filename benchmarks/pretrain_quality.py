"""A byte model from scratch on this project's own text: trivet's losses beside PyTorch's at equal settings.

Equal are the first values, the batches and their order, the schedule, the clipping and AdamW's settings;
PyTorch runs transformers' model. The losses must agree within 2 %.

    python benchmarks/pretrain_quality.py [--steps 200] [--style gpt2|llama]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import common
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SIZES = {"layers": 4, "width": 128, "heads": 4, "context": 128, "rows": 16, "holdout": 0.1}
BOUND = 0.02


def corpus(path: Path) -> Path:
    """The project's Python sources and pages, in one file."""
    files = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
    path.write_text("\n".join(file.read_text("utf-8") for file in files), "utf-8")
    return path


def theirs(session: Any) -> Any:
    """The same model in transformers, with the same first values."""
    import torch
    import transformers

    from trivet import models
    from trivet.models.checkpoint import transposed

    checkpoint = session.checkpoint
    module = models.by_architecture(checkpoint.architecture)
    config = module.hf_config(checkpoint.metadata, checkpoint.tensors["token_embd.weight"].shape[0], True)
    kind = transformers.GPT2Config if checkpoint.architecture == "gpt2" else transformers.LlamaConfig
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config |= dropout if kind is transformers.GPT2Config else {}
    model = transformers.AutoModelForCausalLM.from_config(kind(**config)).float()
    state = model.state_dict()
    for name, entry in checkpoint.tensors.items():
        array = entry.load()
        if checkpoint.architecture == "llama":  # from pairs back to halves
            order = module.hf_arrange(name, np.arange(len(array)), checkpoint.metadata)
            array = array[np.argsort(order)]
        array = array.T if transposed(module, name) else array
        state[module.hf_original(name)].copy_(torch.from_numpy(np.ascontiguousarray(array)))
    return model


def padded(batch: Any) -> tuple[Any, Any]:
    """A batch's windows as rows of ids and targets."""
    import torch

    edges = [*np.flatnonzero(batch.positions == 0), len(batch.ids)]
    width = max(b - a for a, b in pairwise(edges))
    ids = np.zeros((len(edges) - 1, width), np.int64)
    targets = np.full(ids.shape, -100, np.int64)
    for row, (a, b) in enumerate(pairwise(edges)):
        ids[row, : b - a], targets[row, : b - a] = batch.ids[a:b], batch.targets[a:b]
    return torch.from_numpy(ids), torch.from_numpy(targets)


def loss_of(model: Any, batches: list[Any]) -> tuple[Any, int]:
    """The sum of losses, and how many targets."""
    import torch

    total: Any = 0.0
    for batch in batches:
        ids, targets = padded(batch)
        logits = model(ids, use_cache=False).logits.flatten(0, 1)
        total = total + torch.nn.functional.cross_entropy(logits, targets.flatten(), reduction="sum")
    return total, sum(batch.trained for batch in batches)


def train_theirs(session: Any) -> tuple[list[float], float]:
    """PyTorch's losses of all steps, and on the held-out text at the end."""
    import torch

    from trivet.train.data import Position

    c, model, at = session.config, theirs(session), Position()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": c.decay}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, betas=(c.beta1, c.beta2), eps=c.eps)
    schedule, losses = c.over(session.steps), []
    for step in range(1, session.steps + 1):
        total, targets = loss_of(model, session.batches.step(at))
        at = session.batches.after(at)
        optimiser.zero_grad()
        (total / targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), c.clip)
        for group in optimiser.param_groups:
            group["lr"] = schedule.at(step)
        optimiser.step()
        losses.append(total.item() / targets)
    with torch.no_grad():
        parts = [loss_of(model, [batch]) for batch in session.held_batches]
    return losses, sum(total.item() for total, _ in parts) / sum(targets for _, targets in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--style", default="gpt2")
    options = parser.parse_args()

    from trivet.train.config import Pretrain, make
    from trivet.train.pretrain import Session

    with tempfile.TemporaryDirectory() as folder:
        data = corpus(Path(folder) / "corpus.txt")
        given = {"data": str(data), "out": f"{folder}/run", "style": options.style, "steps": options.steps}
        session = Session(make(Pretrain, given | SIZES), "cpu", 2)
        began = time.perf_counter()
        run = session.run()
        middle = time.perf_counter()
        losses, held = train_theirs(session)
        seconds = {"trivet": middle - began, "PyTorch": time.perf_counter() - middle}
    ours, at_end = [loss for _, loss in run.losses], run.validation[-1][1]
    tail = max(options.steps // 10, 1)
    result = {
        "style": options.style, "steps": options.steps, "corpus_tokens": session.train.positions,
        "seconds": {k: round(v, 1) for k, v in seconds.items()},
        "first_loss": [ours[0], losses[0]],
        "last_losses": [float(np.mean(ours[-tail:])), float(np.mean(losses[-tail:]))],
        "held_out": [at_end, held],
        "largest_gap": float(np.max(np.abs(np.array(ours) / losses - 1))),
    }  # fmt: skip
    print(json.dumps(result, indent=2))
    common.write(f"pretrain_quality_{options.style}", None, result)
    for name in ("last_losses", "held_out"):
        mine, peer = result[name]
        assert mine < (1 + BOUND) * peer, f"{name}: {mine:.4f} is over 2 % worse than {peer:.4f}"


if __name__ == "__main__":
    main()
