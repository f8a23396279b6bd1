"""What is in a model file or folder, as plain data, with what is wrong with it: for `trivet inspect`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trivet import models
from trivet.errors import FileError, ModelError, TrivetError
from trivet.formats.common import TensorInfo
from trivet.generate.engine import CHUNK, KV_TYPES, PAGE, kv_dtype
from trivet.models.checkpoint import Checkpoint, Entry, open_checkpoint, read_config, resolve

SHOWN = 3  # elements of an array that are shown
LISTED = 5  # names in a problem
SMALL = 1 << 20  # bytes of a tensor that is read without being asked to

Advance = Callable[[int], None]


def describe(
    model: str | Path,
    context: int | None = None,
    kv: str | None = None,
    *,
    check: bool = False,
    advance: Advance = lambda _: None,
) -> dict[str, Any]:
    """What a model is made of; keys and values of one sequence of `context` tokens are kept in `kv`, by
    default f16.

    A model trivet cannot run is described all the same: then `memory` is None and `problem` says why.
    `problems` are all that was found wrong. `check` reads every tensor for NaN and infinity, and tells
    `advance` of each; without, only small ones are. Raises FileError for what is no model file."""
    kv_dtype("f16" if kv is None else kv, 0)  # an unknown name is a mistake of the caller, not the file's
    checkpoint, problem = _opened(resolve(model))
    unused: list[str] = []
    memory = None
    if problem is None:
        memory, unused, problem = _run(checkpoint, context, "f16" if kv is None else kv)
    tensors = _tensors(checkpoint)
    parameters, nbytes = sum(math.prod(t["shape"]) for t in tensors), sum(t["bytes"] for t in tensors)
    tokenizer, template, words = _words(checkpoint)
    problems = [] if problem is None else [f"cannot be run: {problem}"]
    problems += [*_tensor_problems(checkpoint, unused), *_broken(checkpoint, check, advance), *words]
    return {
        "path": str(checkpoint.path),
        "format": _format(checkpoint),
        "architecture": checkpoint.metadata.get(
            "general.architecture", checkpoint.metadata.get("model_type")
        ),
        "bytes": nbytes,
        "metadata": {key: plain(value) for key, value in checkpoint.metadata.items()},
        "tensors": tensors,
        "types": _types(tensors),
        "parameters": parameters,
        "bits_per_weight": 8 * nbytes / parameters if parameters else 0.0,
        "memory": memory,
        "tokenizer": tokenizer,
        "template": template,
        "problem": problem,
        "problems": problems,
    }


def _opened(path: Path) -> tuple[Checkpoint, str | None]:
    """The checkpoint, and why it cannot be run. A folder of an architecture that is not known is opened with
    its own names for tensors, and config.json as metadata."""
    try:
        return open_checkpoint(path), None
    except (ModelError, NotImplementedError) as error:
        if not path.is_dir():
            raise
        from trivet.formats.safetensors import SafetensorsFile

        file = SafetensorsFile.open(path)
        entries = {name: _entry(file, info) for name, info in file.tensors.items()}
        try:
            config = read_config(path)
        except ModelError:  # without a model_type
            config = {}
        shown = {k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in config.items()}
        return Checkpoint(path, shown, entries, unsupported=file.unsupported), str(error)


def _entry(file: Any, info: TensorInfo) -> Entry:
    return Entry(info.dtype, info.shape, lambda: file.data(info.name))


def _format(checkpoint: Checkpoint) -> str:
    if checkpoint.gguf is None:
        return f"folder of {len(list(checkpoint.path.glob('*.safetensors')))} safetensors"
    parts = len(checkpoint.gguf.paths)
    return f"GGUF v{checkpoint.gguf.version}" + (f" in {parts} parts" if parts > 1 else "")


def _tensors(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    read = [(name, e.dtype.name, e.shape, e.nbytes) for name, e in checkpoint.tensors.items()]
    other = [
        (name, f"{t.type_name} (not supported)", t.shape, t.nbytes)
        for name, t in checkpoint.unsupported.items()
    ]
    return [{"name": n, "dtype": d, "shape": list(s), "bytes": b} for n, d, s, b in read + other]


def _types(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tensors by type, those with most bytes first."""
    found: dict[str, dict[str, Any]] = {}
    for t in tensors:
        row = found.setdefault(t["dtype"], {"type": t["dtype"], "tensors": 0, "bytes": 0, "parameters": 0})
        row["tensors"] += 1
        row["bytes"] += t["bytes"]
        row["parameters"] += math.prod(t["shape"])
    return sorted(found.values(), key=lambda row: -int(row["bytes"]))


class _Asked(Checkpoint):
    """Remembers which tensors a model asks for."""

    def __init__(self, base: Checkpoint) -> None:
        super().__init__(base.path, base.metadata, base.tensors, base.gguf, base.unsupported)
        self.names: set[str] = set()

    def find(self, name: str, shape: tuple[int, ...]) -> Any:
        self.names.add(name)
        return super().find(name, shape)


