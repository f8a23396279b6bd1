"""Tune a model on your data: LoRA, QLoRA, or every weight."""

from __future__ import annotations

from trivet.cli.output import DeviceOption, JsonOption, ThreadsOption
from trivet.cli.training_options import (
    AlphaOption,
    CheckpointingOption,
    ClipOption,
    ColumnOption,
    ComputeOption,
    ConfigOption,
    DataArgument,
    DecayOption,
    DropoutOption,
    DryRunOption,
    EpochsOption,
    EvaluateOption,
    HoldoutOption,
    KeepOption,
    LengthOption,
    LrOption,
    MethodOption,
    MicroOption,
    OutOption,
    RankOption,
    ResumeOption,
    RowsOption,
    RsloraOption,
    SaveOption,
    ScheduleOption,
    SeedOption,
    SkipRefusedOption,
    StepsOption,
    TargetOption,
    TokensOption,
    TrackOption,
    TrainOnOption,
    TunedArgument,
    ValidationOption,
    WarmupOption,
    given,
)

EXAMPLE = "trivet finetune smollm2-135m orders.jsonl --out orders --epochs 3"


def finetune(
    model: TunedArgument = None,
    data: DataArgument = None,
    out: OutOption = None,
    resume: ResumeOption = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    method: MethodOption = None,
    validation: ValidationOption = None,
    holdout: HoldoutOption = None,
    epochs: EpochsOption = None,
    steps: StepsOption = None,
    rows: RowsOption = None,
    micro: MicroOption = None,
    tokens: TokensOption = None,
    length: LengthOption = None,
    lr: LrOption = None,
    schedule: ScheduleOption = None,
    warmup: WarmupOption = None,
    rank: RankOption = None,
    alpha: AlphaOption = None,
    dropout: DropoutOption = None,
    rslora: RsloraOption = None,
    target: TargetOption = None,
    decay: DecayOption = None,
    clip: ClipOption = None,
    compute: ComputeOption = None,
    checkpointing: CheckpointingOption = None,
    train_on: TrainOnOption = None,
    column: ColumnOption = None,
    evaluate: EvaluateOption = None,
    save: SaveOption = None,
    keep: KeepOption = None,
    seed: SeedOption = None,
    skip_refused: SkipRefusedOption = None,
    track: TrackOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    settings = given(locals())
    from trivet.cli.training import carry_out, opened

    session = opened("finetune", settings, resume, config, device, threads)
    carry_out(session, dry_run, track, as_json)
