"""A child with eight devices, for JAX makes them when it starts: argv is a folder, a program's name and
meshes. Prints, as JSON, how far each mesh is from one device, and where some arrays stand."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import device_programs

from trivet.backends.xla import BACKEND


def far(got, want):
    """Euclidean, relative to what is wanted."""
    got, want = (np.asarray(x, np.float64) for x in (got, want))
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-12))


def run(program, backend):
    state = device_programs.first_state(program)
    made = backend.compile(program.graph, weights=program.checkpoint.load, state=state, sizes=program.sizes)
    out = made.run(device_programs.inputs(program))
    places = {n: list(map(str, a.sharding.spec)) for n, a in made.state.items() if backend.mesh}
    return {**out, **made.state}, places


def main():
    checkpoint = device_programs.small(Path(sys.argv[1]))
    program = device_programs.build(sys.argv[2], checkpoint)
    want, _ = run(program, BACKEND)
    for mesh in sys.argv[3:]:
        got, places = run(program, BACKEND.over(mesh))
        distances = {n: far(got[n], want[n]) for n in want}
        print(json.dumps({"mesh": mesh, "far": distances, "places": places}))


main()