def _run(
    checkpoint: Checkpoint, context: int | None, kv: str
) -> tuple[dict[str, Any] | None, list[str], str | None]:
    """Memory of a run, the tensors it has no use for, and why there can be none."""
    asked = _Asked(checkpoint)
    try:
        config = models.build(asked, context).config
        kv_dtype(kv, config.head_dim)
    except TrivetError as error:
        return None, [], str(error)
    # Tables of rotary frequencies are chosen among, by the context.
    unused = [name for name in checkpoint.tensors if name not in asked.names and name[:5] != "rope_"]
    slots = 2 * config.layers * config.kv_heads * PAGE * -(-config.context // PAGE)
    caches = {
        name: slots * kv_dtype(name, config.head_dim).row_bytes(config.head_dim)
        for name in KV_TYPES
        if name == kv or (name in ("f16", "q8_0") and not config.head_dim % kv_dtype(name, 0).block)
    }
    tokens = min(CHUNK, config.context)
    memory = {
        "context": config.context,
        "kv": kv,
        "weights": sum(e.nbytes for e in checkpoint.tensors.values()),
        "cache": caches[kv],
        "caches": caches,
        "temporaries": 4 * tokens * (4 * config.width + 3 * config.hidden) + 4 * config.vocab,
    }
    return memory, unused, None


def _tensor_problems(checkpoint: Checkpoint, unused: list[str]) -> list[str]:
    problems = []
    if checkpoint.unsupported:
        kinds = ", ".join(sorted({t.type_name for t in checkpoint.unsupported.values()}))
        problems.append(f"trivet does not read {kinds}: {_some(list(checkpoint.unsupported))}")
    if unused:
        problems.append(f"the architecture has no use for {_some(unused)}")
    return problems


def _broken(checkpoint: Checkpoint, every: bool, advance: Advance) -> list[str]:
    """Tensors that hold NaN or infinity, each with how many."""
    problems = []
    for name, entry in checkpoint.tensors.items():
        if every or entry.nbytes <= SMALL:
            try:
                count = sum(values.size - int(np.isfinite(values).sum()) for _, values in entry.pieces())
            except TrivetError as error:  # of a shape in which no such tensor comes
                problems.append(str(error))
                count = 0
            if count:
                problems.append(f"{name} holds NaN or infinity, {count} of {math.prod(entry.shape)} values")
        advance(1)
    return problems


def _some(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


# --- tokenizer and template ---


def _words(checkpoint: Checkpoint) -> tuple[dict[str, Any] | None, dict[str, Any] | None, list[str]]:
    """Facts about the tokenizer and the chat template, and what is wrong with them."""
    embedding = checkpoint.tensors.get("token_embd.weight")
    if checkpoint.path.is_dir() and embedding is None:
        return None, None, []  # the problem is that the folder cannot be opened
    try:
        if "tokenizer.ggml.model" not in checkpoint.tokenizer_metadata:
            return None, None, ["there is no tokenizer: it runs on token ids alone"]
        tokenizer = checkpoint.tokenizer
        source = checkpoint.chat_template
    except (FileError, TrivetError) as error:
        return None, None, [f"the tokenizer cannot be used: {error}"]
    ids = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "unk": tokenizer.unk_id, "pad": tokenizer.pad_id}
    facts = {
        "kind": tokenizer.model,
        "pre": tokenizer.pre,
        "tokens": tokenizer.n_vocab,
        "special": {k: {"id": i, "token": tokenizer.token(i)} for k, i in ids.items() if i is not None},
        "ends": [{"id": i, "token": tokenizer.token(i)} for i in sorted(tokenizer.end_ids)],
        "add_bos": tokenizer.add_bos,
        "add_eos": tokenizer.add_eos,
        "add_space_prefix": tokenizer.add_space_prefix,
    }
    problems = []
    if embedding is not None and embedding.shape and tokenizer.n_vocab > embedding.shape[0]:
        problems.append(
            f"the tokenizer has {tokenizer.n_vocab} tokens, the embedding {embedding.shape[0]} rows"
        )
    template, wrong = _template(source, facts)
    return facts, template, problems + wrong


def _template(source: str | None, facts: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    if source is None:
        return None, []
    from trivet.text.chat_format import derive_chat_format  # Jinja

    bos, eos = (facts["special"].get(name, {"token": ""})["token"] for name in ("bos", "eos"))
    found: dict[str, Any] = {"characters": len(source), "for_c": True}
    try:
        derive_chat_format(source, bos, eos)
    except TrivetError as error:
        return found | {"for_c": False}, [f"C programs cannot chat with it: {error}"]
    return found, []


def plain(value: Any) -> Any:
    """A metadata value as JSON has it; long arrays as their type, length and first elements."""
    if isinstance(value, np.ndarray | list):
        first = [plain(v) for v in value[:SHOWN]]
        kind = (
            value.dtype.name
            if isinstance(value, np.ndarray)
            else type(value[0]).__name__
            if value
            else "empty"
        )
        return first if len(value) <= SHOWN else {"array": kind, "length": len(value), "first": first}
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
