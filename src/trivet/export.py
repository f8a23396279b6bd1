"""Export: a model file that carries its own plans and chat format, so that C callers need nothing else.

The result is still a GGUF that other programs read: what is added is metadata under `trivet.`.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trivet import models
from trivet.errors import InputError, TemplateError, UnsupportedError
from trivet.formats.common import same_file
from trivet.formats.gguf import TensorSource, demand_place, write_gguf
from trivet.generate.engine import kv_dtype
from trivet.generate.native import serving_plan
from trivet.models.checkpoint import STALE, Checkpoint, open_checkpoint, resolve
from trivet.text.chat_format import derive_chat_format


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written. `chat` is None if the chat format is in the file, else why it is not."""

    path: Path
    plan_bytes: int
    chat: str | None


def export(model: str | Path, out: str | Path, *, kv: str = "f16") -> Exported:
    """Writes a GGUF with the serving plan and the chat format inside; tensors are copied as they are.

    kv: what the plan keeps keys and values in, as for `trivet.load`.
    Raises InputError if `out` is the model's own file, or another that is no GGUF file, UnsupportedError if a
    tensor's type cannot be written, and what opening the model raises."""
    if not str(out):
        raise InputError("[export] the file to write has an empty name")
    checkpoint = open_checkpoint(resolve(model))
    target = Path(out)
    own = [checkpoint.path] if checkpoint.gguf is None else checkpoint.gguf.paths
    if any(same_file(target, path) for path in own):
        raise InputError(f"[export] {target} is the model itself; write somewhere else")
    demand_place("export", target)
    if checkpoint.gguf is None:
        raise UnsupportedError(
            f"[export] {checkpoint.path.name} is not a GGUF file, which export wants: `trivet convert"
            f" {shlex.quote(str(checkpoint.path))} model.gguf` makes one"
        )
    if checkpoint.gguf.unsupported:
        raise UnsupportedError(
            f"[export] {checkpoint.path.name} is not a GGUF file whose every tensor trivet reads"
        )
    gguf = checkpoint.gguf
    definition = models.build(checkpoint)
    dtype = kv_dtype(kv, definition.config.head_dim)
    serving = serving_plan(definition, checkpoint.architecture, dtype)
    chat, reason = _chat(checkpoint)
    kept = {key: gguf.encoded(key) for key in gguf.metadata if not key.startswith(STALE)}
    ours = {"trivet.version": np.uint32(1), "trivet.plan.serve": serving, **chat}
    tensors = {name: TensorSource(t.dtype, t.shape, gguf.data(name)) for name, t in gguf.tensors.items()}
    write_gguf(target, {**kept, **ours}, tensors)
    return Exported(target, len(serving), reason)


def _chat(checkpoint: Checkpoint) -> tuple[dict[str, str | bool], str | None]:
    """The chat metadata, or why there is none."""
    source = checkpoint.chat_template
    if source is None:
        reason = "the model has no chat template"
    else:
        try:
            tokenizer = checkpoint.tokenizer
            return derive_chat_format(source, tokenizer.bos_token, tokenizer.eos_token).metadata(), None
        except TemplateError as error:
            reason = str(error)
    return {"trivet.chat.refused": reason}, reason
