"""Gradients of functions of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from trivet import autograd, graph, ops
from trivet.errors import DTypeError, InputError, ShapeError
from trivet.graph import Node
from trivet.runtime import put
from trivet.tensor.array import TRACING, Tensor


def value_and_grad(function: Callable[..., Tensor], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function that gives `function`'s value and its gradients in the arguments at `argnums`.

    The value must be a floating tensor of shape (). An argument is a tensor, or lists, tuples and dicts of
    tensors; its gradient has the same form, with zeros where the value does not depend on it. Both come
    uncomputed: `eval(value, ...)` them together, and what they share is computed once.

    >>> from trivet.tensor import asarray
    >>> value, slope = value_and_grad(lambda x: (x * x).sum())(asarray([1.0, 3.0]))
    >>> value.item(), slope.tolist()
    (10.0, [2.0, 6.0])
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        if any(not 0 <= i < len(args) for i in numbers):
            raise InputError(f"[value_and_grad] argnums {numbers}, but {len(args)} positional arguments")
        variables: list[Node] = []
        given = [_fresh(a, variables) if i in numbers else a for i, a in enumerate(args)]
        value = _traced(function, given, kwargs)
        grads = autograd.grad([value.node], variables, [_number(1, value.node)])
        slopes = iter([Tensor(_or_zeros(g, v)) for g, v in zip(grads, variables, strict=True)])
        forms = {i: _filled(given[i], slopes) for i in sorted(numbers)}
        return value, forms[argnums] if isinstance(argnums, int) else tuple(forms[i] for i in numbers)

    return wrapped


def grad(function: Callable[..., Tensor], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The same without the value."""
    both = value_and_grad(function, argnums)
    return functools.wraps(function)(lambda *args, **kwargs: both(*args, **kwargs)[1])


def _traced(function: Callable[..., Tensor], args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    """The function's value, with evaluation on the way leaving graphs as they are."""
    TRACING.depth = getattr(TRACING, "depth", 0) + 1
    try:
        value = function(*args, **kwargs)
    finally:
        TRACING.depth -= 1
    if not isinstance(value, Tensor) or value.shape != ():
        what = value.shape if isinstance(value, Tensor) else type(value).__name__
        raise ShapeError(f"[value_and_grad] the function gave {what}, wanted a tensor of shape ()")
    return value


def _fresh(argument: Any, variables: list[Node]) -> Any:
    """The argument with a node of its own for each tensor, so that gradients stop there."""
    if isinstance(argument, Tensor):
        if not argument.dtype.is_float:
            raise DTypeError(f"[value_and_grad] an argument of {argument.dtype} has no gradient")
        variables.append(ops.reshape(argument.node, argument.shape))
        return Tensor(variables[-1])
    if isinstance(argument, dict):
        return {key: _fresh(value, variables) for key, value in argument.items()}
    if isinstance(argument, list | tuple):
        return type(argument)(_fresh(value, variables) for value in argument)
    raise InputError(f"[value_and_grad] an argument of {type(argument).__name__}, wanted tensors")


def _filled(form: Any, slopes: Any) -> Any:
    """The form of an argument with the next gradients for its tensors."""
    if isinstance(form, Tensor):
        return next(slopes)
    if isinstance(form, dict):
        return {key: _filled(value, slopes) for key, value in form.items()}
    return type(form)(_filled(value, slopes) for value in form)


def _or_zeros(g: Node | None, like: Node) -> Node:
    if g is not None:
        return g
    zeros: Node = ops.broadcast_to(_number(0, like), like.shape)
    return zeros


def _number(value: int, like: Node) -> Node:
    """A number of the dtype of another node, and on its device, so that what comes of it is there, too."""
    number = graph.constant(value, like.dtype)
    return number if like.device is None else put(number.value, like.dtype, like.device)
