"""Choosing the next token. The work is done by the native core; see tv_sampler_options in trivet.h."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import _native as core
from trivet import arguments
from trivet.backends.native import Handle
from trivet.errors import InputError


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """How the next token is chosen. Order: repeat, presence and frequency penalties; logit bias; then, unless
    the temperature is 0, top_k, top_p and min_p at temperature 1; then one draw at the temperature."""

    temperature: float = 0.2
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
            _number(getattr(self, name), name)
        arguments.integer(self.top_k, "[sampler] top_k", 0, 2**31 - 1)
        if self.seed is not None:
            arguments.integer(self.seed, "[sampler] seed", 0, 2**64 - 1)
        bias = {} if self.logit_bias is None else self.logit_bias
        if not isinstance(bias, Mapping):
            raise InputError(
                f"[sampler] logit_bias is a {type(bias).__name__}; wanted a dict: token id to number"
            )
        for token, value in bias.items():
            arguments.integer(token, "[sampler] a token of logit_bias", 0, 2**31 - 1)
            _number(value, f"logit_bias of token {token}")


def _number(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or math.isnan(value):
        raise InputError(f"[sampler] {name} is {value!r}; wanted a number")


class Sampler:
    """Draws tokens for one sequence, by one stream of random numbers."""

    def __init__(self, options: SamplerOptions) -> None:
        o, bias = options, options.logit_bias or {}
        ids = (ctypes.c_int32 * len(bias))(*bias.keys())
        values = (ctypes.c_float * len(bias))(*bias.values())
        seed = int.from_bytes(os.urandom(8), "little") if o.seed is None else o.seed
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
