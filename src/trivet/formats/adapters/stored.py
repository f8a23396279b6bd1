"""An adapter as it lies in a file, and the checks that all formats share."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet.errors import FileError, NonFiniteError, UnsupportedError
from trivet.formats.common import AnyTensor, UnsupportedTensor, map_file, quoted

CONFIG = "adapter_config.json"
MAX_CONFIG = 16 << 20  # bytes
MAX_RANK = 4096
MAX_ALPHA = 1e6
MAX_NAME = 128  # characters of a module's name

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Pair:
    """The update scale * b @ a of a weight [N, K]: a [rank, K], b [N, rank]. The scale is alpha / rank, or
    alpha / sqrt(rank) where the adapter says rslora."""

    a: F32
    b: F32
    alpha: float

    @property
    def rank(self) -> int:
        return len(self.a)

    def scale(self, rslora: bool) -> float:
        """What b @ a is multiplied by.

        >>> pair = Pair(np.zeros((4, 64), np.float32), np.zeros((32, 4), np.float32), alpha=8.0)
        >>> pair.scale(rslora=False), pair.scale(rslora=True)
        (2.0, 4.0)
        """
        return self.alpha / (math.sqrt(self.rank) if rslora else self.rank)


@dataclass(frozen=True, slots=True)
class Stored:
    """`pairs` by the file's names of the adapted modules, which `targets` describe. `base` is the model the
    file names, or "". `facts` are other strings that stand with the tensors."""

    pairs: Mapping[str, Pair]
    rank: int
    alpha: float
    rslora: bool = False
    dropout: float = 0.0
    targets: Sequence[str] = ()
    base: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def scale(self) -> float:
        """What b @ a is multiplied by, where a pair does not say otherwise."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


def bad(path: Path, what: str, found: str) -> FileError:
    return FileError(f"[adapter] {path}: {what}: {found}")


def unsupported(path: Path, what: str) -> UnsupportedError:
    return UnsupportedError(f"[adapter] {path}: {what}, which trivet's LoRA does not have")


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object of an adapter's configuration."""
    data = map_file(path, "adapter")
    if len(data) > MAX_CONFIG:
        raise bad(path, "size", f"is {len(data)} bytes; at most {MAX_CONFIG} are allowed")
    try:
        config = json.loads(bytes(data[:]).decode())
    except (ValueError, RecursionError) as error:
        raise bad(path, "configuration", f"is not JSON: {str(error)[:120]}") from None
    if not isinstance(config, dict):
        raise bad(path, "configuration", f"is a {type(config).__name__}, not an object")
    return config


def integer(path: Path, what: str, value: Any, most: int = MAX_RANK) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise bad(path, what, f"is {_short(value)}; wanted an integer from 1 to {most}")
    return value


def real(path: Path, what: str, value: Any, *, least: float = 0.0, most: float = MAX_ALPHA) -> float:
    """A number with least < value < most."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least < value < most:
        raise bad(path, what, f"is {_short(value)}; wanted a number above {least:g} and below {most:g}")
    return float(value)


def dropout(path: Path, what: str, value: Any) -> float:
    return 0.0 if type(value) in (int, float) and value == 0 else real(path, what, value, most=1.0)


def text(path: Path, what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise bad(path, what, f"is {_short(value)}; wanted text")
    return value


def _short(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else quoted(repr(value))[1:-1]


def floats(path: Path, tensors: Mapping[str, AnyTensor], get: Callable[[str], F32]) -> dict[str, F32]:
    """All tensors as float32 matrices. Raises FileError for one that is no matrix of floats, or whose numbers
    are not all finite."""
    made = {}
    for name, tensor in tensors.items():
        what = f"tensor {quoted(name)}"
        if isinstance(tensor, UnsupportedTensor) or not tensor.dtype.is_float:
            kind = tensor.type_name if isinstance(tensor, UnsupportedTensor) else tensor.dtype
            raise bad(path, what, f"is {kind}; wanted f32, f16 or bf16")
        if len(tensor.shape) != 2 or 0 in tensor.shape:
            raise bad(path, what, f"has shape {tensor.shape}; wanted a matrix")
        array = made[name] = get(name)
        if not np.isfinite(array).all():
            raise NonFiniteError(f"[adapter] {path}: {what} holds infinity or NaN")
    return made


def paired(
    path: Path, arrays: Mapping[str, F32], a: str, b: str, *, prefix: str = "", turned: bool = False
) -> dict[str, tuple[F32, F32]]:
    """(A [rank, K], B [N, rank]) by module, from tensors called prefix + module + `a` or `b`. `turned`: the
    file holds them transposed."""
    halves: dict[str, dict[str, F32]] = {}
    for name, array in arrays.items():
        end = next((e for e in (a, b) if name.endswith(e)), None)
        if end is None or not name.startswith(prefix) or len(name) <= len(prefix) + len(end):
            raise bad(path, f"tensor {quoted(name)}", f"is not LoRA's; wanted {prefix}*{a} and {prefix}*{b}")
        module = name[len(prefix) : -len(end)]
        if len(module) > MAX_NAME:
            raise bad(path, f"tensor {quoted(name)}", f"has a name over {MAX_NAME} characters")
        halves.setdefault(module, {})[end] = np.ascontiguousarray(array.T) if turned else array
    for module, found in halves.items():
        for end in (a, b):
            if end not in found:
                raise bad(
                    path, f"tensor {quoted(prefix + module + end)}", "is missing; its other half is there"
                )
        if found[a].shape[0] != found[b].shape[1]:
            ranks = f"{found[a].shape[0]} in {a[1:]} and {found[b].shape[1]} in {b[1:]}"
            raise bad(path, f"module {quoted(module)}", f"has rank {ranks}")
        if found[a].shape[0] > MAX_RANK:
            raise bad(path, f"module {quoted(module)}", f"has rank {found[a].shape[0]}; at most {MAX_RANK}")
    if not halves:
        raise bad(path, "tensors", "there are none")
    return {module: (found[a], found[b]) for module, found in halves.items()}


def folded(stored: Stored, said: Callable[[Pair], float]) -> dict[str, Pair]:
    """The pairs for a file that says less of their scales: what a pair's has over the one that is `said` goes
    into b."""
    made = {}
    for name, pair in stored.pairs.items():
        over = np.float32(pair.scale(stored.rslora) / said(pair))
        made[name] = pair if over == 1 else Pair(pair.a, pair.b * over, pair.alpha)
    return made


def modules(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """The last parts of module names if, among all that are known, they stand for these and no more; else the
    whole names.

    >>> modules(["layers.0.q", "layers.1.q"], ["layers.0.q", "layers.0.k", "layers.1.q"])
    ['q']
    """
    names = sorted(names)
    last = {name.rpartition(".")[2] for name in names}
    meant = {name for name in known if name.rpartition(".")[2] in last}
    return sorted(last) if meant == set(names) else names
