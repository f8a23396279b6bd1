"""trivet runs language models on the machine you have.

>>> import trivet as tv
>>> (tv.asarray([1.0, 2.0]) * 2).sum().item()
6.0

Names are loaded when they are first used, so that importing trivet costs little.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see
    from trivet import dtypes as dtypes
    from trivet import errors as errors
    from trivet import nn as nn
    from trivet import ops as ops
    from trivet.adapter import Adapter as Adapter
    from trivet.comparing import compare as compare
    from trivet.converting import convert as convert
    from trivet.dtypes import DType as DType
    from trivet.dtypes import bf16 as bf16
    from trivet.dtypes import bool_ as bool_
    from trivet.dtypes import f16 as f16
    from trivet.dtypes import f32 as f32
    from trivet.dtypes import f64 as f64
    from trivet.dtypes import i8 as i8
    from trivet.dtypes import i32 as i32
    from trivet.dtypes import i64 as i64
    from trivet.dtypes import u8 as u8
    from trivet.errors import TrivetError as TrivetError
    from trivet.generate.model import load as load
    from trivet.hub.fetch import pull as pull
    from trivet.merging import merge as merge
    from trivet.quantizing import quantize as quantize
    from trivet.runtime import device as device
    from trivet.runtime import devices as devices
    from trivet.tensor import Tensor as Tensor
    from trivet.tensor import arange as arange
    from trivet.tensor import asarray as asarray
    from trivet.tensor import eval as eval
    from trivet.tensor import from_dlpack as from_dlpack
    from trivet.tensor import full as full
    from trivet.tensor import grad as grad
    from trivet.tensor import ones as ones
    from trivet.tensor import random_key as random_key
    from trivet.tensor import value_and_grad as value_and_grad
    from trivet.tensor import zeros as zeros
    from trivet.train.finetune import finetune as finetune
    from trivet.train.pretrain import pretrain as pretrain
    from trivet.train.recipes import resume as resume

__version__ = "0.1.0"

_MODULES = ("dtypes", "errors", "nn", "ops")
_NAMES = {
    "trivet.dtypes": ("DType", "bf16", "bool_", "f16", "f32", "f64", "i8", "i32", "i64", "u8"),
    "trivet.adapter": ("Adapter",),
    "trivet.comparing": ("compare",),
    "trivet.converting": ("convert",),
    "trivet.errors": ("TrivetError",),
    "trivet.generate.model": ("load",),
    "trivet.hub.fetch": ("pull",),
    "trivet.merging": ("merge",),
    "trivet.quantizing": ("quantize",),
    "trivet.runtime": ("device", "devices"),
    "trivet.tensor": (
        "Tensor", "arange", "asarray", "eval", "from_dlpack", "full", "grad", "ones", "random_key",
        "value_and_grad", "zeros",
    ),
    "trivet.train.finetune": ("finetune",),
    "trivet.train.pretrain": ("pretrain",),
    "trivet.train.recipes": ("resume",),
}  # fmt: skip
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_MODULES, *_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"trivet.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'trivet' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
