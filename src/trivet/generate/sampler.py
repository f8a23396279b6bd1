"""Choosing the next token. The work is done by the native core; see tv_sampler_options in trivet.h."""

from __future__ import annotations

import ctypes
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trivet import _native as core
from trivet.backends.native import Handle
from trivet.errors import InputError


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """How the next token is chosen. Order: repeat, presence and frequency penalties; logit bias; then, unless
    the temperature is 0, top_k, top_p and min_p at temperature 1; then one draw at the temperature."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Refuses what the C struct could not hold; the core checks the ranges."""
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "repeat_penalty",
            "presence_penalty",
            "frequency_penalty",
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | np.number) or math.isnan(value):
                raise InputError(f"[sampler] {name} is {value!r}; wanted a number")
        if not isinstance(self.top_k, int) or not 0 <= self.top_k < 2**31:
            raise InputError(f"[sampler] top_k is {self.top_k!r}; wanted an integer from 0")
        if self.seed is not None and (not isinstance(self.seed, int) or not 0 <= self.seed < 2**64):
            raise InputError(f"[sampler] seed is {self.seed!r}; wanted an integer from 0 to 2^64-1, or None")
        for token in self.logit_bias or {}:
            if not isinstance(token, int) or not 0 <= token < 2**31:
                raise InputError(f"[sampler] logit_bias has token {token!r}; wanted a token id")


class Sampler:
    """Draws tokens for one sequence, by one stream of random numbers."""

    def __init__(self, options: SamplerOptions) -> None:
        o, bias = options, options.logit_bias or {}
        ids = (ctypes.c_int32 * len(bias))(*bias.keys())
        values = (ctypes.c_float * len(bias))(*bias.values())
        seed = secrets.randbits(64) if o.seed is None else o.seed
        native = core.tv_sampler_options(
            ctypes.sizeof(core.tv_sampler_options),
            o.temperature,
            o.top_k,
            o.top_p,
            o.min_p,
            o.repeat_penalty,
            o.presence_penalty,
            o.frequency_penalty,
            seed,
            ids,
            values,
            len(bias),
        )
        self._handle = Handle(core.tv_sampler_open, core.tv_sampler_free, ctypes.byref(native))

    def accept(self, ids: Sequence[int], *, generated: bool) -> None:
        """Tells of tokens in the context, for the penalties."""
        array = (ctypes.c_int32 * len(ids))(*ids)
        core.tv_sampler_accept(self._handle, array, len(ids), int(generated))

    def sample(self, logits: npt.NDArray[np.float32]) -> int:
        """A token for one row of logits, [vocab]. Raises NonFiniteError for NaN or +infinity."""
        row = np.ascontiguousarray(logits, np.float32)
        token = ctypes.c_int32()
        core.tv_sampler_sample(self._handle, row.ctypes.data, row.size, ctypes.byref(token))
        return token.value
