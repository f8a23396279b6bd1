"""Linear, Embedding, RMSNorm, LayerNorm. A layer holds the arrays it is given; `create` draws new ones."""

from __future__ import annotations

import math
from typing import Any

from trivet import dtypes, ops
from trivet.dtypes import DType
from trivet.nn.module import Module
from trivet.tensor import Tensor, ones, zeros


class Linear(Module):
    """x [..., inputs] -> x @ weight.T + bias [..., outputs]; weight [outputs, inputs], dense or packed."""

    def __init__(self, weight: Any, bias: Any = None) -> None:
        self.weight = weight
        self.bias = bias

    @classmethod
    def create(
        cls, key: Tensor, inputs: int, outputs: int, bias: bool = True, dtype: DType = dtypes.f32
    ) -> Linear:
        """Weights uniform in ±1/sqrt(inputs), as in He et al. 2015 with gain 1/sqrt(3); bias 0."""
        bound = 1 / math.sqrt(inputs)
        weight = (ops.random_uniform(key, (outputs, inputs)) * (2 * bound) - bound).astype(dtype)
        return cls(weight, zeros(outputs, dtype, key.device) if bias else None)

    def __call__(self, x: Any) -> Any:
        return ops.linear(x, self.weight, self.bias)


class Embedding(Module):
    """ids [...] -> rows of weight [..., width]; weight [count, width], dense or packed."""

    def __init__(self, weight: Any) -> None:
        self.weight = weight

    @classmethod
    def create(cls, key: Tensor, count: int, width: int, dtype: DType = dtypes.f32) -> Embedding:
        """Rows drawn from a normal distribution of deviation 0.02 (Radford et al. 2019)."""
        return cls((ops.random_normal(key, (count, width)) * 0.02).astype(dtype))

    def __call__(self, ids: Any) -> Any:
        return ops.embedding(ids, self.weight)


class RMSNorm(Module):
    """x / sqrt(mean(x²) + eps) * weight over the last axis (Zhang and Sennrich 2019)."""

    def __init__(self, weight: Any, eps: float = 1e-5) -> None:
        self.weight = weight
        self.eps = eps

    @classmethod
    def create(
        cls, width: int, eps: float = 1e-5, dtype: DType = dtypes.f32, device: str | None = None
    ) -> RMSNorm:
        return cls(ones(width, dtype, device), eps)

    def __call__(self, x: Any) -> Any:
        return ops.rms_norm(x, self.weight, eps=self.eps)


class LayerNorm(Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis (Ba et al. 2016)."""

    def __init__(self, weight: Any, bias: Any, eps: float = 1e-5) -> None:
        self.weight = weight
        self.bias = bias
        self.eps = eps

    @classmethod
    def create(
        cls, width: int, eps: float = 1e-5, dtype: DType = dtypes.f32, device: str | None = None
    ) -> LayerNorm:
        return cls(ones(width, dtype, device), zeros(width, dtype, device), eps)

    def __call__(self, x: Any) -> Any:
        return ops.layer_norm(x, self.weight, self.bias, eps=self.eps)
