"""Architectures, one file each, and the checkpoints they are built from.

An architecture module has: `Config` with `Config.from_metadata(checkpoint)`, and `Model(config, checkpoint)`,
a `decoder.Decoder` that keeps its `config`. To open Hugging Face folders, `hf_metadata(config)`,
`hf_rename(name)`, `hf_arrange(name, array, metadata)` and `hf_extra(config)`, and where a folder holds
matrices as [inputs, outputs], `hf_transposed(name)`, or values less a constant, `hf_offset(name)`; to write
them, the inverses `hf_config(checkpoint)` and `hf_original(name)`. docs/add-a-model.md writes one. Every
checkpoint speaks GGUF's metadata keys and tensor names, whatever file it came from.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trivet import arguments
from trivet.errors import InputError, ModelError

if TYPE_CHECKING:
    from trivet.models.checkpoint import Checkpoint

#: general.architecture in GGUF -> module
ARCHITECTURES = {
    "gemma2": "gemma",
    "gemma3": "gemma",
    "gpt2": "gpt2",
    "gptneox": "gptneox",
    "granite": "granite",
    "llama": "llama",
    "olmo2": "olmo2",
    "phi3": "phi3",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "qwen3moe": "qwen",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
}
#: model_type in a Hugging Face config.json -> module
MODEL_TYPES = {
    "gemma2": "gemma",
    "gemma3_text": "gemma",
    "gpt2": "gpt2",
    "gpt_neox": "gptneox",
    "granite": "granite",
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "phi3": "phi3",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "qwen3_moe": "qwen",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
}


def build(checkpoint: Checkpoint, context: int | None = None) -> Any:
    """The model that a checkpoint holds, by its architecture; its sizes are `config`. Reads no matrix.

    context: most tokens of one sequence; by default what the model was trained for. Raises InputError for
    more than that, ModelError for what is wrong with the file."""
    module = by_architecture(checkpoint.architecture)
    config = module.Config.from_metadata(checkpoint)
    if context is not None:
        context = arguments.integer(context, "[load] context")
        if not 1 <= context <= config.context:
            raise InputError(f"[load] context {context}; this model takes 1 to {config.context} tokens")
        config = replace(config, context=context)
    return module.Model(config, checkpoint)


def by_architecture(name: str) -> ModuleType:
    """The module of a GGUF `general.architecture`; ModelError lists the known ones otherwise."""
    if name not in ARCHITECTURES:
        raise ModelError(
            f"[load] general.architecture is {name!r}; known: {', '.join(sorted(ARCHITECTURES))}"
        )
    return importlib.import_module(f"trivet.models.{ARCHITECTURES[name]}")


def by_model_type(name: str) -> ModuleType:
    """The module of a Hugging Face `model_type`; ModelError lists the known ones otherwise."""
    if name not in MODEL_TYPES:
        raise ModelError(f"[load] model_type is {name!r}; known: {', '.join(sorted(MODEL_TYPES))}")
    return importlib.import_module(f"trivet.models.{MODEL_TYPES[name]}")
