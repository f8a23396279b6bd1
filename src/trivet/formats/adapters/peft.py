"""PEFT folders, as Hugging Face's `peft` writes and loads them.

  adapter_config.json         settings: peft_type, r, lora_alpha, use_rslora, lora_dropout, target_modules,
                              rank_pattern and alpha_pattern (module name or regular expression -> value), ...
  adapter_model.safetensors   base_model.model.<module>.lora_A.weight [rank, K] and .lora_B.weight [N, rank]

A setting that is not known here and is not empty or false is refused by name: it would change what the
adapter computes. Patterns of a file are run only where they cannot take long.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trivet.formats.adapters.stored import (
    CONFIG,
    F32,
    Pair,
    Stored,
    bad,
    dropout,
    floats,
    integer,
    paired,
    read_config,
    real,
    text,
    unsupported,
)
from trivet.formats.common import quoted, written_aside
from trivet.formats.safetensors import SafetensorsFile
from trivet.formats.safetensors_save import write_safetensors

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
ENDS = (".lora_A.weight", ".lora_B.weight")
#: settings that change nothing of what a saved adapter computes, whatever they say
_HARMLESS = {
    "auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "eva_config", "exclude_modules",
    "inference_mode", "layers_pattern", "layers_to_transform", "lora_ga_config", "megatron_core",
    "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type",
}  # fmt: skip
_READ = {
    "peft_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules", "rank_pattern",
    "alpha_pattern", "bias", "init_lora_weights",
}  # fmt: skip
#: ways to begin that leave the base model as it is; others change it
_INITIAL = (True, False, None, "gaussian", "eva", "orthogonal")
_MAX_EXPRESSION = 256  # characters
_MAX_EXPRESSIONS = 16


def is_folder(path: Path) -> bool:
    """Whether this is the format of an adapter's folder."""
    return (path / WEIGHTS).exists() or "peft_type" in read_config(path / CONFIG)


def read(path: Path) -> Stored:
    """The adapter in a folder.

    Raises FileError for what is malformed, UnsupportedError for settings that trivet's LoRA does not have."""
    where = path / CONFIG
    config = read_config(where)
    _check_known(where, config)
    rank, alpha = integer(where, "r", config.get("r")), real(where, "lora_alpha", config.get("lora_alpha"))
    file = SafetensorsFile.open(path / WEIGHTS)
    for name in (*file.tensors, *file.unsupported):
        if name.endswith(".weight") and not name.endswith(ENDS):  # of resized or merely saved embeddings
            raise unsupported(path / WEIGHTS, f"tensor {quoted(name)} is a weight of the model itself")
    arrays = floats(path / WEIGHTS, {**file.tensors, **file.unsupported}, file.array)
    found = paired(path / WEIGHTS, arrays, *ENDS, prefix=PREFIX)
    _check_targets(where, config.get("target_modules"), found)
    ranks = _Pattern(where, "rank_pattern", config.get("rank_pattern"))
    alphas = _Pattern(where, "alpha_pattern", config.get("alpha_pattern"))
    pairs = {}
    for module, (a, b) in found.items():
        want = integer(where, "rank_pattern", ranks.get(module, rank))
        if a.shape[0] != want:
            raise bad(
                path / WEIGHTS, f"module {quoted(module)}", f"has rank {a.shape[0]}; {CONFIG} says {want}"
            )
        pairs[module] = Pair(a, b, real(where, "alpha_pattern", alphas.get(module, alpha)))
    return Stored(
        pairs,
        rank,
        alpha,
        rslora=bool(config.get("use_rslora")),
        dropout=dropout(where, "lora_dropout", config.get("lora_dropout", 0.0)),
        base=text(where, "base_model_name_or_path", config.get("base_model_name_or_path") or ""),
        facts={k: v for k, v in file.metadata.items() if k != "format"},
    )


