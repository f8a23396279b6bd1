"""Where MLX can compute on this machine, or why it cannot: it is not imported only to find out."""

from __future__ import annotations

import os
import platform as machine
import sys
from functools import cache
from typing import Any

from trivet.backends.packages import failure, numbers, unforked, version

#: The device that people name.
METAL = "metal"
#: The processor: what the tests run on.
HOST = "cpu"
OLDEST = (0, 32)


def missing(platform: str) -> str | None:
    """None if programs can run on this platform, else why not."""
    if platform == METAL and (sys.platform, machine.machine()) != ("darwin", "arm64"):
        return "no Metal device: that is a Mac with Apple silicon"
    found, what = version("mlx"), "trivet[metal]" if sys.platform == "darwin" else "mlx[cpu]"
    if found is None:
        return f"MLX is not installed: pip install '{what}'"
    if numbers(found) < OLDEST:
        return f"MLX {found} is too old, {OLDEST[0]}.{OLDEST[1]} is needed: pip install -U '{what}'"
    return _unstartable(platform)


@cache
def _unstartable(platform: str) -> str | None:
    if reason := failure(mlx):
        return f"MLX does not start: {reason}"
    # Metal: whether MLX finds the GPU
    if platform == METAL and not mlx().metal.is_available():
        return "MLX finds no Metal device"
    return None


@cache
def mlx() -> Any:
    """The library, imported when first used. Products of float32 are to be of float32."""
    os.environ.setdefault("MLX_ENABLE_TF32", "0")
    import mlx.core

    return mlx.core


def device(platform: str) -> Any:
    """MLX's device."""
    unforked("MLX")
    # Metal: programs run on the GPU
    return mlx().Device(mlx().gpu if platform == METAL else mlx().cpu, 0)


def described(platform: str) -> str:
    """The device's name, where MLX knows it."""
    return str(mlx().device_info(device(platform)).get("device_name", platform))
