"""Modules: plain objects whose tensors and submodules are attributes."""

from trivet.nn.layers import Embedding, LayerNorm, Linear, RMSNorm
from trivet.nn.module import Module

__all__ = ["Embedding", "LayerNorm", "Linear", "Module", "RMSNorm"]
