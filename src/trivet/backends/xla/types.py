"""How trivet's dtypes stand in JAX: packed blocks as bytes, the others as they are. And what XLA raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trivet import dtypes
from trivet.backends.packages import unforked
from trivet.dtypes import DType
from trivet.errors import CapacityError, DeviceError

_DTYPES = {
    dtypes.f32: jnp.float32, dtypes.f16: jnp.float16, dtypes.bf16: jnp.bfloat16, dtypes.f64: jnp.float64,
    dtypes.i8: jnp.int8, dtypes.u8: jnp.uint8, dtypes.i32: jnp.int32, dtypes.i64: jnp.int64,
    dtypes.bool_: jnp.bool_,
}  # fmt: skip


@contextmanager
def configured() -> Iterator[None]:
    """JAX set up inside the block as trivet's programs want it, however the rest of the process has it."""
    unforked("JAX")
    settings = (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.transfer_guard("allow"),
        jax.debug_nans(False),  # masks are made of infinities
        jax.debug_infs(False),
    )
    with ExitStack() as stack:
        for setting in settings:
            stack.enter_context(setting)
        yield


@contextmanager
def reported(call: str) -> Iterator[None]:
    """What XLA raises inside the block: a CapacityError where the device has no room, else a DeviceError."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        told = str(error)
        full = "RESOURCE_EXHAUSTED" in told or "out of memory" in told.replace("_", " ").lower()
        raise (CapacityError if full else DeviceError)(f"{call} XLA: {told.splitlines()[0]}") from None


def jax_dtype(dtype: DType) -> Any:
    """The NumPy dtype object that JAX stores `dtype` as."""
    return np.dtype(jnp.uint8 if dtype.is_packed else _DTYPES[dtype])


def typed(array: Any, dtype: DType) -> Any:
    """A NumPy array in storage form as one that JAX takes: bf16 is no longer its bits."""
    return array.view(jnp.bfloat16) if dtype is dtypes.bf16 and array.dtype == np.uint16 else array
