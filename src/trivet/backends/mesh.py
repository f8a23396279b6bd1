"""Meshes as people write them: "data:4,model:2" is eight devices, four along "data" by two along "model"."""

from __future__ import annotations

import re

from trivet.errors import InputError

AXES = ("data", "model")


def parse(mesh: str) -> dict[str, int]:
    """The axes of a mesh, and how many devices are along each; InputError if it is none.

    >>> parse("data:4,model:2")
    {'data': 4, 'model': 2}
    """
    axes: dict[str, int] = {}
    for part in mesh.split(",") if isinstance(mesh, str) else [""]:
        found = re.fullmatch(r"(\w+):([1-9][0-9]{0,4})", part.strip())
        if found is None or found[1] not in AXES or found[1] in axes:
            raise InputError(
                f"[mesh] {mesh!r:.60}: wanted the axes {', '.join(AXES)}, as in 'data:4,model:2'"
            )
        axes[found[1]] = int(found[2])
    return axes
