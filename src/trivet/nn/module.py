"""A module is a plain object: its tensors, and the modules it is made of, are attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trivet.errors import InputError, ShapeError
from trivet.graph import Node
from trivet.tensor import Tensor


class Module:
    """Base of what has parameters: every attribute that is a Tensor or a Node, and those of every Module in
    an attribute, or in a list, tuple or dict that is one. A parameter's name is its dotted path.

    >>> from trivet.tensor import zeros
    >>> class Twice(Module):
    ...     def __init__(self):
    ...         self.layers = [Scale(), Scale()]
    >>> class Scale(Module):
    ...     def __init__(self):
    ...         self.weight = zeros(3)
    >>> list(Twice().parameters())
    ['layers.0.weight', 'layers.1.weight']
    """

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Pairs of dotted path and tensor, in the order of the attributes."""
        for path, owner, key in _slots(self, prefix):
            yield path, _get(owner, key)

    def parameters(self) -> dict[str, Any]:
        """The same as a dict."""
        return dict(self.named_parameters())

    def update(self, values: Mapping[str, Any]) -> None:
        """Replaces parameters by name; an unknown name or another shape raises and changes nothing."""
        slots = {path: (owner, key) for path, owner, key in _slots(self, "")}
        for name, value in values.items():
            if name not in slots:
                raise InputError(f"[update] no parameter {name!r}; there are {', '.join(slots)}")
            if isinstance(slots[name][0], tuple):
                raise InputError(f"[update] {name} stands in a tuple, which cannot change; use a list")
            old = _get(*slots[name])
            if (old.shape, old.dtype) != (value.shape, value.dtype):
                raise ShapeError(
                    f"[update] {name} is {old.dtype}{list(old.shape)}, got {value.dtype}{list(value.shape)}"
                )
        for name, value in values.items():
            _set(*slots[name], value)


def _slots(owner: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    """Path, owner and key of every parameter below an object."""
    for key, value in _items(owner):
        path = f"{prefix}{key}"
        if isinstance(value, Tensor | Node):
            yield path, owner, key
        elif isinstance(value, Module | list | tuple | dict):
            yield from _slots(value, f"{path}.")


def _items(owner: Any) -> list[tuple[Any, Any]]:
    if isinstance(owner, dict):
        return list(owner.items())
    return list(enumerate(owner) if isinstance(owner, list | tuple) else vars(owner).items())


def _get(owner: Any, key: Any) -> Any:
    return getattr(owner, key) if isinstance(owner, Module) else owner[key]


def _set(owner: Any, key: Any, value: Any) -> None:
    if isinstance(owner, Module):
        setattr(owner, key, value)
    else:
        owner[key] = value
