"""What a checkpoint says of its run: every field checked when it is read, once, for its type and its bounds.

recipe      a recipe's name
config      its settings, an object
device      what the run was on
model       sha256 of the model, if the run began with one
validation  fingerprint of the validation examples, if there are any
trainer     {"taken": steps so far, the checkpoint's step; "moves": those that changed something; "seed"}
data        {"epoch", "step": where the next step's examples stand; and what the data are known by}
best        [step, loss] of the best measurement, or null
measured    the step after which it last was measured, -1 for none
skipped     steps that changed nothing
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trivet.errors import FileError

_SEED = 2**63 - 1


def check(facts: dict[str, Any], step: int, recipes: Iterable[str], where: str) -> None:
    """Raises FileError that names the field, if a run of one of the recipes cannot go on from `step` with
    these facts."""

    def refuse(name: str, value: Any, wanted: str) -> None:
        raise FileError(f"[resume] {where}: {name} is {value!r:.80}; wanted {wanted}")

    def number(name: str, value: Any, least: int, most: int) -> None:
        if type(value) is not int or not least <= value <= most:
            refuse(name, value, f"{least}" if least == most else f"an integer from {least} to {most}")

    names = tuple(recipes)
    if facts.get("recipe") not in names:
        refuse("recipe", facts.get("recipe"), f"one of: {', '.join(names)}")
    for name in ("config", "trainer", "data"):
        if not isinstance(facts.get(name), dict):
            refuse(name, facts.get(name), "an object")
    for name in ("device", "model", "validation"):
        if not isinstance(facts.get(name), str | None):
            refuse(name, facts.get(name), "a text, or nothing")
    trainer, data, best = facts["trainer"], facts["data"], facts.get("best")
    number("trainer.taken", trainer.get("taken"), step, step)
    number("trainer.moves", trainer.get("moves"), 0, step)
    number("trainer.seed", trainer.get("seed"), 0, _SEED)
    number("data.epoch", data.get("epoch"), 0, step)  # an epoch has a step, at least
    number("data.step", data.get("step"), 0, step)
    number("skipped", facts.get("skipped"), 0, step - trainer["moves"])
    number("measured", facts.get("measured", -1), -1, step)
    if best is not None:
        if not isinstance(best, list) or len(best) != 2 or type(best[1]) is not float:
            refuse("best", best, "[step, loss], or null")
        number("best", best[0], 0, step)
