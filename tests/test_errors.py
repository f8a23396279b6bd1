"""The exception tree: each class is what its caller expects, and the drawing of it is true."""

import builtins
import inspect
import re

import pytest

from trivet import errors

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__]


@pytest.mark.parametrize("error", CLASSES, ids=lambda c: c.__name__)
def test_is_caught_as_the_tree_says(error):
    drawn = re.search(rf"^([│├└─ ]*){error.__name__}\b(?: +\((\w+)\))?", errors.__doc__, re.M)
    assert drawn, "not in the tree"
    caught = [errors.TrivetError] + ([getattr(builtins, drawn[2])] if drawn[2] else [])
    for kind in caught:
        with pytest.raises(kind, match="what happened"):
            raise error("[call] what happened")


def test_the_tree_draws_parents_above():
    path = {}
    for line in errors.__doc__.split("\n\n")[1].splitlines():
        marks, name = re.match(r"([│├└─ ]*)(\w+)", line).groups()
        depth = len(marks) // 4
        path[depth] = getattr(errors, name)
        if depth:
            assert path[depth - 1] in path[depth].__bases__
    assert (
        len(re.findall(r"^[│├└─ ]*\w+(?:Error|Unavailable|Mismatch|Cancelled)", errors.__doc__, re.M)) >= 15
    )
