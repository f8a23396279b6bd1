"""Quantising a model: weights searched to err least, in a GGUF file, and what that cost."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trivet import calibration, mixes, models, packing, runtime
from trivet.calibration import Importance
from trivet.errors import InputError
from trivet.formats.common import read_text, same_file
from trivet.formats.gguf import demand_place
from trivet.generate.model import Model
from trivet.models.checkpoint import Checkpoint, open_checkpoint, resolve
from trivet.packing import Packed

#: tokens of a window in which a text is scored
WINDOW = 2048


@dataclass(slots=True)
class Quantized:
    """What was written, and what it cost. `error` is that of all tensors together, |written - weights| over
    |weights| in Euclidean norm; NLL is the mean over a text's tokens, natural log."""

    path: Path
    type: str
    tensors: list[Packed]
    error: float
    bytes_before: int
    bytes_after: int
    notes: list[str] = field(default_factory=list)
    nll_before: float | None = None
    nll_after: float | None = None

    @property
    def bits_per_weight(self) -> float:
        """Bits of the file's tensors to a weight."""
        return 8 * self.bytes_after / max(1, sum(int(np.prod(t.shape)) for t in self.tensors))


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told how work goes on: each is called with how much more is done."""

    calibrated: Callable[[int], None] = lambda _: None  # tokens
    written: Callable[[int], None] = lambda _: None  # tensors
    scored: Callable[[int], None] = lambda _: None  # tokens, before and after


def quantize(
    model: str | Path,
    out: str | os.PathLike[str],
    *,
    type: str = "q4_k_m",
    calibrate: str | Path | None = None,
    imatrix: str | Path | None = None,
    evaluate: str | Path | None = None,
    device: str = "auto",
    threads: int = 0,
    watch: Watch | None = None,
) -> Quantized:
    """Writes a model as a GGUF file with packed weights.

    model: a GGUF file, a Hugging Face folder, or a short name. Packed weights are unpacked first, and lose a
        second time: start from the original where you can.
    out: the .gguf file to write. It is there whole, or not at all, and replaces no file but a GGUF file.
    type: one of `trivet.mixes.MIXES`, in any case: q4_k_m, q8_0 ... `trivet.mixes` says what each makes of
        which tensor.
    calibrate: a UTF-8 text file that is run through the model; columns of weights that meet large activations
        then err less. A few thousand words of what the model will be used for are enough.
    imatrix: a file of such measurements in llama.cpp's format: read, or with `calibrate` written.
    evaluate: a UTF-8 text file, to be scored with the model before and after.
    device, threads: as for `trivet.load`; packing itself is done by the processors.
    Raises InputError for a type there is not, NonFiniteError for a weight that is infinite or NaN (names the
    tensor), UnsupportedError, FileError, and what opening the model raises; then nothing is written.

    >>> quantize("smollm2-135m", "small.gguf", type="q4")
    Traceback (most recent call last):
    trivet.errors.InputError: [quantize] type is 'q4'; known: f32, f16, bf16, q8_0, q6_k, q5_k_m, ...
    """
    kind = mixes.named(type)
    if kind not in mixes.MIXES:
        known = ", ".join([*mixes.MIXES, *mixes.ALIASES])
        raise InputError(f"[quantize] type is {type!r}; known: {known}")
    device = runtime.resolve(device)  # a wrong name is reported even where nothing is computed there
    watch = watch or Watch()
    checkpoint = open_checkpoint(resolve(model))
    target = packing.target("quantize", out, checkpoint)
    _demand_apart(checkpoint, target, [f for f in (calibrate, evaluate) if f], imatrix, bool(calibrate))
    demand_place("quantize", target)
    if calibrate is not None and imatrix is not None:
        demand_place("quantize", imatrix, named=False)
    models.build(checkpoint)  # so that what is quantised is a model
    checkpoint = packing.with_output(checkpoint)
    source = Model(checkpoint, device, threads=threads) if calibrate or evaluate else None
    text = None if evaluate is None else read_text("quantize", Path(evaluate))
    importance = _importance(source, calibrate, imatrix, watch)
    before = None if source is None or text is None else _nll(source, text, watch)
    source = None
    done = _write(checkpoint, target, kind, importance, threads, watch)
    if text is not None:
        done.nll_before = before
        done.nll_after = _nll(Model(open_checkpoint(target), device, threads=threads), text, watch)
    return done


def _demand_apart(
    checkpoint: Checkpoint, target: Path, texts: list[str | Path], imatrix: str | Path | None, made: bool
) -> None:
    """Raises InputError where a file would be written over another that is read, or written."""
    if imatrix is not None and same_file(imatrix, target):
        raise InputError(f"[quantize] {target} cannot be both the model to write and the importance matrix")
    written = [target, imatrix] if made and imatrix is not None else [target]
    for path in written:
        if any(same_file(path, text) for text in texts):
            raise InputError(f"[quantize] {path} is a text that is read; write somewhere else")
    if made and imatrix is not None and any(same_file(imatrix, part) for part in packing.files(checkpoint)):
        raise InputError(f"[quantize] {imatrix} is the model itself; write the importance matrix elsewhere")


def _importance(
    source: Model | None, calibrate: str | Path | None, imatrix: str | Path | None, watch: Watch
) -> Importance | None:
    if calibrate is None:
        return None if imatrix is None else calibration.load(imatrix)
    assert source is not None
    importance = calibration.collect(source, read_text("quantize", Path(calibrate)), watch.calibrated)
    if imatrix is not None:
        calibration.save(imatrix, importance, Path(calibrate).name)
        return calibration.load(imatrix)  # so that the file gives the same weights again
    return importance


def _nll(model: Model, text: str, watch: Watch) -> float:
    ids = model.tokenizer.encode(text, add_special=True)
    if len(ids) < 2:
        raise InputError(f"[quantize] the text to score is {len(ids)} tokens; there is nothing to score")
    window = min(WINDOW, model.context, len(ids))
    return float(model.nll(ids, window=window, advance=watch.scored).mean())


def _write(
    checkpoint: Checkpoint, target: Path, type: str, importance: Importance | None, threads: int, watch: Watch
) -> Quantized:
    kinds = mixes.kinds(checkpoint, type, weighted=importance is not None)
    weights, notes = _fitting(checkpoint, importance)
    metadata = packing.carried(checkpoint)
    metadata["general.file_type"] = np.uint32(mixes.MIXES[type].number)
    metadata["general.quantization_version"] = np.uint32(2)
    written = packing.write(
        "quantize", target, checkpoint, kinds, metadata,
        importance=weights, threads=threads, advance=watch.written,
    )  # fmt: skip
    notes += mixes.notes(checkpoint, type, importance is not None) + packing.notes(written, metadata)
    return Quantized(
        target,
        type,
        written.tensors,
        (written.errors / written.squares) ** 0.5 if written.squares else 0.0,
        sum(entry.nbytes for entry in checkpoint.tensors.values()),
        sum(tensor.nbytes for tensor in written.tensors),
        notes,
    )


def _fitting(checkpoint: Checkpoint, importance: Importance | None) -> tuple[packing.Importance, list[str]]:
    """The weights that are of the model's matrices, and a note where some are not."""
    if importance is None:
        return {}, []
    found = importance.weights()
    fits = {
        name: weights
        for name, weights in found.items()
        if name in checkpoint.tensors and checkpoint.tensors[name].shape[-1:] == weights.shape
    }
    if not fits:
        raise InputError(
            "[quantize] the importance matrix is of another model: it names no matrix of this one"
        )
    others = len(found) - len(fits)
    return fits, [f"{others} matrices of the importance matrix are not of this model"] if others else []
