"""Settings of their own for some parameters."""

from __future__ import annotations

import numpy as np
import pytest

from trivet import graph, ops, runtime
from trivet.dtypes import f32
from trivet.errors import InputError
from trivet.graph import Graph
from trivet.optim import AdamW, Group
from trivet.train.config import Finetune, make


def test_the_first_group_that_matches_holds() -> None:
    adamw = AdamW(decay=0.1, groups=(Group("*.lora_b", lr=16), Group("blk.0.*", decay=0.5), Group("*", lr=2)))
    assert adamw.of("blk.0.attn_q.weight.lora_b", 2) == (16, 0.1)
    assert adamw.of("blk.0.attn_q.weight.lora_a", 2) == (1.0, 0.5)
    assert adamw.of("output_norm.weight", 1) == (2, 0.0)
    assert AdamW(decay=0.1).of("output_norm.weight", 1) == (1.0, 0.0)


def test_a_factor_moves_a_parameter_as_far_as_its_own_learning_rate() -> None:
    """Adam's first step is lr, whatever the gradient."""
    backend = runtime.backend("cpu")
    moved = []
    for rates in (AdamW().rates(4e-3, 1), None):
        given = graph.input("rates", (3,), f32)
        used = given if rates is not None else ops.mul(given, np.array([4, 1, 1], np.float32))
        p, m, v = (graph.state(n, (5,), f32) for n in "pmv")
        made = ops.adamw(p, np.ones(5, np.float32), m, v, used, np.float32(1))
        program = backend.compile(Graph({}, dict(zip("pmv", made, strict=True))))
        program.run({"rates": AdamW().rates(1e-3, 1) if rates is None else rates})
        moved.append(np.array(program.state["p"]))
    assert np.array_equal(*moved)
    assert np.allclose(moved[0], -4e-3, rtol=1e-5)


def test_groups_come_from_a_file() -> None:
    given = {"model": "m", "data": "d", "out": "o", "groups": [{"pattern": "*.lora_b", "lr": 16}]}
    assert make(Finetune, given).optimiser.groups == (Group("*.lora_b", lr=16.0),)
    for bad in ([{"lr": 2}], [{"pattern": "", "lr": 2}], [{"pattern": "*", "rate": 2}], ["*"], 3):
        with pytest.raises(InputError):
            make(Finetune, {**given, "groups": bad})
