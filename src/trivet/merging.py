"""Adapters merged into a model's weights: back into a GGUF file, packed as it was, or a folder of floats.

Only what the adapters change is made anew, W + scale * B @ A in float32, and packed again; every other tensor
of a GGUF file is copied byte for byte, and so is its metadata. What packing again cost is measured. A merged
file is a bundle (train/bundle.py), which says what it was made of.

Tuning changes a weight by far less than the step between two of its packed values. To the nearest, a weight
that was packed already would fall back on the value it had, and the model would forget what it learned. So
where little of the change is found in what was packed, it is packed again with rounding by chance. (Elsewhere
that would cost more than it saves: it errs by more than half as much again.)
"""

from __future__ import annotations

import json
import math
import os
import shlex
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet import cards, dtypes, hf_folder, mixes, models, packing
from trivet.adapter import Adapters, Scaled, called, gathered, stacked
from trivet.dtypes import DType
from trivet.errors import InputError, UnsupportedError
from trivet.formats.common import same_file, written_aside
from trivet.formats.gguf import TensorSource, demand_place
from trivet.models.checkpoint import STALE, Checkpoint, Entry, open_checkpoint, resolve
from trivet.train import bundle

F32 = npt.NDArray[np.float32]
#: what weights may be written as: general.file_type in GGUF, by type; of a K type that of its plainest mix
FILE_TYPES = {
    type: mixes.MIXES[type if type in mixes.MIXES else f"{type}_s"].number
    for type in (
        "f32", "f16", "bf16", "q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "iq4_nl",
        "q3_k", "q2_k",
    )
}  # fmt: skip
#: metadata that a merged file does not share with its parent
_DROPPED = (*STALE, "trivet.parent", "trivet.lineage")
_LINEAGE = "trivet.lineage"


#: the least share of a change that has to be in what was packed to the nearest
_ENOUGH = 0.5


@dataclass(frozen=True, slots=True)
class Change:
    """A tensor that was changed. `error` is |written - wanted| / |wanted| in Euclidean norm. `kept` is the
    share of the change that is in what was written: written - before, projected on wanted - before."""

    name: str
    before: str
    after: str
    error: float
    kept: float


@dataclass(slots=True)
class Merged:
    """What was written: where, how, and what it cost."""

    path: Path
    changed: list[Change] = field(default_factory=list)
    copied: int = 0
    dithered: int = 0  # changed tensors that were rounded by chance
    notes: list[str] = field(default_factory=list)
    _sums: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(4))

    def add(self, name: str, before: DType, after: DType, sums: npt.NDArray[np.float64]) -> None:
        """Adds a tensor with its sums of squares: the error, what was wanted, the change; and the product of
        what changed with the change."""
        self.changed.append(Change(name, before.name, after.name, *_shares(sums)))
        self._sums += sums

    @property
    def error(self) -> float:
        """The error over all changed tensors together."""
        return _shares(self._sums)[0]

    @property
    def kept(self) -> float:
        """The share of the whole change that is in what was written."""
        return _shares(self._sums)[1]


def merge(
    model: str | Path,
    adapter: Adapters,
    out: str | os.PathLike[str],
    *,
    type: str = "keep",
    advance: Callable[[int], None] = lambda _: None,
) -> Merged:
    """Writes a model with adapters merged into its weights.

    adapter: as for `trivet.load`; several are summed.
    out: a path that ends in .gguf gives a GGUF file, any other a Hugging Face folder of safetensors.
    type: what changed tensors are written as: "keep", each as it was, or one of FILE_TYPES for all. In a
        folder all tensors are written so; "keep" makes packed ones f16 there.
    advance: is told of every tensor that is written.
    Raises InputError, UnsupportedError for a type whose blocks do not divide a tensor's rows (before anything
    is written), NonFiniteError for a weight that a type cannot hold, FileError, and what opening the model
    and the adapters raises.

    >>> merge("smollm2-135m", "orders/adapter", "")
    Traceback (most recent call last):
    trivet.errors.InputError: [merge] the file to write has an empty name
    """
    type = type.lower()
    if type != "keep" and type not in FILE_TYPES:
        raise InputError(f"[merge] type is {type!r}; known: keep, {', '.join(FILE_TYPES)}")
    if not str(out):
        raise InputError("[merge] the file to write has an empty name")
    base = open_checkpoint(resolve(model))
    models.build(base)  # so that what is merged into is a model
    adapters = gathered(adapter, base)
    if not adapters:
        raise InputError("[merge] there is no adapter to merge")
    work = _Work(base, adapters, Path(out), type, advance)
    _spare(work.target, base, adapters)
    if work.target.suffix.lower() != ".gguf":
        return work.folder()
    demand_place("merge", work.target)
    return work.file()


