"""Adapters as values: the matrices of a LoRA by the weights they belong to, out of files and into them.

A PEFT or MLX folder has Hugging Face's names and order of rows; here, as everywhere, weights have GGUF's. So
an adapter is read for a base model, which says what its names mean.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import cards, models
from trivet.errors import FileError, InputError, ModelError, UnsupportedError
from trivet.formats.adapters import Pair, Stored, gguf, mlx, peft
from trivet.formats.adapters.stored import CONFIG, modules
from trivet.formats.common import quoted, written_aside
from trivet.lora import Lora
from trivet.models.checkpoint import PACKAGED, Checkpoint, open_checkpoint, resolve

F32 = npt.NDArray[np.float32]
FORMATS = ("peft", "mlx", "gguf")
MAX_SCALE = 1e6
ENDS = (".lora_a", ".lora_b")


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A LoRA of a base model.

    lora   what it was made with; a pair's own rank and alpha may differ
    pairs  GGUF's name of a weight -> its update
    base   the model it was opened for
    name   what people call it
    facts  strings that came with it: the model it was trained on, its data
    path   where it was opened, if it was"""

    lora: Lora
    pairs: Mapping[str, Pair]
    base: Checkpoint
    name: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    path: Path | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str], model: str | Path | Checkpoint | None = None) -> Adapter:
        """The adapter in a PEFT folder, an MLX folder or a GGUF adapter file.

        model: what it is for: a path, a short name, or an open model's `checkpoint`; by default the one that
        the adapter names.
        Raises FileError if it is malformed, ModelError if it does not fit the model, NonFiniteError if it
        holds infinity or NaN, UnsupportedError if it is more than LoRA."""
        path = Path(path)
        file = path / CONFIG if os.path.isdir(path) else path
        if file.suffix == ".safetensors" or not os.path.exists(file):
            wanted = f"an adapter is a folder with a {CONFIG}, or a .gguf file"
            raise FileError(f"[adapter] {path} is none: {wanted}")
        if file is path:
            stored, architecture = gguf.read(path)
            base = _base(path, model, stored.base)
            if base.architecture != architecture:
                raise ModelError(
                    f"[adapter] {path} is for {architecture}; {base.path.name} is {base.architecture}"
                )
            return cls._bound(path, stored, stored.pairs, base)
        stored = (mlx if mlx.is_folder(path) else peft).read(path)
        base = _base(path, model, stored.base)
        return cls._bound(path, stored, _from_hf(path, stored, base), base)

    @classmethod
    def _bound(cls, path: Path, stored: Stored, pairs: Mapping[str, Pair], base: Checkpoint) -> Adapter:
        known = [name.removesuffix(".weight") for name in _matrices(base)]
        targets = modules([name.removesuffix(".weight") for name in pairs], known)
        lora = Lora(stored.rank, stored.alpha, stored.dropout, stored.rslora, targets)
        name = path.resolve().name if path.is_dir() else path.stem
        made = cls(lora, pairs, base, name, stored.facts, path)
        made.check(base)
        return made

    @classmethod
    def of(
        cls, lora: Lora, arrays: Mapping[str, F32], base: Checkpoint, name: str = "", **facts: str
    ) -> Adapter:
        """The adapter that training made: `arrays` are its leaves, `<weight>.lora_a` and `.lora_b`."""
        pairs = {
            weight: Pair(array, arrays[f"{weight}.lora_b"], lora.alpha)
            for weight, end, array in ((n[:-7], n[-7:], array) for n, array in arrays.items())
            if end == ".lora_a"
        }
        made = cls(lora, pairs, base, name, facts)
        made.check(base)
        return made

    def check(self, base: Checkpoint) -> None:
        """Raises ModelError or UnsupportedError if the adapter does not fit a model."""
        for name, pair in self.pairs.items():
            _check(self.name, name, pair, base)

    def scale(self, weight: str) -> float:
        """What a weight's b @ a is multiplied by."""
        return self.pairs[weight].scale(self.lora.rslora)

    @property
    def parameters(self) -> int:
        """How many numbers it holds."""
        return sum(pair.a.size + pair.b.size for pair in self.pairs.values())

    @property
    def sha256(self) -> str:
        """A hash of its weights and scales, the same in every format."""
        import hashlib  # takes 4 MB, which most need not

        hashed = hashlib.sha256()
        for weight, pair in sorted(self.pairs.items()):
            hashed.update(f"{weight} {pair.rank} {self.scale(weight):.6g}".encode())
            for array in (pair.a, pair.b):
                hashed.update(np.ascontiguousarray(array).view(np.uint8).data)
        return hashed.hexdigest()

    def save(self, path: str | Path, format: str | None = None) -> Path:
        """Writes it as "peft" or "mlx" (a folder with a README.md) or "gguf" (a file); by default gguf if the
        path ends so, else peft. A README.md that is not trivet's stays. Raises InputError for another format,
        FileError if it cannot be written."""
        path = Path(path)
        format = format or ("gguf" if path.suffix.lower() == ".gguf" else "peft")
        if format not in FORMATS:
            raise InputError(f"[adapter] format is {format!r}; known: {', '.join(FORMATS)}")
        stored = self._stored(hf=format != "gguf")
        if format == "gguf":
            gguf.write(path, stored, self.base.architecture, self.name)
            return path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"[adapter] {path}: {error.strerror}") from None
        if cards.may_replace(path / "README.md"):
            with written_aside(path / "README.md", "adapter") as file:
                file.write(self.card(path, format).encode())
        (mlx if format == "mlx" else peft).write(path, stored)
        return path

    def card(self, path: Path, format: str = "peft") -> str:
        """A model card: what it is, what it was made with, how to use it."""
        return cards.adapter(self.name or path.name, called(self.base), path, format, self.described())

    def described(self) -> dict[str, str]:
        """What there is to say of it, by name."""
        ranks = sorted({pair.rank for pair in self.pairs.values()})
        return {
            "base model": str(self.base.metadata.get("general.name", called(self.base))),
            "base sha256": self.facts.get("trivet.base.sha256", self.base.sha256),
            "rank": ", ".join(map(str, ranks)),
            "alpha": f"{self.lora.alpha:g}" + (" (rslora)" if self.lora.rslora else ""),
            "dropout": f"{self.lora.dropout:g}",
            "targets": ", ".join(self.lora.targets),
            "parameters": f"{self.parameters:,}",
            **{
                k.removeprefix("trivet."): v for k, v in self.facts.items() if not k.startswith("trivet.base")
            },
        }

    def _stored(self, hf: bool) -> Stored:
        facts = {k if k.startswith("trivet.") else f"trivet.{k}": v for k, v in self.facts.items()}
        facts.setdefault("trivet.base.sha256", self.base.sha256)
        names = {weight: self._module(weight) if hf else weight for weight in self.pairs}
        known = [self._module(weight) for weight in _matrices(self.base)] if hf else []
        return Stored(
            {
                names[w]: Pair(p.a, in_order(self.base, w, p.b, back=True), p.alpha) if hf else p
                for w, p in self.pairs.items()
            },
            self.lora.rank,
            self.lora.alpha,
            self.lora.rslora,
            self.lora.dropout,
            modules(names.values(), known),
            called(self.base),
            facts,
        )

    def _module(self, weight: str) -> str:
        name = _architecture(self.base).hf_original(weight)
        if name is None:
            raise UnsupportedError(
                f"[adapter] {weight} has no name in Hugging Face's {self.base.architecture}"
            )
        return str(name).removesuffix(".weight")


