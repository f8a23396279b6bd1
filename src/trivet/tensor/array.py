"""The user's class: `Tensor`, sugar over a node of the lazy graph.

Methods have the names of the Python Array API standard. Building is free; a value is computed when it is
asked for (`numpy`, `item`, `eval`, printing), and the graph behind it is then let go. Tensors never change:
NumPy views of them are read only.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from trivet import dtypes, ops, runtime
from trivet.blocks.bfloat16 import from_bf16
from trivet.dtypes import DType
from trivet.errors import DTypeError, ShapeError
from trivet.graph import Dim, Node, Shape
from trivet.tensor import dlpack
from trivet.tensor.indexing import index

Axis: TypeAlias = int | Sequence[int] | None
DTypeLike: TypeAlias = DType | str

#: While a gradient is traced, evaluated tensors keep their graph: the gradient goes through it.
TRACING = threading.local()


def dtype_of(dtype: DTypeLike) -> DType:
    """A dtype, or the one of that name."""
    if isinstance(dtype, DType):
        return dtype
    if dtype not in dtypes.BY_NAME:
        raise DTypeError(f"[dtype] no dtype {dtype!r}; known: {', '.join(d.name for d in dtypes.DENSE)}")
    return dtypes.BY_NAME[dtype]


def eval(*tensors: Tensor) -> None:
    """Computes tensors now, those of one device in one program, and lets go of the graphs behind them."""
    by_device: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, []).append(tensor)
    for device, group in by_device.items():
        values = runtime.evaluate([t.node for t in group], device)
        for tensor, value in zip(group, values, strict=True):
            if not getattr(TRACING, "depth", 0):
                tensor.node = value


def _node(value: Any) -> Any:
    return value.node if isinstance(value, Tensor) else value


def _unary(op: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
    return lambda self: Tensor(op(self.node))


def _binary(op: Callable[[Any, Any], Any]) -> Callable[[Tensor, Any], Tensor]:
    return lambda self, other: Tensor(op(self.node, _node(other)))


def _reflected(op: Callable[[Any, Any], Any]) -> Callable[[Tensor, Any], Tensor]:
    return lambda self, other: Tensor(op(_node(other), self.node))


class Tensor:
    """A value of the graph, computed when it is needed.

    >>> from trivet import asarray
    >>> x = asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> x.sum(axis=0).numpy().tolist(), x.shape, x.dtype
    ([4.0, 6.0], (2, 2), f32)
    """

    __slots__ = ("node",)
    __array_ufunc__ = None  # NumPy's operators leave mixed expressions to ours
    __hash__ = None  # type: ignore[assignment]  # == compares elements

    def __init__(self, node: Node) -> None:
        self.node = node

    # --- what it is ---------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        return self.node.shape

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def ndim(self) -> int:
        return self.node.ndim

    @property
    def size(self) -> int | Dim:
        return math.prod(self.shape)

    @property
    def device(self) -> str:
        """The device it is on, or would be computed on."""
        return self.node.device or runtime.resolve()

    def __len__(self) -> int:
        if not self.shape or isinstance(self.shape[0], Dim):
            raise ShapeError(f"[len] a tensor of shape {self.shape} has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        what = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        if any(isinstance(s, Dim) for s in self.shape) or self.dtype.is_packed:
            return f"Tensor({what})"
        values = np.array2string(self.numpy(), separator=", ", threshold=64, prefix="Tensor(")
        return f"Tensor({values}, {what}, {self.device})"

    # --- its value ----------------------------------------------------------------------------

    def numpy(self) -> np.ndarray[Any, Any]:
        """The value as a NumPy array, read only and, on the cpu, over the tensor's own memory. NumPy has no
        bfloat16: bf16 comes as float32, exactly."""
        if self.dtype.is_packed:
            raise DTypeError(f"[numpy] {self.dtype} blocks have no NumPy dtype; use ops.dequantize")
        eval(self)
        array = runtime.fetch(self.node)
        return from_bf16(array) if self.dtype is dtypes.bf16 else array

    def item(self) -> Any:
        """The one element, as a Python number."""
        if self.size != 1:
            raise ShapeError(f"[item] shape {self.shape} has {self.size} elements, wanted 1")
        return self.numpy().item()

    def tolist(self) -> Any:
        """The value as nested lists of Python numbers."""
        return self.numpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        return np.asarray(array, dtype=dtype) if copy is None else np.array(array, dtype=dtype, copy=copy)

    def __dlpack__(self, **_: Any) -> Any:
        """A DLPack capsule over the tensor's memory. Consumers must not write to it."""
        eval(self)
        return dlpack.export(runtime.memory(self.node), self.dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        if self.dtype.kind != "int":
            raise DTypeError(f"[index] {self.dtype} is not an integer dtype")
        return int(self.item())

    def to(self, device: str) -> Tensor:
        """A copy on a device."""
        return Tensor(runtime.move(self.node, device))

    # --- operators ----------------------------------------------------------------------------

    __neg__ = _unary(ops.neg)
    __abs__ = _unary(ops.abs)
    __invert__ = _unary(ops.logical_not)
    __add__, __radd__ = _binary(ops.add), _reflected(ops.add)
    __sub__, __rsub__ = _binary(ops.sub), _reflected(ops.sub)
    __mul__, __rmul__ = _binary(ops.mul), _reflected(ops.mul)
    __truediv__, __rtruediv__ = _binary(ops.div), _reflected(ops.div)
    __pow__, __rpow__ = _binary(ops.pow), _reflected(ops.pow)
    __matmul__, __rmatmul__ = _binary(ops.matmul), _reflected(ops.matmul)
    __and__, __rand__ = _binary(ops.logical_and), _reflected(ops.logical_and)
    __or__, __ror__ = _binary(ops.logical_or), _reflected(ops.logical_or)
    __eq__ = _binary(ops.eq)  # type: ignore[assignment]
    __ne__ = _binary(ops.ne)  # type: ignore[assignment]
    __lt__, __le__ = _binary(ops.lt), _binary(ops.le)
    __gt__, __ge__ = _binary(ops.gt), _binary(ops.ge)

    def __getitem__(self, key: Any) -> Tensor:
        """Integers, slices with a step of at least 1, `...`, None, and one tensor or array of integers."""
        return Tensor(index(self.node, key))

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    # --- methods ------------------------------------------------------------------------------

    def astype(self, dtype: DTypeLike) -> Tensor:
        return Tensor(ops.cast(self.node, dtype_of(dtype)))

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return Tensor(ops.sum(self.node, axis, keepdims))

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return Tensor(ops.mean(self.node, axis, keepdims))

    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return Tensor(ops.max(self.node, axis, keepdims))

    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        return Tensor(ops.min(self.node, axis, keepdims))

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        if axis is None:
            flat = ops.argmax(ops.reshape(self.node, (-1,)), 0)
            return Tensor(ops.reshape(flat, (1,) * self.ndim) if keepdims else flat)
        return Tensor(ops.argmax(self.node, axis, keepdims))

    matmul = __matmul__

    def reshape(self, shape: Shape | int) -> Tensor:
        return Tensor(ops.reshape(self.node, shape))

    def permute_dims(self, axes: Sequence[int]) -> Tensor:
        return Tensor(ops.permute(self.node, axes))

    @property
    def mT(self) -> Tensor:
        """The last two axes swapped."""
        if self.ndim < 2:
            raise ShapeError(f"[mT] shape {self.shape}, wanted at least 2 dimensions")
        return Tensor(ops.permute(self.node, (*range(self.ndim - 2), self.ndim - 1, self.ndim - 2)))

    @property
    def T(self) -> Tensor:
        """A matrix transposed."""
        if self.ndim != 2:
            raise ShapeError(f"[T] shape {self.shape}, wanted 2 dimensions; see mT and permute_dims")
        return self.mT
