"""Choosing a device, evaluating graphs on it, moving values.

Each device stands for one backend. Nothing ever changes device by itself: asking for one that is not there
raises DeviceUnavailable with the reason, and a node whose inputs live on two devices cannot be built.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from trivet import backends, graph
from trivet.backends.base import Backend
from trivet.dtypes import DType
from trivet.errors import CapacityError, DeviceMismatch, DeviceUnavailable, InputError
from trivet.graph import LEAVES, Dim, Graph, Node, walk
from trivet.plan import rebuilt, rewrite

#: device -> the folder in backends/ that computes for it
BACKENDS = {"cpu": "native", "cuda": "xla", "rocm": "xla", "tpu": "xla", "metal": "mlx", "reference": "numpy"}
#: numbers that stay the same in every version: what other languages and files name a device by
IDS = {"cpu": 0, "metal": 1, "cuda": 2, "tpu": 3, "rocm": 4, "reference": 5}
#: what "auto" tries, in this order; `reference` is asked for by name only
AUTO = ("tpu", "cuda", "rocm", "metal", "cpu")
#: constants of more bytes are inputs of a program, so that programs can be used again
SMALL_CONSTANT = 256
#: whose bytes a signed 64-bit size can still count
MOST_ELEMENTS = 2**60 - 1


#: the devices of the `with` blocks that this thread, or task of asyncio, is in: the innermost is the last
_scopes: ContextVar[tuple[str, ...]] = ContextVar("_scopes", default=())


class device:
    """Where this thread (or task of asyncio) computes inside the block what is not said to be elsewhere.
    Raises InputError for a name that is none, and DeviceUnavailable, at once.

    >>> with device("reference"):
    ...     resolve()
    'reference'
    """

    def __init__(self, name: str) -> None:
        self.name = resolve(name)

    def __enter__(self) -> None:
        _scopes.set((*_scopes.get(), self.name))

    def __exit__(self, *raised: object) -> None:
        _scopes.set(_scopes.get()[:-1])


@dataclass(frozen=True, slots=True)
class Device:
    """A device and, if it cannot be used, why."""

    name: str
    available: bool
    details: str


def devices() -> list[Device]:
    """Every device trivet knows, whether it can be used here, and what it is or why not.

    >>> [d.name for d in devices()]
    ['cpu', 'cuda', 'rocm', 'tpu', 'metal', 'reference']
    """
    return [_device(name) for name in BACKENDS]


def _device(name: str) -> Device:
    reason = unavailable(name)
    if reason is not None:
        return Device(name, False, reason)
    return Device(name, True, _backend(name).details())


def unavailable(device: str) -> str | None:
    """None if the device can be used, else why not."""
    if not isinstance(device, str) or device not in BACKENDS:
        raise InputError(f"[device] no device {device!r:.60}; known: auto, {', '.join(BACKENDS)}")
    if BACKENDS[device] not in backends.names():
        return f"this version has no {BACKENDS[device]} backend"
    return _backend(device).unavailable()


def resolve(device: str | None = None) -> str:
    """The name of a device that can be used. None and "auto" are the one that the thread is in (`with
    device(...)`), else the first available one.

    >>> resolve("reference")
    'reference'
    """
    if device is None or (isinstance(device, str) and device == "auto"):
        device = next(reversed(_scopes.get()), None)
    if device is None:
        reasons = {name: unavailable(name) for name in AUTO}
        for name, reason in reasons.items():
            if reason is None:
                return name
        raise DeviceUnavailable(
            f"[device] none is available: {'; '.join(f'{n}: {r}' for n, r in reasons.items())}"
        )
    reason = unavailable(device)
    if reason is not None:
        raise DeviceUnavailable(f"[device] {device} is not available: {reason}")
    return device


def backend(device: str, mesh: str = "") -> Backend:
    """The backend that computes for an available device; with a mesh ("data:4,model:2"), over several."""
    found = _backend(resolve(device))
    return found if mesh == "" else found.over(mesh)


def _backend(device: str) -> Backend:
    return backends.find(BACKENDS[device]).on(device)


def put(array: Any, dtype: DType, device: str | None = None) -> Node:
    """A NumPy array in storage form (bf16 as uint16 bits) copied to a device: a buffer node."""
    name = resolve(device)
    with _roomy("[put]", name):
        made = backend(name).from_numpy(array, dtype)
        if made is array or (isinstance(made, np.ndarray) and np.may_share_memory(made, array)):
            made = made.copy()  # values never change, whatever becomes of the caller's array
    return graph.buffer(made, np.shape(array), dtype, name)


def memory(node: Node) -> np.ndarray[Any, Any]:
    """A node's value as a NumPy array in storage form, over the device's own memory where that can be."""
    (value,) = evaluate([node])
    where = value.attrs["device"]
    with _roomy("[fetch]", where):
        return backend(where).to_numpy(value.value)


def fetch(node: Node) -> np.ndarray[Any, Any]:
    """The same as a read-only view: values never change."""
    array = memory(node).view()
    array.flags.writeable = False
    return array


def move(node: Node, device: str) -> Node:
    """A copy of a node's value on a device."""
    return put(fetch(node), node.dtype, resolve(device))