def called(base: Checkpoint) -> str:
    """What to call a model on a command line: its short name, or its path."""
    for short in PACKAGED:
        try:
            if resolve(short).samefile(base.path):
                return short
        except (FileError, OSError):
            continue
    return str(base.path)


def _base(path: Path, model: str | Path | Checkpoint | None, named: str) -> Checkpoint:
    if isinstance(model, Checkpoint):
        return model
    if model is not None:
        return open_checkpoint(resolve(model))
    try:
        return open_checkpoint(resolve(named))
    except (FileError, InputError):
        says = f"names the model {quoted(named)}, which is not here" if named else "does not name its model"
        raise FileError(f"[adapter] {path} {says}; say which it is for: Adapter.open(path, model)") from None


def _matrices(base: Checkpoint) -> list[str]:
    """The weights that may be adapted."""
    return [n for n, e in base.tensors.items() if len(e.shape) == 2 and n != "token_embd.weight"]


def _check(who: str, name: str, pair: Pair, base: Checkpoint) -> None:
    entry = base.tensors.get(name)
    if name == "token_embd.weight":
        raise UnsupportedError(f"[adapter] {who}: adapts {name}; trivet adapts linear layers, not embeddings")
    if entry is None:
        raise ModelError(f"[adapter] {who}: adapts {quoted(name)}, which {base.path.name} does not have")
    shape = (pair.b.shape[0], pair.a.shape[1])
    if entry.shape != shape:
        raise ModelError(f"[adapter] {who}: adapts {name} {shape}; in {base.path.name} it is {entry.shape}")


