"""The options of the training verbs. None stands for "not given": then the configuration file says, or the
recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from trivet.errors import InputError

TunedArgument = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="A file, a folder or a short name.")
]
DataArgument = Annotated[
    str | None,
    typer.Argument(metavar="DATA", help="JSONL (messages, prompt/completion, text ...) or text."),
]
OutOption = Annotated[str | None, typer.Option(help="The run's folder; DATA's name without its ending.")]
ResumeOption = Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")]
ConfigOption = Annotated[Path | None, typer.Option(help="A TOML file of settings; flags win.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and stop.")]
MethodOption = Annotated[
    str | None, typer.Option(help="full, lora or qlora. [qlora on a packed file, else lora]")
]
BaseOption = Annotated[
    str | None, typer.Option(help="What qlora stands on: file (its own blocks) or nf4. [file if packed]")
]
Nf4BlockOption = Annotated[int | None, typer.Option(help="Elements that share a scale in NF4. [64]")]
Nf4DoubleOption = Annotated[
    bool | None, typer.Option("--nf4-double/--nf4-single", help="Quantise NF4's scales, too. [double]")
]
ValidationOption = Annotated[str | None, typer.Option(help="A file to measure on.")]
HoldoutOption = Annotated[float | None, typer.Option(help="Or: the fraction of DATA to measure on.")]
EpochsOption = Annotated[int | None, typer.Option(help="Times over the data. [1]")]
StepsOption = Annotated[int | None, typer.Option(help="Or: so many steps.")]
RowsOption = Annotated[int | None, typer.Option(help="Examples of a step; 0: fill --micro batches. [8]")]
MicroOption = Annotated[int | None, typer.Option(help="Micro-batches of a step, with --rows 0. [1]")]
TokensOption = Annotated[int | None, typer.Option(help="Most tokens of a micro-batch. [2048]")]
LengthOption = Annotated[int | None, typer.Option(help="Most tokens of an example. [what fits]")]
LrOption = Annotated[float | None, typer.Option(help="Learning rate. [2e-4, full: 2e-5]")]
ScheduleOption = Annotated[str | None, typer.Option(help="constant, linear or cosine. [cosine]")]
WarmupOption = Annotated[int | None, typer.Option(help="Steps over which the learning rate rises. [0]")]
RankOption = Annotated[int | None, typer.Option(help="Rank of the adapters. [16]")]
AlphaOption = Annotated[float | None, typer.Option(help="Their scale is alpha / rank. [32]")]
DropoutOption = Annotated[float | None, typer.Option(help="On the adapters' input. [0]")]
RsloraOption = Annotated[bool | None, typer.Option("--rslora", help="Scale by alpha / sqrt(rank).")]
TargetOption = Annotated[
    list[str] | None,
    typer.Option(help="What to adapt: all, a module (q_proj), a pattern. Repeatable. [all]"),
]
DecayOption = Annotated[float | None, typer.Option(help="Weight decay of matrices. [0]")]
ClipOption = Annotated[float | None, typer.Option(help="Largest norm of the gradients; 0: any. [1]")]
ComputeOption = Annotated[str | None, typer.Option(help="f32 or bf16. [f32]")]
CheckpointingOption = Annotated[
    str | None, typer.Option(help="none, or block: less memory, more work. [none]")
]
TrainOnOption = Annotated[str | None, typer.Option(help="assistant, or all. [assistant]")]
ColumnOption = Annotated[list[str] | None, typer.Option(help="The file's name of a field: prompt=question.")]
EvaluateOption = Annotated[int | None, typer.Option(help="Measure every so many steps; 0: at the end. [0]")]
SaveOption = Annotated[int | None, typer.Option(help="Save every so many steps; 0: at the end. [0]")]
KeepOption = Annotated[int | None, typer.Option(help="Checkpoints to keep, besides the best. [2]")]
SeedOption = Annotated[int | None, typer.Option(help="Of the order of examples and first values. [0]")]
SkipRefusedOption = Annotated[
    bool | None, typer.Option("--skip-refused", help="Go on without rows that cannot be used.")
]
MeshOption = Annotated[
    str | None, typer.Option(help="Several chips: data:4,model:2 divides tokens and matrices. [one]")
]
TrackOption = Annotated[
    list[str] | None, typer.Option(help="Write to tensorboard or trackio, too. Repeatable.")
]


#: options that are no settings of the run
APART = ("resume", "config", "track", "dry_run", "device", "threads", "as_json")


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings among a verb's options that were given."""
    return {name: value for name, value in options.items() if value is not None and name not in APART}


def columns(pairs: list[str] | None) -> dict[str, str] | None:
    """The fields' names of a file from FIELD=COLUMN pairs. Raises InputError."""
    if not pairs:
        return None
    if any("=" not in pair for pair in pairs):
        raise InputError(f"[train] --column is {pairs!r}; wanted FIELD=COLUMN, such as prompt=question")
    return dict(pair.split("=", 1) for pair in pairs)