def _spare(target: Path, base: Checkpoint, adapters: Sequence[Scaled]) -> None:
    """Raises InputError if what is read would be written over, or written into."""
    own = (base.path,) if base.gguf is None else base.gguf.paths
    if any(same_file(target, path) for path in own):
        raise InputError(f"[merge] {target} is the model itself; write somewhere else")
    real = Path(os.path.realpath(target))
    for path in (adapter.path for adapter, _ in adapters if adapter.path is not None):
        if same_file(target, path):
            raise InputError(f"[merge] {target} is an adapter that is merged; write somewhere else")
        inside = Path(os.path.realpath(path)) in real.parents
        if path.is_dir() and (inside or any(same_file(target, part) for part in path.glob("*"))):
            raise InputError(f"[merge] {target} is in the folder of the adapter {path}; write somewhere else")


class _Work:
    """One merge."""

    def __init__(
        self,
        base: Checkpoint,
        adapters: Sequence[Scaled],
        target: Path,
        type: str,
        advance: Callable[[int], None],
    ) -> None:
        self.base, self.adapters, self.target, self.type, self.advance = base, adapters, target, type, advance
        self.pairs = stacked(adapters)
        self.done = Merged(target)
        trained = {a.facts.get("trivet.base.sha256", base.sha256) for a, _ in adapters}
        if trained != {base.sha256}:
            self.done.notes.append(f"trained on another file than {base.path.name}, by its sha256")

    def file(self) -> Merged:
        """Writes a GGUF file."""
        gguf = self.base.gguf
        if gguf is None:
            raise UnsupportedError(
                f"[merge] {self.base.path.name} is not a GGUF file: merge into a folder, or make one first:"
                f" `trivet convert {shlex.quote(str(self.base.path))} model.gguf`"
            )
        if gguf.unsupported:
            raise UnsupportedError(
                f"[merge] {self.base.path.name} is not a GGUF file whose every tensor trivet reads;"
                " merge it into a folder"
            )
        kinds = {name: self._kind(name, self.base.tensors[name]) for name in self.pairs}
        metadata: dict[str, Any] = {
            key: gguf.encoded(key) for key in gguf.metadata if not key.startswith(_DROPPED)
        }
        if self.type != "keep":
            metadata["general.file_type"] = np.uint32(FILE_TYPES[self.type])
        lineage = self._lineage()
        metadata["trivet.parent"] = self.base.sha256
        metadata[_LINEAGE] = lineage
        tensors = {
            name: TensorSource(kinds[name], e.shape, partial(self._changed, name, kinds[name]))
            if name in kinds
            else TensorSource(e.dtype, e.shape, partial(self._copied, name))
            for name, e in self.base.tensors.items()
        }
        parent = self.base.metadata.get("trivet.bundle.id")
        bundle.write(self.target, metadata, tensors, stage=json.loads(lineage[-1]), parent=parent)
        self._write_card(self.target.with_suffix(".README.md"))
        return self.done

    def _write_card(self, at: Path) -> None:
        if not cards.may_replace(at):
            self.done.notes.append(f"{at} is not a card of trivet's, and stays as it is")
            return
        with written_aside(at, "merge") as file:
            path = shlex.quote(str(self.target))
            file.write(self._card(f'trivet run {path} "..."', f"trivet chat {path}").encode())

    def folder(self) -> Merged:
        """Writes a Hugging Face folder."""
        if self.type != "keep" and dtypes.BY_NAME[self.type].is_packed:
            raise InputError(f"[merge] type is {self.type}; a folder holds f32, f16 or bf16")
        tensors = {}
        for name, entry in self.base.tensors.items():
            kind = hf_folder.floating(entry, self.type)
            make = self._changed if name in self.pairs else self._converted
            tensors[name] = TensorSource(kind, entry.shape, partial(make, name, kind))
        facts = {"trivet.parent": self.base.sha256, _LINEAGE: json.dumps(self._lineage())}
        script = (
            f"from transformers import pipeline as p; print(p('text-generation', {str(self.target)!r})('Hi'))"
        )
        path = shlex.quote(str(self.target))
        card = self._card(f"trivet inspect {path}", f"python -c {shlex.quote(script)}")
        notes = hf_folder.write("merge", self.target, self.base, tensors, facts, card)
        self.done.notes += notes
        return self.done

    # --- tensors ---

    def _kind(self, name: str, entry: Entry) -> DType:
        """What a changed tensor is written as. Raises UnsupportedError if its rows are not whole blocks."""
        kind = entry.dtype if self.type == "keep" else dtypes.BY_NAME[self.type]
        if entry.shape[-1] % kind.block:
            raise UnsupportedError(
                f"[merge] {name} {entry.shape} would be {kind}, whose blocks of {kind.block} do not divide"
                f" its rows of {entry.shape[-1]}; give another type: q8_0 or f16"
            )
        return kind

    def _changed(self, name: str, kind: DType) -> npt.NDArray[Any]:
        entry = self.base.tensors[name]
        before = entry.values()
        a, b = self.pairs[name]
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = before + b @ a
        if kind is entry.dtype and np.array_equal(wanted, before, equal_nan=True):
            return self._same(entry)
        raw, written = packing.encoded("merge", f"{name}: the merged weight", wanted, kind)
        sums = _sums(before, wanted, written)
        if kind.is_packed and sums[3] < _ENOUGH * sums[2]:
            seed = zlib.crc32(name.encode())
            raw, written = packing.encoded("merge", f"{name}: the merged weight", wanted, kind, seed)
            sums = _sums(before, wanted, written)
            self.done.dithered += 1
        self.done.add(name, entry.dtype, kind, sums)
        self.advance(1)
        return raw

    def _converted(self, name: str, kind: DType) -> npt.NDArray[Any]:
        entry = self.base.tensors[name]
        if entry.dtype is kind:
            return self._same(entry)
        self.done.copied += 1
        self.advance(1)
        return packing.encoded("merge", f"{name}: the weight", entry.values(), kind)[0]

    def _copied(self, name: str) -> npt.NDArray[Any]:
        return self._same(self.base.tensors[name])

    def _same(self, entry: Entry) -> npt.NDArray[np.uint8]:
        """Its bytes as they are."""
        self.done.copied += 1
        self.advance(1)
        return np.ascontiguousarray(entry.load()).reshape(-1).view(np.uint8)

    # --- where it comes from ---

    def _lineage(self) -> list[str]:
        """What made the model, stage by stage, the last one last: JSON objects."""
        earlier = self.base.metadata.get(_LINEAGE, [])
        kept = [s for s in earlier if isinstance(s, str)] if isinstance(earlier, list) else []
        stage = {
            "stage": "merge",
            "parent": {"name": called(self.base), "sha256": self.base.sha256},
            "type": self.type,
            "adapters": [
                {"name": a.name, "sha256": a.sha256, "scale": scale, **a.described()}
                for a, scale in self.adapters
            ],
        }
        return [*kept, json.dumps(stage, ensure_ascii=False)]

    def _card(self, *commands: str) -> str:
        facts = {
            "base model": called(self.base),
            "base sha256": self.base.sha256,
            "type of changed tensors": self.type,
        }
        for adapter, scale in self.adapters:
            facts[f"adapter {adapter.name}"] = f"scale {scale:g}, sha256 {adapter.sha256}"
            facts |= {
                f"{adapter.name}: {k}": v for k, v in adapter.described().items() if not k.startswith("base")
            }
        return cards.merged(self.target.stem, facts, commands)


def _sums(before: F32, wanted: F32, written: F32) -> npt.NDArray[np.float64]:
    """As Merged.add takes them."""
    change, changed = wanted - before, written - before
    pairs = ((written - wanted,) * 2, (wanted, wanted), (change, change), (changed, change))
    return np.array([np.einsum("nk,nk->", x, y, dtype=np.float64) for x, y in pairs])


def _shares(sums: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Error and share kept, of sums; where nothing is wanted or changed, nothing is lost."""
    error, wanted, change, kept = map(float, sums)
    return math.sqrt(error / wanted) if wanted else 0.0, kept / change if change else 1.0
