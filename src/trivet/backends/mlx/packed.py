"""The decoders of packed blocks, in MLX's arrays."""

from __future__ import annotations

import mlx.core as mx

from trivet.backends.packed import Decoders

DECODERS = Decoders(mx, lambda levels, q: mx.take(mx.array(levels, mx.float32), q, axis=0))
