"""A child with eight devices: argv is a folder, a method and a mesh. Tunes a model by the public door on one
device and over the mesh. Prints, as JSON, the losses of both, how far what they leave is apart, and on how
many devices what is trained stands."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import tiny_model
import trivet as tv
import tuning
from devices import EXTRA
from trivet.train import checkpoint
from trivet.train.recipes import reopen


def far(got, want):
    """Euclidean, relative to what is wanted."""
    got, want = (np.asarray(x, np.float64) for x in (got, want))
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-12))


def standing(session):
    """On how many devices each of what is trained stands."""
    return sorted({len(array.sharding.device_set) for array in session.trainer._program.state.values()})


def main():
    folder, (method, mesh), device = Path(sys.argv[1]), sys.argv[2:], EXTRA[0]
    model = (
        tiny_model.write(folder / "m.gguf") if method == "lora" else tuning.packed_model(folder / "m.gguf")
    )
    data, held = tuning.rows(folder / "d.jsonl", 20), tuning.rows(folder / "h.jsonl", 5, 100)
    losses, left = [], []
    for over in ("", mesh):
        out = folder / f"out{len(over)}"
        given = {"method": method, "mesh": over, "rows": 5, "epochs": 2, "lr": 1e-4, "evaluate": 4}
        run = tv.finetune(model, data, out=out, device=device, validation=str(held), **given)
        losses.append([loss for _, loss in [*run.losses, *run.validation]])
        left.append(checkpoint.load(checkpoint.latest(out)).arrays)
    which, adapter = (run.result, None) if method == "full" else (model, run.result)
    one, other = (
        tv.load(which, device, kv="f32", adapter=adapter, mesh=m).logits(range(1, 9)) for m in ("", mesh)
    )
    apart = {name: far(left[1][name], array) for name, array in left[0].items()}
    on = [standing(reopen(out, device, mesh=again)) for again in (None, "")]
    print(json.dumps({"losses": losses, "far": apart, "logits": far(other, one), "on": on}))


main()
