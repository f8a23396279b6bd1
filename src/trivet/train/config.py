"""What a run is told, as a dataclass per recipe; from flags, or from a TOML file with the same names.

A name that is not known, or a value of another type, is refused before anything is opened.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from trivet import arguments
from trivet.dtypes import NF4_BLOCKS, DType, bf16, f32
from trivet.errors import FileError, InputError
from trivet.formats.common import read_text
from trivet.lora import Lora
from trivet.models.scratch import Sizes
from trivet.optim import AdamW, Group, Schedule
from trivet.text import train_bpe
from trivet.train.loop import Pace

COMPUTE = {"f32": f32, "bf16": bf16}
METHODS = ("full", "lora", "qlora")
BASES = ("file", "nf4")
#: learning rates that are usual for each method
RATES = {"full": 2e-5, "lora": 2e-4, "qlora": 2e-4, "pretrain": 1e-3}
TOKENIZERS = ("byte", "bpe")
USUAL_VOCAB = 4096

C = TypeVar("C")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What every recipe is told.

    data: JSONL or text, see trivet.train.data; columns maps fields to the file's names. validation: a second
    file; or holdout, the fraction of `data` kept for it. out: the run's folder. epochs, or steps if not 0.
    rows: examples of a step, 0: as many as fill `micro` micro-batches of `tokens`. lr None: what is usual
    for the method. warmup: steps. schedule: constant, linear or cosine. groups: tables of pattern, lr and
    decay, see trivet.optim.Group. compute: f32 or bf16. checkpointing: "none", or "block": recompute instead
    of remember. evaluate, save: every so many steps, 0: at the end. mesh: several of the device's chips,
    "data:4,model:2": tokens divided four ways, matrices two ways."""

    data: str
    out: str
    validation: str = ""
    holdout: float = 0.0
    format: str = "auto"
    columns: Mapping[str, str] = field(default_factory=dict)
    skip_refused: bool = False
    epochs: int = 1
    steps: int = 0
    rows: int = 8
    micro: int = 1
    tokens: int = 2048
    lr: float | None = None
    schedule: str = "cosine"
    warmup: int = 0
    floor: float = 0.0
    decay: float = 0.0
    clip: float = 1.0
    groups: tuple[Mapping[str, Any], ...] = ()
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    compute: str = "f32"
    checkpointing: str = "none"
    seed: int = 0
    evaluate: int = 0
    save: int = 0
    keep: int = 2
    mesh: str = ""

    def __post_init__(self) -> None:
        if not self.out:
            raise InputError("[train] out is empty; wanted the folder to write to")
        if not 0 <= self.holdout < 1 or (self.holdout and self.validation):
            raise InputError(
                f"[train] holdout is {self.holdout!r}; wanted 0 <= holdout < 1, and 0 with a validation file"
            )
        for name, low, high in (
            ("epochs", 1, 10**6), ("steps", 0, 2**53), ("rows", 0, 10**6), ("micro", 1, 10**4),
            ("tokens", 1, 2**24), ("seed", 0, 2**63 - 1), ("warmup", 0, 2**53),
            ("evaluate", 0, 2**53), ("save", 0, 2**53), ("keep", 1, 10**6),
        ):  # fmt: skip
            arguments.integer(getattr(self, name), f"[train] {name}", low, high)
        if self.rows and self.micro > 1:
            raise InputError(
                f"[train] micro is {self.micro}, and rows {self.rows}; wanted micro 1, or rows 0: a step is"
                " so many rows, or so many micro-batches"
            )
        if self.evaluate and not (self.holdout or self.validation):
            raise InputError(
                f"[train] evaluate is {self.evaluate}; wanted a validation file, or a holdout, too"
            )
        if self.compute not in COMPUTE:
            raise InputError(f"[train] compute is {self.compute!r}; known: {', '.join(COMPUTE)}")
        if self.checkpointing not in ("none", "block"):
            raise InputError(f"[train] checkpointing is {self.checkpointing!r}; known: none, block")
        _ = self.optimiser, self.over(max(self.warmup, 1))  # refuse what is wrong

    @property
    def dtype(self) -> DType:
        return COMPUTE[self.compute]

    @property
    def rate(self) -> float:
        """The learning rate."""
        return RATES["full"] if self.lr is None else self.lr

    @property
    def optimiser(self) -> AdamW:
        groups = tuple(make(Group, group) for group in self.groups)
        return AdamW(self.beta1, self.beta2, self.eps, self.decay, self.clip, groups)

    @property
    def pace(self) -> Pace:
        return Pace(self.evaluate, self.save, self.keep)

    def over(self, steps: int) -> Schedule:
        """The schedule over so many steps."""
        return Schedule(self.rate, steps, min(self.warmup, steps), self.schedule, self.floor)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finetune(Training):
    """What `finetune` is told, besides.

    model: a file, a folder or a short name. length: most tokens of an example, 0: what the model takes, at
    most `tokens`. method: "full", "lora" or "qlora"; "" is qlora for a packed file or with a base, else lora.
    base: what qlora stands on, "file": the file's own blocks, or "nf4": made of its weights, see
    trivet.train.base.nf4; "" is the first for a packed file, else the second. nf4_block, nf4_double: NF4's
    block, and whether its scales are quantised, too. rank, alpha, dropout, rslora, targets: see
    trivet.lora.Lora."""

    model: str
    length: int = 0
    train_on: str = "assistant"
    method: str = ""
    base: str = ""
    nf4_block: int = 64
    nf4_double: bool = True
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    rslora: bool = False
    targets: tuple[str, ...] = ("all",)

    def __post_init__(self) -> None:
        if self.method not in ("", *METHODS):
            raise InputError(f"[train] method is {self.method!r}; known: {', '.join(METHODS)}")
        if self.base not in ("", *BASES):
            raise InputError(f"[train] base is {self.base!r}; known: {', '.join(BASES)}")
        if self.base and self.method not in ("", "qlora"):
            raise InputError(f"[train] base is {self.base!r}, which is for qlora; method is {self.method!r}")
        if self.nf4_block not in NF4_BLOCKS:
            raise InputError(
                f"[train] nf4_block is {self.nf4_block}; known: {', '.join(map(str, NF4_BLOCKS))}"
            )
        arguments.integer(self.length, "[train] length", 0, self.tokens)
        _ = self.lora  # refuses what is wrong
        Training.__post_init__(self)

    @property
    def rate(self) -> float:
        return RATES[self.method or "qlora"] if self.lr is None else self.lr

    @property
    def lora(self) -> Lora:
        return Lora(self.rank, self.alpha, self.dropout, self.rslora, tuple(self.targets))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrain(Training):
    """What `pretrain` is told, besides.

    style, layers, width, heads, kv_heads, hidden, context: see trivet.models.scratch.Sizes. tokenizer:
    "byte", or "bpe" of `vocab` tokens (0: 4096), made from the data. The rest is what suits such models."""

    style: str = "llama"
    layers: int = 6
    width: int = 384
    heads: int = 6
    kv_heads: int = 0
    hidden: int = 0
    context: int = 256
    tokenizer: str = "byte"
    vocab: int = 0
    warmup: int = 50
    decay: float = 0.1
    beta2: float = 0.99

    def __post_init__(self) -> None:
        if self.tokenizer not in TOKENIZERS:
            raise InputError(f"[train] tokenizer is {self.tokenizer!r}; known: {', '.join(TOKENIZERS)}")
        if self.tokenizer == "byte" and self.vocab not in (0, train_bpe.LEAST):
            raise InputError(f"[train] vocab is {self.vocab}; a byte tokenizer has {train_bpe.LEAST} tokens")
        if self.vocab:
            arguments.integer(self.vocab, "[train] vocab", train_bpe.LEAST, train_bpe.MOST)
        _ = self.sizes  # refuses what is wrong
        Training.__post_init__(self)
        arguments.integer(self.context, "[train] context", 2, self.tokens)

    @property
    def rate(self) -> float:
        return RATES["pretrain"] if self.lr is None else self.lr

    @property
    def tokens_wanted(self) -> int:
        """The size of the vocabulary."""
        return self.vocab or (train_bpe.LEAST if self.tokenizer == "byte" else USUAL_VOCAB)

    @property
    def sizes(self) -> Sizes:
        return Sizes(
            style=self.style, layers=self.layers, width=self.width, heads=self.heads, kv_heads=self.kv_heads,
            hidden=self.hidden, context=self.context,
        )  # fmt: skip


