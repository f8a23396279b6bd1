"""DLPack for arrays in storage form: zero-copy exchange with NumPy, PyTorch, JAX and others.

NumPy does the work. It has no bfloat16, so there the type code in the capsule's DLTensor is changed: bf16
travels as uint16 on NumPy's side and as bfloat of 16 bits on the other's. The layout (dlpack.h):

    DLManagedTensor = DLTensor | manager_ctx pointer | deleter pointer
    DLTensor        = data pointer | device_type i32 | device_id i32 | ndim i32
                      | dtype: code u8, bits u8, lanes u16 | shape pointer | strides pointer | byte_offset u64
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from trivet.dtypes import DType, bf16
from trivet.errors import DTypeError, UnsupportedError
from trivet.graph import of_numpy

CPU = (1, 0)  # kDLCPU
_UINT, _BFLOAT = 1, 4
_CODE = ctypes.sizeof(ctypes.c_void_p) + 12  # offset of dtype.code


def export(array: np.ndarray[Any, Any], dtype: DType) -> Any:
    """A capsule "dltensor" over the memory of an array in storage form; of a copy, if that is read only."""
    capsule = (array if array.flags.writeable else array.copy()).__dlpack__()
    if dtype is bf16:
        _type_of(capsule)[0] = _BFLOAT
    return capsule


def load(source: Any) -> tuple[np.ndarray[Any, Any], DType]:
    """The array, in storage form and over the same memory, of an object with `__dlpack__`; read only."""
    held = _Capsule(source)
    code, bits = held.type[0], held.type[1]
    if code == _BFLOAT and bits == 16:
        held.type[0] = _UINT
        return np.from_dlpack(held), bf16
    try:
        array = np.from_dlpack(held)
    except RuntimeError as error:
        raise DTypeError(f"[from_dlpack] type code {code} of {bits} bits: {error}") from None
    return array, of_numpy(array.dtype)


class _Capsule:
    """A capsule taken from a producer, to be given to NumPy once."""

    def __init__(self, source: Any) -> None:
        if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
            raise DTypeError(f"[from_dlpack] a {type(source).__name__} has no __dlpack__")
        device = tuple(int(d) for d in source.__dlpack_device__())
        if device != CPU:
            raise DTypeError(f"[from_dlpack] the memory is on DLPack device {device}, wanted {CPU}, the cpu")
        try:
            self._capsule = source.__dlpack__()
        except BufferError as error:  # read only, or of the other byte order: its owner says which
            raise UnsupportedError(
                f"[from_dlpack] {type(source).__name__} gives no memory: {error}"
            ) from None
        self.type = _type_of(self._capsule)

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU


def _type_of(capsule: Any) -> Any:
    """The code and bits of the dtype in a capsule, to read and write."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return (ctypes.c_uint8 * 2).from_address(pointer(capsule, b"dltensor") + _CODE)
