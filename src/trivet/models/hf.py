"""What architectures share as Hugging Face folders: names of tensors and sizes in config.json, both ways, and
the order of rows of queries and keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet.errors import ModelError, UnsupportedError
from trivet.models.checkpoint import Checkpoint, number, positive
from trivet.models.decoder import windows

TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
GATED = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}

#: GGUF's keys of sizes -> config.json's
SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "vocab_size": "vocab_size",
}
MOST_LAYERS = 1 << 16
#: tensors that config.json has the words for
SAID = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


@dataclass(frozen=True, slots=True)
class Names:
    """Names of an architecture's tensors without their ends (".weight", ".bias"): Hugging Face's -> GGUF's.

    `block` has those of a layer, under `layers`.N in Hugging Face's folders and blk.N in GGUF files. A tensor
    that folders hold in parts, one for a head or an expert, has {} where the part's number stands: part 3 of
    T is called "T#3". `buffers` are endings of names that are no weights."""

    block: Mapping[str, str]
    top: Mapping[str, str] = field(default_factory=lambda: TOP)
    layers: str = "model.layers"
    buffers: tuple[str, ...] = (".rotary_emb.inv_freq",)

    def rename(self, name: str) -> str | None:
        """GGUF's name of a tensor, "" for one that is no weight, or None if there is no such tensor. Folders
        without an output matrix may lack the first part of each name."""
        found = self._rename(name)
        return self._rename(f"{self.layers.partition('.')[0]}.{name}") if found is None else found

    def _rename(self, name: str) -> str | None:
        if name.endswith(self.buffers):
            return ""
        stem, _, end = name.rpartition(".")
        if end not in ("weight", "bias"):
            return None
        if stem in self.top:
            return f"{self.top[stem]}.{end}"
        match = re.fullmatch(rf"{re.escape(self.layers)}\.(\d+)\.(.+)", stem)
        if match is None:
            return None
        for theirs, ours in self.block.items():
            part = re.fullmatch(re.escape(theirs).replace(r"\{\}", r"(\d+)"), match[2])
            if part is not None:
                return f"blk.{match[1]}.{ours}.{end}" + (f"#{part[1]}" if part.lastindex else "")
        return None

    def original(self, name: str) -> str | None:
        """The inverse: a name with {} for a tensor in parts, "" for one that config.json has words for."""
        if name in SAID:
            return ""
        stem, _, end = name.rpartition(".")
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        for theirs, ours in (self.top if match is None else self.block).items():
            if ours == (stem if match is None else match[2]):
                return f"{theirs}.{end}" if match is None else f"{self.layers}.{match[1]}.{theirs}.{end}"
        return None


def only(config: Mapping[str, Any], **allowed: Any) -> None:
    """Refuses a config.json that says something else: key=(what it may say, ...), or the one thing. A key
    that is missing or null says nothing."""
    for key, values in allowed.items():
        values = values if isinstance(values, tuple) else (values,)
        if config.get(key) is not None and config[key] not in values:
            known = ", ".join(map(repr, values))
            raise ModelError(f"[load] config.json: {key} is {config[key]!r:.50}; known: {known}")


def head_size(config: Mapping[str, Any]) -> int:
    """Elements of a head."""
    if config.get("head_dim") is not None:
        return positive(config, "head_dim")
    width, count = positive(config, "hidden_size"), positive(config, "num_attention_heads")
    if width % count:
        raise ModelError(
            f"[load] config.json: hidden_size {width} does not divide by num_attention_heads {count}"
        )
    return width // count


def sizes_metadata(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF's keys of the architecture's name and its sizes, from config.json."""
    heads, size = positive(config, "num_attention_heads"), head_size(config)
    groups = heads if config.get("num_key_value_heads") is None else positive(config, "num_key_value_heads")
    keys = {ours: positive(config, theirs) for ours, theirs in SIZES.items()} | {
        "attention.head_count_kv": groups,
        "attention.key_length": size,
        "attention.value_length": size,
    }
    if keys["block_count"] > MOST_LAYERS:  # before anything is as long
        raise ModelError(f"[load] config.json: num_hidden_layers is {keys['block_count']}")
    return {"general.architecture": name} | {f"{name}.{key}": value for key, value in keys.items()}