def _check_known(where: Path, config: Mapping[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise unsupported(where, f"peft_type is {quoted(str(config.get('peft_type')))}")
    if config.get("bias", "none") != "none":
        raise unsupported(where, f"bias is {quoted(str(config['bias']))}")
    initial = config.get("init_lora_weights")
    if not any(initial is known or initial == known for known in _INITIAL):
        raise unsupported(
            where, f"init_lora_weights is {quoted(str(initial))}, so that the base model is changed"
        )
    if not isinstance(config.get("use_rslora", False), bool):
        raise bad(where, "use_rslora", "is not true or false")
    for name, value in config.items():
        if name not in _HARMLESS and name not in _READ and value:
            raise unsupported(where, f"{quoted(name)[1:-1]} is set")


def _check_targets(where: Path, targets: Any, found: Mapping[str, Any]) -> None:
    """A list names modules that are there; a regular expression, or nothing, is left to the tensors."""
    if targets is None or isinstance(targets, str):
        return
    if not isinstance(targets, list) or not all(isinstance(t, str) for t in targets):
        raise bad(where, "target_modules", "is not a list of names, or one regular expression")
    ends = {module[i:] for module in found for i in _starts(module)}
    for target in targets:
        if target not in ends:
            raise bad(where, f"target_modules {quoted(target)}", f"has no tensors in {WEIGHTS}")


def _starts(module: str) -> list[int]:
    return [0] + [i + 1 for i, c in enumerate(module) if c == "."]


# --- patterns ---------------------------------------------------------------------------------------------


class _Pattern:
    """rank_pattern or alpha_pattern: the value of the first key that is a module's name, or its end after a
    dot, or as a regular expression matches one. Names are looked up; few expressions are run, and only such
    as take time in proportion to a name's length."""

    def __init__(self, where: Path, what: str, value: Any) -> None:
        if not isinstance(value or {}, dict):
            raise bad(where, what, "is not an object")
        self.values = list((value or {}).values())
        self.names: dict[str, int] = {}
        self.expressions: list[tuple[int, re.Pattern[str]]] = []
        for i, key in enumerate(value or {}):
            name = key.removeprefix("^").removesuffix("$").replace("\\.", ".")
            if re.fullmatch(r"[\w.]+", name):
                self.names.setdefault(f"^{name}" if key.startswith("^") else name, i)
            else:
                self.expressions.append((i, _compiled(where, what, key)))
        if len(self.expressions) > _MAX_EXPRESSIONS:
            raise unsupported(where, f"{what} has more than {_MAX_EXPRESSIONS} regular expressions")

    def get(self, module: str, default: Any) -> Any:
        ends = _starts(module)
        found = [self.names[n] for n in (f"^{module}", *(module[i:] for i in ends)) if n in self.names]
        found += [i for i, e in self.expressions if any(e.fullmatch(module, at) for at in ends)]
        return self.values[min(found)] if found else default


def _compiled(where: Path, what: str, key: str) -> re.Pattern[str]:
    few = len(re.findall(r"[*+?{]", key)) <= 1 and key.count("(") <= 1
    if not few or len(key) > _MAX_EXPRESSION or re.search(r"\)[*+?{]|\\[1-9]", key):
        raise unsupported(where, f"{what} has the regular expression {quoted(key)}, which may take long")
    try:
        return re.compile(key)
    except (re.error, OverflowError):
        raise bad(where, f"{what} {quoted(key)}", "is not a regular expression") from None


# --- writing ----------------------------------------------------------------------------------------------


def write(path: Path, stored: Stored) -> None:
    """Writes the folder; the configuration comes last."""
    arrays: dict[str, F32] = {}
    for module, pair in sorted(stored.pairs.items()):
        arrays |= {f"{PREFIX}{module}{end}": x for end, x in zip(ENDS, (pair.a, pair.b), strict=True)}
    write_safetensors(path / WEIGHTS, arrays, {"format": "pt", **stored.facts})
    with written_aside(path / CONFIG, "adapter") as file:
        file.write((json.dumps(_config(stored), indent=2, sort_keys=True) + "\n").encode())


def _config(stored: Stored) -> dict[str, Any]:
    pairs = sorted(stored.pairs.items())
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": stored.base,
        "inference_mode": True,
        "r": stored.rank,
        "lora_alpha": _plain(stored.alpha),
        "lora_dropout": stored.dropout,
        "use_rslora": stored.rslora,
        "target_modules": list(stored.targets),
        "rank_pattern": {m: p.rank for m, p in pairs if p.rank != stored.rank},
        "alpha_pattern": {m: _plain(p.alpha) for m, p in pairs if p.alpha != stored.alpha},
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_dora": False,
    }


def _plain(alpha: float) -> int | float:
    """peft's alpha is an integer by rights; other programs want it to look like one where it is."""
    return int(alpha) if alpha == int(alpha) else alpha
