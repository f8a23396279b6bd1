"""Names of models on a hub, and which of a repository's files a name stands for.

A GGUF repository holds one model many times, once in each quantisation; `:QUANT` says which. A file split
into parts, name-00001-of-00005.gguf and on, is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trivet.errors import HubError, InputError

DEFAULT_QUANT = "Q4_K_M"

_NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?::(?P<quant>\w[\w./-]*))?", re.ASCII)
_PART = re.compile(r"(?P<base>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII | re.IGNORECASE)
_QUANT = re.compile(
    r"(?:^|[-._])(?P<quant>(?:UD-)?(?:I?Q\d+_\w+|TQ\d_\d|B?F16|FP16|F32|FP32|MXFP4\w*|NVFP4|Q8))$",
    re.ASCII | re.IGNORECASE,
)
#: what a folder of safetensors needs besides its weights
_SIDE_FILES = frozenset({
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
    "chat_template.json", "model.safetensors.index.json",
})  # fmt: skip
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True, slots=True)
class Name:
    """OWNER/REPO and maybe a quantisation."""

    repo: str
    quant: str | None = None

    def __str__(self) -> str:
        return self.repo if self.quant is None else f"{self.repo}:{self.quant}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The files of one model in a repository. `quant` is None for a folder of safetensors; the first of
    `files` is what is opened of a GGUF."""

    quant: str | None
    files: tuple[str, ...]


def parse(name: str) -> Name | None:
    """
    >>> parse("owner/repo-GGUF:q4_k_m"), parse("./model.gguf")
    (Name(repo='owner/repo-GGUF', quant='q4_k_m'), None)
    """
    match = _NAME.fullmatch(name)
    if match is None or "--" in match["repo"] or ".." in match["repo"]:  # as the hub has it
        return None
    return Name(match["repo"], match["quant"])


def parsed(call: str, name: str) -> Name:
    """The same; raises InputError for what is no name."""
    found = parse(name)
    if found is None:
        raise InputError(f"[{call}] {name!r} is not the name of a model on a hub; wanted OWNER/REPO[:QUANT]")
    return found


def quantisations(files: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The GGUF models of a repository, by what QUANT calls them: their quantisation, or, where a name tells
    none or two have the same, the file's name without its ending. A model whose parts are not all there is
    left out.

    >>> quantisations(["m-Q8_0.gguf", "F16/m-F16-00001-of-00002.gguf", "F16/m-F16-00002-of-00002.gguf"])
    {'F16': ('F16/m-F16-00001-of-00002.gguf', 'F16/m-F16-00002-of-00002.gguf'), 'Q8_0': ('m-Q8_0.gguf',)}
    """
    models = _models(files)
    labels = {base: _label(base) for base in models}
    taken = [label.lower() for label in labels.values()]
    return {
        label if taken.count(label.lower()) == 1 else base: models[base] for base, label in labels.items()
    }


def _models(files: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Files of whole models by their names without part numbers and endings."""
    parts: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for file in sorted(files):
        last = file.rsplit("/", 1)[-1].lower()
        if not last.endswith(".gguf") or last.startswith("mmproj") or "imatrix" in last:
            continue  # of an image's encoder, or of how the others were made: no models
        match = _PART.fullmatch(file)
        base, count = (match["base"], int(match["count"])) if match else (file[: -len(".gguf")], 1)
        parts.setdefault((base, count), []).append((int(match["part"]) if match else 1, file))
    return {
        base: tuple(file for _, file in found)
        for (base, count), found in parts.items()
        if [number for number, _ in found] == list(range(1, count + 1))
    }


def _label(base: str) -> str:
    match = _QUANT.search(base.rsplit("/", 1)[-1])
    return match["quant"].upper() if match else base.rsplit("/", 1)[-1]


def choose(name: Name, files: Iterable[str]) -> Choice:
    """The files a name stands for: of safetensors, if the repository has them and no quantisation is asked
    for, else of a GGUF. Raises HubError that lists what there is."""
    files = sorted(files)
    ggufs = quantisations(files)
    folder = _folder(files)
    if name.quant is None and folder:
        return Choice(None, folder)
    if not ggufs:
        raise HubError(f"[hub] {name.repo} {_what_else(name, files, bool(folder))}")
    return _one_of(name, ggufs)


def _one_of(name: Name, ggufs: Mapping[str, tuple[str, ...]]) -> Choice:
    wanted = (name.quant or DEFAULT_QUANT).lower()
    for label, files in ggufs.items():
        if wanted in (label.lower(), files[0].rsplit("/", 1)[-1].lower()):
            return Choice(label, files)
    if name.quant is None and len(ggufs) == 1:
        return Choice(*next(iter(ggufs.items())))
    there = ", ".join(sorted(ggufs))
    if name.quant is None:
        example = f"{name.repo}:{min(ggufs)}"
        raise HubError(f"[hub] {name.repo} has no {DEFAULT_QUANT}; say which: {there}; as in {example}")
    raise HubError(f"[hub] {name.repo} has no {name.quant}; it has: {there}")


def _folder(files: list[str]) -> tuple[str, ...]:
    """The files of a folder of safetensors, configuration first; none without weights or configuration."""
    top = [file for file in files if "/" not in file]
    weights = [file for file in top if file.endswith(".safetensors")]
    if "model.safetensors" in weights:
        weights = ["model.safetensors"]
    elif "model.safetensors.index.json" in top:
        weights = [file for file in weights if file.startswith("model-")]
    if not weights or "config.json" not in top:
        return ()
    side = [file for file in top if file in _SIDE_FILES]
    if weights == ["model.safetensors"]:
        side = [file for file in side if not file.endswith(".index.json")]
    return (*side, *weights)


def _what_else(name: Name, files: list[str], folder: bool) -> str:
    if folder:
        return f"has no GGUF file, so no {name.quant}; it has safetensors: leave out :{name.quant}"
    pickles = [file for file in files if file.endswith(_PICKLES)]
    if pickles:
        return (
            f"holds its weights as a pickle ({pickles[0]}), which runs code when it is read, so trivet does"
            " not fetch it; look for the model as safetensors or GGUF"
        )
    if any(file.endswith("adapter_model.safetensors") for file in files):
        return "holds an adapter, not a model"
    return "has no model in it: no GGUF file, and no config.json with safetensors"
