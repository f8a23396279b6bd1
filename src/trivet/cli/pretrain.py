"""Train a small model from scratch on your text."""

from __future__ import annotations

from typing import Annotated

import typer

from trivet.cli.output import DeviceOption, JsonOption, ThreadsOption
from trivet.cli.training_options import (
    CheckpointingOption,
    ClipOption,
    ColumnOption,
    ComputeOption,
    ConfigOption,
    DryRunOption,
    EpochsOption,
    EvaluateOption,
    HoldoutOption,
    KeepOption,
    MeshOption,
    MicroOption,
    OutOption,
    ResumeOption,
    RowsOption,
    SaveOption,
    ScheduleOption,
    SeedOption,
    SkipRefusedOption,
    StepsOption,
    TokensOption,
    TrackOption,
    ValidationOption,
    given,
)

EXAMPLE = "trivet pretrain corpus.txt --out small --style gpt2 --tokenizer bpe --vocab 4096 --steps 1000"


def pretrain(
    data: Annotated[
        str | None, typer.Argument(metavar="CORPUS", help='Text, or JSONL of {"text": ...}.')
    ] = None,
    out: OutOption = None,
    resume: ResumeOption = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    style: Annotated[str | None, typer.Option(help="llama or gpt2. [llama]")] = None,
    layers: Annotated[int | None, typer.Option(help="Decoder blocks. [6]")] = None,
    width: Annotated[int | None, typer.Option(help="Size of the residual stream. [384]")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads. [6]")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Heads of keys and values. [as many]")] = None,
    hidden: Annotated[
        int | None, typer.Option(help="Size inside the MLP. [gpt2: 4 times the width, llama: 8/3]")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Tokens the model sees at once. [256]")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="byte, or bpe made from CORPUS. [byte]")] = None,
    vocab: Annotated[int | None, typer.Option(help="Tokens of the bpe. [4096]")] = None,
    validation: ValidationOption = None,
    holdout: HoldoutOption = None,
    epochs: EpochsOption = None,
    steps: StepsOption = None,
    rows: RowsOption = None,
    micro: MicroOption = None,
    tokens: TokensOption = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate. [1e-3]")] = None,
    schedule: ScheduleOption = None,
    warmup: Annotated[int | None, typer.Option(help="Steps over which the learning rate rises. [50]")] = None,
    decay: Annotated[float | None, typer.Option(help="Weight decay of matrices. [0.1]")] = None,
    clip: ClipOption = None,
    compute: ComputeOption = None,
    checkpointing: CheckpointingOption = None,
    column: ColumnOption = None,
    evaluate: EvaluateOption = None,
    save: SaveOption = None,
    keep: KeepOption = None,
    seed: SeedOption = None,
    skip_refused: SkipRefusedOption = None,
    track: TrackOption = None,
    device: DeviceOption = "auto",
    mesh: MeshOption = None,
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    settings = given(locals())
    from trivet.cli.training import carry_out, opened

    session = opened("pretrain", settings, resume, config, device, threads)
    carry_out(session, dry_run, track, as_json)
