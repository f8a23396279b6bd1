"""`NativeBackend`: which calls the core takes, and graphs compiled for it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from trivet import _native as core
from trivet.backends.base import Array, Backend, Weights
from trivet.backends.native import lowering
from trivet.backends.native.arrays import copied
from trivet.backends.native.bounds import bounds
from trivet.backends.native.program import NativeModel, NativeProgram, ProgramCache
from trivet.dtypes import DType
from trivet.errors import InputError, TrivetError
from trivet.graph import Graph, Node
from trivet.plan import Plan, build, signature
from trivet.plan.structure import VIEWS


@cache
def supports(name: str, inputs: tuple[DType, ...], outputs: tuple[DType, ...]) -> bool:
    """Whether the core has a kernel of row `name` for these dtypes; views need none."""
    if name in VIEWS:
        return True
    ids = [(core.tv_dtype * len(kinds))(*(d.id for d in kinds)) for kinds in (inputs, outputs)]
    found = ctypes.c_int32()
    core.tv_kernel_supports(name.encode(), ids[0], len(inputs), ids[1], len(outputs), ctypes.byref(found))
    return bool(found.value)


def lower(graph: Graph) -> Graph:
    """The graph in calls that the core has kernels for; UnsupportedError names the row that cannot be."""
    return lowering.lower(graph, supports)


def cpu_info() -> core.tv_cpu_info:
    """The processor, as the core uses it."""
    info = core.tv_cpu_info(ctypes.sizeof(core.tv_cpu_info))
    core.tv_cpu_get_info(ctypes.byref(info))
    return info


def cpu_rates(threads: int) -> core.tv_cpu_rates:
    """What the processor and its memory can do at most, measured now with so many threads: a second or so."""
    rates = core.tv_cpu_rates(ctypes.sizeof(core.tv_cpu_rates))
    core.tv_cpu_measure(threads, ctypes.byref(rates))
    return rates


class NativeBackend(Backend):
    """Compiles graphs for the core. Its arrays are NumPy arrays in storage form, aligned to 64 bytes."""

    name = "native"

    def __init__(self) -> None:
        self._programs = ProgramCache()
        self._models: WeakKeyDictionary[Any, NativeModel] = WeakKeyDictionary()

    def unavailable(self) -> str | None:
        try:
            cpu_info()
        except TrivetError as error:
            return str(error)
        return None

    def details(self) -> str:
        info = cpu_info()
        return f"{info.isa.decode()}, {info.threads} threads, {info.features.decode()}"

    def supports(self, node: Node) -> bool:
        return supports(node.op, *lowering.dtypes_of(node))

    def compile(
        self,
        graph: Graph,
        *,
        weights: Weights | None = None,
        state: Mapping[str, Array] | None = None,
        sizes: Mapping[str, int] | None = None,
        threads: int = 0,
    ) -> NativeProgram:
        shared = weights is None and not state and not sizes and not threads
        key = signature(graph) if shared else None
        program = self._programs.get(key) if shared else None
        if program is None:
            lowered = lower(graph)
            plan = build(lowered, bounds(lowered, sizes or {}))
            program = NativeProgram(plan, self._model(plan, weights), state or {}, sizes or {}, threads)
            if shared and not program.state:
                self._programs.keep(key, program)
        return program

    def _model(self, plan: Plan, weights: Weights | None) -> NativeModel | None:
        """The weights of a plan. Programs whose weights one object's method finds share them."""
        wanted = plan.named("weight")
        if not wanted:
            return None
        if weights is None:
            raise InputError(f"[compile] the graph reads the weights {sorted(wanted)}, but none are given")
        model = NativeModel()
        if isinstance(weights, MethodType):
            model = self._models.setdefault(weights.__self__, model)
        model.add(wanted, weights)
        return model

    def from_numpy(self, array: Any, dtype: DType) -> npt.NDArray[Any]:
        return copied(np.asarray(array))

    def to_numpy(self, array: Array) -> npt.NDArray[Any]:
        return np.asarray(array)


BACKEND = NativeBackend()