# --- Hugging Face's names and order -----------------------------------------------------------------------


def _architecture(base: Checkpoint) -> ModuleType:
    module = models.by_architecture(base.architecture)
    if not hasattr(module, "hf_original"):
        raise UnsupportedError(f"[adapter] Hugging Face's names of {base.architecture} are not known")
    return module


def _from_hf(path: Path, stored: Stored, base: Checkpoint) -> dict[str, Pair]:
    module = _architecture(base)
    pairs = {}
    for theirs, pair in stored.pairs.items():
        name = module.hf_rename(f"{theirs}.weight")
        if name is None:
            raise ModelError(
                f"[adapter] {path}: module {quoted(theirs)} is not one a {base.architecture} model has"
            )
        _check(path.name, name, pair, base)
        pairs[name] = Pair(pair.a, in_order(base, name, pair.b), pair.alpha)
    return pairs


def in_order(base: Checkpoint, name: str, rows: npt.NDArray[Any], back: bool = False) -> npt.NDArray[Any]:
    """A weight's rows from Hugging Face's order to GGUF's, or back."""
    moved = _architecture(base).hf_arrange(name, np.arange(len(rows)), base.metadata)
    return np.ascontiguousarray(rows[np.argsort(moved)] if back else rows[moved])


# --- several at once --------------------------------------------------------------------------------------

Given = str | Path | Adapter
Adapters = Given | tuple[Given, float] | Sequence[Given | tuple[Given, float]]
Scaled = tuple[Adapter, float]


def gathered(given: Adapters | None, base: Checkpoint) -> tuple[Scaled, ...]:
    """Adapters opened for a model, with their scales. Raises as opening does, InputError for a scale."""
    if given is None:
        return ()
    if isinstance(given, str | Path | Adapter) or _is_pair(given):
        given = [given]  # type: ignore[list-item]
    if not isinstance(given, Sequence):
        raise InputError(
            f"[adapter] got a {type(given).__name__}; wanted a path, an Adapter, or a list of them"
        )
    return tuple(_gathered(one, base) for one in given)


def _is_pair(given: Any) -> bool:
    return (
        isinstance(given, tuple)
        and len(given) == 2
        and not isinstance(given[1], str | Path | Adapter | tuple)
    )


def _gathered(one: Any, base: Checkpoint) -> Scaled:
    what, scale = one if _is_pair(one) else (one, 1.0)
    number = isinstance(scale, int | float | np.floating) and not isinstance(scale, bool)
    if not number or not -MAX_SCALE <= float(scale) <= MAX_SCALE:
        raise InputError(
            f"[adapter] the scale is {scale!r}; wanted a number, at most {MAX_SCALE:g} either way"
        )
    if isinstance(what, Adapter):
        what.check(base)
        return what, float(scale)
    if not isinstance(what, str | os.PathLike) or not str(what):
        raise InputError(f"[adapter] got {what!r:.60}; wanted a path or an Adapter")
    return Adapter.open(what, base), float(scale)


def stacked(adapters: Sequence[Scaled]) -> dict[str, tuple[F32, F32]]:
    """Their sum as one pair of matrices for each weight, with the scales in b: W + b @ a."""
    a: dict[str, list[F32]] = {}
    b: dict[str, list[F32]] = {}
    for adapter, scale in adapters:
        for weight, pair in adapter.pairs.items():
            a.setdefault(weight, []).append(pair.a)
            b.setdefault(weight, []).append(pair.b * np.float32(scale * adapter.scale(weight)))
    return {w: (np.concatenate(a[w]), np.concatenate(b[w], axis=1)) for w in a}