def make(kind: type[C], given: Mapping[str, Any]) -> C:
    """The settings of a recipe from named values. Raises InputError for a name or a type that is wrong, or a
    value that is missing."""
    hints = get_type_hints(kind)
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    values = {}
    for name, value in given.items():
        if name not in known:
            raise InputError(f"[config] no setting {name!r}; known: {', '.join(known)}")
        values[name] = _typed(name, value, hints[name])
    for name, f in known.items():
        if (
            name not in values
            and f.default is dataclasses.MISSING
            and f.default_factory is dataclasses.MISSING
        ):
            raise InputError(f"[config] {name} is missing")
    return kind(**values)


def _typed(name: str, value: Any, hint: Any) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint == float | None:
        return None if value is None else _typed(name, value, float)
    if hint in (int, float, str, bool):
        if type(value) is not hint:
            raise InputError(f"[config] {name} is {value!r:.80}; wanted: {hint.__name__}")
        if hint is str and "\0" in value:
            raise InputError(f"[config] {name} is {value!r:.80}; wanted text without a zero byte")
        return value
    if isinstance(value, list | tuple) and name != "columns":
        kind, what = (Mapping, "tables") if name == "groups" else (str, "names")
        if not all(isinstance(item, kind) for item in value):
            raise InputError(f"[config] {name} is {value!r}; wanted a list of {what}")
        return tuple(value)
    if name == "columns" and isinstance(value, Mapping) and all(isinstance(v, str) for v in value.values()):
        return dict(value)
    raise InputError(
        f"[config] {name} is {value!r}; wanted {'a table' if name == 'columns' else 'a list'} of names"
    )


def read(path: str | Path) -> dict[str, Any]:
    """The values of a TOML file. Raises FileError."""
    text = read_text("config", Path(path))
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"[config] {path}: {error}") from None


def as_dict(config: Any) -> dict[str, Any]:
    """The settings as plain data, as a checkpoint keeps them."""
    return {f.name: list(v) if isinstance(v := getattr(config, f.name), tuple) else v for f in fields(config)}