_done: WeakKeyDictionary[Node, Node] = WeakKeyDictionary()


def evaluate(nodes: Sequence[Node], device: str | None = None) -> list[Node]:
    """The nodes' values as buffers, computed in one program, on the device their inputs are on; `device` says
    where, for nodes that depend on none. A value once computed is kept as long as its node lives."""
    where = _place(nodes, device)
    values = {n: n if n.op == "buffer" else _done[n] for n in nodes if n.op == "buffer" or n in _done}
    missing = list(dict.fromkeys(n for n in nodes if n not in values))
    shapes = [_fixed(node) for node in missing]
    with _roomy("[eval]", where):
        arrays = _compute(missing, where) if missing else []
    for node, array, shape in zip(missing, arrays, shapes, strict=True):
        values[node] = graph.buffer(array, shape, node.dtype, where)
        if node.device is not None:  # else it may be asked for on another device next
            _done[node] = values[node]
    return [values[n] for n in nodes]


@contextmanager
def _roomy(call: str, device: str) -> Iterator[None]:
    """What NumPy says inside the block of memory that is not there, as a CapacityError."""
    try:
        yield
    except MemoryError as error:
        raise CapacityError(f"{call} out of memory on {device}: {error}") from None


def _fixed(node: Node) -> tuple[int, ...]:
    for size in node.shape:
        if isinstance(size, Dim):
            raise InputError(f"[eval] {node} has the symbolic size {size}: only a compiled graph can be run")
    shape = tuple(s for s in node.shape if isinstance(s, int))
    if math.prod(shape) > MOST_ELEMENTS:
        raise CapacityError(f"[eval] {node} has more than {MOST_ELEMENTS} elements")
    return shape


def _place(nodes: Sequence[Node], device: str | None) -> str:
    """The one device of the nodes."""
    found = {n.device for n in nodes if n.device is not None}
    if device is not None:
        found.add(resolve(device))
    if len(found) > 1:
        raise DeviceMismatch(
            f"[eval] values on {' and on '.join(sorted(found))} in one call; move with .to()"
        )
    return found.pop() if found else resolve()


def _compute(nodes: Sequence[Node], device: str) -> list[Any]:
    """The nodes' values as arrays of the device's backend."""
    inputs: dict[tuple[int, Any], Node] = {}
    given: dict[str, Any] = {}
    leaves: dict[Node, Node] = {}
    for node in _known_or_leaves(nodes):
        value = _done[node].value if node in _done else node.value
        if node.op == "constant" and value.nbytes <= SMALL_CONSTANT:
            continue
        if value is None:
            raise InputError(f"[eval] {node} has no value; compile the graph and run it with one")
        made = graph.input(f"v{len(inputs)}", node.shape, node.dtype)
        leaves[node] = inputs.setdefault((id(value), node.spec), made)  # one value is one input
        given[leaves[node].attrs["name"]] = value
    outputs = rewrite(nodes, rebuilt, known=leaves)
    program = backend(device).compile(Graph({str(i): n for i, n in enumerate(outputs)}))
    results = program.run(given)
    return [results[str(i)] for i in range(len(nodes))]


def _known_or_leaves(nodes: Sequence[Node]) -> Iterator[Node]:
    """Where the graph of `nodes` begins: leaves, and nodes whose values were computed before."""
    for node in walk(nodes, known=_done):
        if node.op in LEAVES:
            yield node
        yield from (n for n in node.inputs if n in _done)
