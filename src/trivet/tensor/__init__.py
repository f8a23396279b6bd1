"""The user's class `Tensor`, and functions that make, compute and differentiate tensors."""

from trivet.tensor.array import Tensor, eval
from trivet.tensor.create import arange, asarray, from_dlpack, full, ones, random_key, zeros
from trivet.tensor.transform import grad, value_and_grad

__all__ = [
    "Tensor",
    "arange",
    "asarray",
    "eval",
    "from_dlpack",
    "full",
    "grad",
    "ones",
    "random_key",
    "value_and_grad",
    "zeros",
]
