"""Importance matrices: how much the columns of a model's matrices matter, measured on a text.

An error in a weight moves an output by that error times the input it meets. So a column counts by the mean
square of its inputs, which are collected by running the model and looking at what goes into each `linear`.
Experts that share an input share its weights.

A file of them is llama.cpp's: a GGUF file with general.type "imatrix", and for each matrix NAME two float32
tensors, NAME.in_sum2 [matrices, columns], the sums of squares, and NAME.counts [matrices, 1], of how many
inputs. Where a matrix is several, of experts, each has its own row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trivet import graph, ops, runtime
from trivet.dtypes import i32
from trivet.errors import FileError, InputError, NonFiniteError
from trivet.formats.common import quoted
from trivet.formats.gguf import GGUFFile, write_gguf
from trivet.generate.model import Model
from trivet.graph import Dim, Graph, Node
from trivet.nn.attention import packed

WINDOW = 512  # tokens of one sequence
#: the least weight of a column, against the mean: a text does not meet everything
_LEAST = 1e-3

Sums = Mapping[str, npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Importance:
    """Mean squares [columns] of the inputs of each matrix, by its name, over so many tokens. `experts`: how
    many matrices stand under a name, where there are several."""

    means: Sums
    tokens: int
    experts: Mapping[str, int] = field(default_factory=dict)

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Weights of columns, about 1."""
        found = {}
        for name, mean in self.means.items():
            middle = float(mean.mean())
            if middle > 0:
                found[name] = np.maximum(mean / middle, _LEAST).astype(np.float32)
        return found


def collect(model: Model, text: str, advance: Callable[[int], None] = lambda _: None) -> Importance:
    """Runs a text through a model, in windows of WINDOW tokens, and sums up what its matrices meet.

    `advance` is told of every token. Raises InputError for a text of fewer than two tokens, NonFiniteError
    if the weights make infinity or NaN."""
    ids = model.tokenizer.encode(text, add_special=True)
    if len(ids) < 2:
        raise InputError(f"[calibrate] the text has {len(ids)} tokens; wanted two or more")
    window = min(WINDOW, model.context)
    squares, names, experts = _squares(model)
    backend = runtime.backend(model.device)
    program = backend.compile(squares, weights=model.checkpoint.load, sizes={}, threads=model.threads)
    sums: dict[str, npt.NDArray[np.float64]] = {}
    for start in range(0, len(ids), window):
        part = np.array(ids[start : start + window], np.int32)
        count = np.arange(len(part), dtype=np.int32)
        given = {"ids": part, "positions": count, "starts": np.zeros_like(count)}
        for name, value in program.run(given).items():
            sums[name] = sums.get(name, 0) + np.asarray(backend.to_numpy(value), np.float64)
        advance(len(part))
    if not all(np.isfinite(total).all() for total in sums.values()):
        raise NonFiniteError("[calibrate] activations are infinite or NaN: the model's weights are broken")
    means = {matrix: sums[output] / len(ids) for matrix, output in names.items()}
    return Importance(means, len(ids), experts)


def _squares(model: Model) -> tuple[Graph, dict[str, str], dict[str, int]]:
    """A graph of the sums of squares of what goes into matrices, of each matrix its output's name, and how
    many experts it is of."""
    tokens = (Dim("T"),)
    ids, positions, starts = (graph.input(name, tokens, i32) for name in ("ids", "positions", "starts"))
    logits = model.definition(ids, positions, packed(starts))
    outputs: dict[str, Node] = {}
    named: dict[Node, str] = {}
    names: dict[str, str] = {}
    experts: dict[str, int] = {}
    for node in graph.walk([logits]):
        if node.op not in ("linear", "expert_linear") or node.inputs[1].op != "weight":
            continue
        x = node.inputs[0]
        if x not in named:
            named[x] = f"x{len(named)}"
            outputs[named[x]] = ops.sum(ops.mul(x, x), axis=tuple(range(x.ndim - 1)))
        name = node.inputs[1].attrs["name"]
        names[name] = named[x]
        if node.op == "expert_linear":
            experts[name] = model.checkpoint.tensors[name].shape[0]
    return Graph(outputs), names, experts


def save(path: str | os.PathLike[str], importance: Importance, text: str) -> None:
    """Writes llama.cpp's file, which wants a row for each expert; `text` names what was read."""
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    for name, mean in importance.means.items():
        rows = importance.experts.get(name, 1)
        tensors[f"{name}.in_sum2"] = np.tile((mean * importance.tokens).astype(np.float32), (rows, 1))
        tensors[f"{name}.counts"] = np.full((rows, 1), importance.tokens, np.float32)
    metadata = {
        "general.type": "imatrix",
        "imatrix.datasets": [text],
        "imatrix.chunk_count": np.uint32(-(-importance.tokens // WINDOW)),
        "imatrix.chunk_size": np.uint32(WINDOW),
    }
    write_gguf(path, metadata, tensors)


def load(path: str | os.PathLike[str]) -> Importance:
    """Reads llama.cpp's file. Where experts have rows of their own, their sums are added.

    Raises FileError that names the tensor, GGUFError."""
    file = GGUFFile.open(path)
    if file.metadata.get("general.type") != "imatrix":
        raise FileError(f"[imatrix] {file.path}: general.type: is not 'imatrix': not an importance matrix")
    means: dict[str, npt.NDArray[np.float64]] = {}
    most = 0
    for name in file.tensors:
        if not name.endswith(".in_sum2"):
            continue
        matrix = name.removesuffix(".in_sum2")
        sums, counts = _read(file, name), _read(file, f"{matrix}.counts")
        if counts.shape[0] != sums.shape[0]:
            raise FileError(f"[imatrix] {file.path}: tensor {quoted(matrix + '.counts')}: is not of its sums")
        total = float(counts.sum())
        most = max(most, int(counts.max()))
        if total > 0:
            means[matrix] = sums.sum(axis=0) / total
    if not means:
        raise FileError(f"[imatrix] {file.path}: tensors: none ends in .in_sum2 and has a count")
    return Importance(means, most)


def _read(file: GGUFFile, name: str) -> npt.NDArray[np.float64]:
    """A tensor of counts or sums, which are neither negative nor infinite, as a matrix."""
    info = file.tensors.get(name)
    if info is None or not 1 <= len(info.shape) <= 2 or 0 in info.shape:
        raise FileError(f"[imatrix] {file.path}: tensor {quoted(name)}: is missing, or not a matrix")
    values = file.array(name).astype(np.float64)
    if not np.isfinite(values).all() or (values < 0).any():
        raise FileError(f"[imatrix] {file.path}: tensor {quoted(name)}: has values below 0, or not finite")
    return values.reshape(-1, info.shape[-1])