def sizes_config(checkpoint: Checkpoint, architecture: str, model_type: str) -> dict[str, Any]:
    """The inverse: config.json's keys of sizes and of special tokens."""
    metadata, name = checkpoint.metadata, checkpoint.architecture

    def at(key: str, default: int | None = None) -> int:
        return positive(metadata, f"{name}.{key}", default)

    heads = at("attention.head_count")
    config: dict[str, Any] = {"architectures": [architecture], "model_type": model_type}
    config |= {theirs: at(ours) for ours, theirs in SIZES.items() if ours != "vocab_size"}
    config |= {
        "num_key_value_heads": at("attention.head_count_kv", heads),
        "head_dim": at("attention.key_length", at("embedding_length") // heads),
        "vocab_size": checkpoint.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in checkpoint.tensors,
    }
    return config | token_ids(metadata)


def token_ids(metadata: Mapping[str, Any]) -> dict[str, int | None]:
    """config.json's keys of special tokens."""
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
    said = {key: f"tokenizer.ggml.{ours}_token_id" for ours, key in names.items()}
    return {k: int(number(metadata, v, least=0)) if v in metadata else None for k, v in said.items()}


LAYERS = {"sliding_attention": True, "full_attention": False}


def windows_metadata(name: str, config: Mapping[str, Any], slides: Sequence[bool]) -> dict[str, Any]:
    """GGUF's keys of the window and of the layers that have it: as `layer_types` says, else as `slides`."""
    kinds = config.get("layer_types")
    if kinds is not None:
        known = list(LAYERS)
        if not isinstance(kinds, list) or len(kinds) != len(slides) or not all(k in known for k in kinds):
            raise ModelError(
                f"[load] config.json: layer_types is {kinds!r:.50}; wanted {len(slides)} of"
                f" {', '.join(known)}"
            )
        slides = [LAYERS[kind] for kind in kinds]
    if not any(slides):
        return {}
    key = f"{name}.attention.sliding_window"
    return {key: positive(config, "sliding_window"), f"{key}_pattern": list(slides)}


def windows_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The inverse."""
    found = windows(checkpoint, positive(checkpoint.metadata, f"{checkpoint.architecture}.block_count"))
    kinds = [next(kind for kind, slides in LAYERS.items() if slides == bool(window)) for window in found]
    said = {"sliding_window": max(found)} if any(found) else {}
    return {"use_sliding_window": any(found), "layer_types": kinds, **said}


def head_dim(checkpoint: Checkpoint) -> int:
    """Elements of a head, by GGUF's keys."""
    name, metadata = checkpoint.architecture, checkpoint.metadata
    width, heads = (positive(metadata, f"{name}.{k}") for k in ("embedding_length", "attention.head_count"))
    return positive(metadata, f"{name}.attention.key_length", max(width // heads, 1))


def short(value: float) -> float:
    """A number that was float32, as people write it: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def biased(checkpoint: Checkpoint, *names: str) -> bool:
    """Whether the matrices of those names have biases. Raises UnsupportedError if some have and some have
    not, which one word of config.json cannot say."""
    found = {f"blk.0.{name}.bias" in checkpoint.tensors for name in names}
    if len(found) > 1:
        raise UnsupportedError(
            f"[config.json] there are no words for biases of only some of {', '.join(names)}"
        )
    return found.pop()


def unmoved(name: str, array: npt.NDArray[Any], metadata: Mapping[str, Any]) -> npt.NDArray[Any]:
    """The order of rows where GGUF files keep a head's rotary pairs as two halves, as folders do."""
    return array


def paired(name: str, array: npt.NDArray[Any], metadata: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Rows of the query and key projections, from two halves per head to interleaved pairs, as the GGUF files
    of some architectures have them."""
    match = re.fullmatch(r"blk\.\d+\.attn_([qk])\.(weight|bias)", name)
    if match is None:
        return array
    key = f"{metadata['general.architecture']}.attention.head_count"
    count = positive(metadata, key)
    if match[1] == "k":
        count = positive(metadata, f"{key}_kv", count)
    if not array.ndim or array.shape[0] % (2 * count):
        raise ModelError(f"[load] tensor {name} has the shape {array.shape}; wanted pairs for {count} heads")
    halves = array.reshape(count, 2, array.shape[0] // count // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def nothing(config: Mapping[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
    """No tensors besides the folder's own."""
    return {}
