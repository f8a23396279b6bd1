"""Tune a model on your data: LoRA, QLoRA on a packed file as it is, or every weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trivet.cli.output import DeviceOption, JsonOption, ThreadsOption, emit_json
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
from trivet.errors import InputError

#: options that are no settings of the run
APART = ("resume", "config", "track", "dry_run", "device", "threads", "as_json")
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
    session = _session(given(locals(), APART), resume, config, device, threads)
    if dry_run:
        _dry(session, as_json)
        return
    from trivet.cli.training import watching
    from trivet.train.track import tracker

    trackers = [tracker(name, session.folder) for name in track or []]
    with watching(as_json) as watch:
        run = session.run([watch, *trackers])
    _report(run, session, as_json)


def _session(
    settings: dict[str, Any], resume: Path | None, config: Path | None, device: str, threads: int
) -> Any:
    from trivet.train import config as configs
    from trivet.train.finetune import Session, reopen

    if resume is not None:
        if settings or config:
            raise InputError("[finetune] --resume goes on with the run's own settings; give no others")
        return reopen(resume, device, threads)
    settings["columns"] = _columns(settings.pop("column", None))
    settings["targets"] = settings.pop("target", None)
    values = {**(configs.read(config) if config else {}), **given(settings)}
    if "out" not in values and "data" in values:
        values["out"] = Path(str(values["data"])).stem
    return Session(configs.make(configs.Finetune, values), device, threads)


def _columns(pairs: list[str] | None) -> dict[str, str] | None:
    if not pairs:
        return None
    if any("=" not in pair for pair in pairs):
        raise InputError(f"[finetune] --column is {pairs!r}; wanted FIELD=COLUMN, such as prompt=question")
    return dict(pair.split("=", 1) for pair in pairs)


def _dry(session: Any, as_json: bool) -> None:
    from dataclasses import asdict

    from trivet.cli.training import summary

    plan = session.planned(measure=True)
    if as_json:
        emit_json(asdict(plan))
    else:
        for line in session.notes:
            print(line)
        print(summary(plan))


def _report(run: Any, session: Any, as_json: bool) -> None:
    loss = run.losses[-1][1] if run.losses else None
    held = run.validation[-1][1] if run.validation else None
    if as_json:
        emit_json({
            "folder": str(run.folder), "finished": run.finished, "steps": run.steps, "loss": loss,
            "validation": held, "result": str(run.result) if run.result else None,
            "seconds": round(run.seconds, 3), "notes": run.notes,
        })  # fmt: skip
    elif run.finished:
        print(f"{run.steps} steps in {run.seconds:.0f} s" + (f", validation loss {held:.4f}" if held else ""))
        print(f"wrote {run.result}, {run.folder / 'loss.svg'}")
        what = (
            f"{run.result}"
            if session.config.method == "full"
            else f"{session.config.model} --adapter {run.result}"
        )
        print(f"next: trivet chat {what}")
    else:
        print(f"stopped after step {run.steps}; go on with: trivet finetune --resume {run.folder}")
