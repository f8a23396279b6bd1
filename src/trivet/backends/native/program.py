"""A plan made ready to run by the core, with NumPy arrays going in and out without a copy."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from mmap import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import _native as core
from trivet import graph
from trivet.backends.base import Weights, bind
from trivet.backends.native.arrays import dense, empty
from trivet.errors import DTypeError, InputError
from trivet.graph import to_numpy
from trivet.plan import Plan, Value, encode

Array = npt.NDArray[Any]


class Handle:
    """An opaque handle of the core, freed with the last reference to it."""

    def __init__(self, make: Callable[..., None], free: Callable[..., None], *arguments: Any) -> None:
        pointer = ctypes.c_void_p()
        make(*arguments, ctypes.byref(pointer))
        self._as_parameter_ = pointer
        weakref.finalize(self, free, pointer)


class NativeModel:
    """The weights of one source in the core, where they are: mapped files are not copied, and what the core
    arranges for its kernels is arranged once for all programs."""

    def __init__(self) -> None:
        self.handle = Handle(core.tv_model_create, core.tv_model_free)
        self._arrays: dict[str, Array] = {}

    def add(self, wanted: Mapping[str, Value], weights: Weights) -> None:
        """Adds the weights that a plan wants and that are not there yet."""
        for name, value in wanted.items():
            if name not in self._arrays:
                array = self._arrays[name] = _fitted(name, value, weights(name), {})
                (tensor,) = _tensors([array], [value], {})
                core.tv_model_add_tensor(self.handle, name.encode(), ctypes.byref(tensor), 0)

    @property
    def mapped_bytes(self) -> int:
        """Bytes of those weights that are parts of a mapped file."""
        return sum(a.nbytes for a in self._arrays.values() if isinstance(_owner(a), mmap))


def _owner(array: Any) -> Any:
    """Whose memory an array is a view of."""
    while isinstance(array, np.ndarray | memoryview):
        below = array.base if isinstance(array, np.ndarray) else array.obj
        if below is None:
            break
        array = below
    return array


class NativeProgram:
    """A program of the core. Its state stands in the core's memory; `state` holds views of it."""

    def __init__(
        self,
        plan: Plan,
        model: NativeModel | None,
        state: Mapping[str, Any],
        sizes: Mapping[str, int],
        threads: int = 0,
    ) -> None:
        self._inputs = plan.named("input")
        self._outputs = {name: plan.values[i] for name, i in plan.outputs.items()}
        self._sizes = {name: sizes[name] for name in plan.dims if name in sizes}
        self._model = model  # the core reads weights where they are
        fixed = [core.tv_dim(name.encode(), size) for name, size in self._sizes.items()]
        dims = (core.tv_dim * len(fixed))(*fixed)
        options = core.tv_program_options(ctypes.sizeof(core.tv_program_options), threads, dims, len(dims))
        data = encode(plan)
        loaded = Handle(core.tv_plan_load, core.tv_plan_free, data, len(data))
        found = model.handle if model else None
        self._handle = Handle(
            core.tv_program_create, core.tv_program_free, loaded, found, ctypes.byref(options)
        )
        self.state = {name: self._state(name, value) for name, value in plan.named("state").items()}
        for name, value in plan.named("state").items():
            if name in state:
                self.state[name][...] = _fitted(name, value, state[name], dict(self._sizes))

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """One run. Raises, with no state changed, if an input is missing or does not fit."""
        missing = sorted(set(self._inputs) - set(inputs))
        if missing:
            raise InputError(f"[run] inputs {missing} are missing; the program takes {sorted(self._inputs)}")
        sizes = dict(self._sizes)
        given = [_fitted(name, value, inputs[name], sizes) for name, value in self._inputs.items()]
        results = {n: empty(_stored(v, sizes), to_numpy(v.dtype)) for n, v in self._outputs.items()}
        ins = _tensors(given, self._inputs.values(), sizes)
        outs = _tensors(results.values(), self._outputs.values(), sizes)
        core.tv_program_run(self._handle, ins, len(ins), outs, len(outs))
        return results

    def reserve(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Bytes that temporaries of a run take, with inputs of these shapes; nothing is computed."""
        given = [np.broadcast_to(np.zeros((), to_numpy(v.dtype)), shapes[n]) for n, v in self._inputs.items()]
        sizes = dict(self._sizes)
        for (name, value), array in zip(self._inputs.items(), given, strict=True):
            bind(sizes, graph.input(name, value.shape, value.dtype), array.shape)
        ins = _tensors(given, self._inputs.values(), sizes)
        for view in ins:
            view.data = None
        needed = ctypes.c_uint64()
        core.tv_program_reserve(self._handle, ins, len(ins), ctypes.byref(needed))
        return needed.value

    @property
    def arena_bytes(self) -> int:
        """Bytes held for temporaries."""
        return int(self._info().arena_bytes)

    @property
    def mapped_bytes(self) -> int:
        """Bytes of mapped files that a run brings into memory, about: of weights read where they lie."""
        mapped = self._model.mapped_bytes if self._model else 0
        return min(int(self._info().weight_bytes), mapped)

    def _info(self) -> core.tv_program_info:
        info = core.tv_program_info(ctypes.sizeof(core.tv_program_info))
        core.tv_program_get_info(self._handle, ctypes.byref(info))
        return info

    def _state(self, name: str, value: Value) -> Array:
        """A state as an array over the core's memory, which stays as long as the array does."""
        tensor = core.tv_tensor()
        core.tv_program_get_state(self._handle, name.encode(), ctypes.byref(tensor))
        shape, kind = _stored(value, self._sizes), to_numpy(value.dtype)
        if 0 in shape:
            return np.zeros(shape, kind)
        memory: Any = (ctypes.c_uint8 * value.nbytes(self._sizes)).from_address(tensor.data)
        memory.owner = self._handle
        return np.ctypeslib.as_array(memory).view(kind).reshape(shape)


class ProgramCache:
    """The programs used last, by the signatures of their graphs: at most COUNT of them, and fewer when their
    temporaries together take more than BYTES."""

    COUNT = 128
    BYTES = 256 << 20

    def __init__(self) -> None:
        self._programs: OrderedDict[Hashable, NativeProgram] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> NativeProgram | None:
        """The program of that signature, if it is kept."""
        with self._lock:
            if key in self._programs:
                self._programs.move_to_end(key)
            return self._programs.get(key)

    def keep(self, key: Hashable, program: NativeProgram) -> None:
        """Keeps a program, and lets go of the oldest that are too many."""
        with self._lock:
            self._programs[key] = program
            held = [p.arena_bytes for p in self._programs.values()]
            while len(held) > 1 and (len(held) > self.COUNT or sum(held) > self.BYTES):
                self._programs.popitem(last=False)
                held.pop(0)


def _stored(value: Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a value in storage form: the rows of a packed dtype are bytes."""
    shape = value.sizes(sizes)
    return (*shape[:-1], value.dtype.row_bytes(shape[-1])) if value.dtype.is_packed else tuple(shape)


def _fitted(name: str, value: Value, array: Any, sizes: dict[str, int]) -> Array:
    """An array that fits a value, dense; the symbols it settles are added to `sizes`."""
    array = np.asarray(array)
    if array.dtype != to_numpy(value.dtype):
        raise DTypeError(f"[run] {name!r} is {array.dtype}, wanted {value.dtype} in storage form")
    shape: tuple[int, ...] = array.shape
    if value.dtype.is_packed and not value.is_symbolic and array.size == value.nbytes({}):
        return dense(array)  # raw bytes of any shape
    if value.dtype.is_packed and shape and shape[-1] % value.dtype.nbytes == 0:
        shape = (*shape[:-1], shape[-1] // value.dtype.nbytes * value.dtype.block)
    bind(sizes, graph.input(name, value.shape, value.dtype), shape)
    return dense(array)


def _tensors(arrays: Iterable[Array], values: Iterable[Value], sizes: Mapping[str, int]) -> Any:
    """Views of arrays for the core; they keep the arrays' memory and shapes alive."""
    pairs = list(zip(arrays, values, strict=True))
    views: Any = (core.tv_tensor * len(pairs))()
    views.kept = []
    for view, (array, value) in zip(views, pairs, strict=True):
        shape = value.sizes(sizes)
        sizes_ = (ctypes.c_int64 * len(shape))(*shape)
        view.data, view.dtype, view.rank = array.ctypes.data, value.dtype.id, len(shape)
        view.shape = ctypes.cast(sizes_, type(view.shape))
        views.kept.append((array, sizes_))
    return views
