"""Tune a model on your data: LoRA, QLoRA on a packed file as it is, or every weight."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trivet.cli.output import DeviceOption, JsonOption, ThreadsOption, emit_json
from trivet.errors import InputError

EXAMPLE = "trivet finetune smollm2-135m orders.jsonl --out orders --epochs 3"


def finetune(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A file, a folder or a short name.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="JSONL (messages, prompt/completion, text ...) or text."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="The run's folder; DATA's name without its ending.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings; flags win.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and stop.")] = False,
    method: Annotated[
        str | None, typer.Option(help="full, lora or qlora. [qlora on a packed file, else lora]")
    ] = None,
    validation: Annotated[str | None, typer.Option(help="A file to measure on.")] = None,
    holdout: Annotated[float | None, typer.Option(help="Or: the fraction of DATA to measure on.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Times over the data. [1]")] = None,
    steps: Annotated[int | None, typer.Option(help="Or: so many steps.")] = None,
    rows: Annotated[int | None, typer.Option(help="Examples of a step; 0: fill --micro batches. [8]")] = None,
    micro: Annotated[int | None, typer.Option(help="Micro-batches of a step, with --rows 0. [1]")] = None,
    tokens: Annotated[int | None, typer.Option(help="Most tokens of a micro-batch. [2048]")] = None,
    length: Annotated[int | None, typer.Option(help="Most tokens of an example. [what fits]")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate. [2e-4, full: 2e-5]")] = None,
    schedule: Annotated[str | None, typer.Option(help="constant, linear or cosine. [cosine]")] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps over which the learning rate rises. [0]")] = None,
    rank: Annotated[int | None, typer.Option(help="Rank of the adapters. [16]")] = None,
    alpha: Annotated[float | None, typer.Option(help="Their scale is alpha / rank. [32]")] = None,
    dropout: Annotated[float | None, typer.Option(help="On the adapters' input. [0]")] = None,
    rslora: Annotated[bool | None, typer.Option("--rslora", help="Scale by alpha / sqrt(rank).")] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="What to adapt: all, a module (q_proj), a pattern. Repeatable. [all]"),
    ] = None,
    decay: Annotated[float | None, typer.Option(help="Weight decay of matrices. [0]")] = None,
    clip: Annotated[float | None, typer.Option(help="Largest norm of the gradients; 0: any. [1]")] = None,
    compute: Annotated[str | None, typer.Option(help="f32 or bf16. [f32]")] = None,
    checkpointing: Annotated[
        str | None, typer.Option(help="none, or block: less memory, more work. [none]")
    ] = None,
    train_on: Annotated[str | None, typer.Option(help="assistant, or all. [assistant]")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="The file's name of a field: prompt=question.")
    ] = None,
    evaluate: Annotated[
        int | None, typer.Option(help="Measure every so many steps; 0: at the end. [0]")
    ] = None,
    save: Annotated[int | None, typer.Option(help="Save every so many steps; 0: at the end. [0]")] = None,
    keep: Annotated[int | None, typer.Option(help="Checkpoints to keep, besides the best. [2]")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the order of examples and first values. [0]")] = None,
    skip_refused: Annotated[
        bool | None, typer.Option("--skip-refused", help="Go on without rows that cannot be used.")
    ] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    from trivet.cli.training import given

    settings = given(
        model=model, data=data, out=out, method=method, validation=validation, holdout=holdout, epochs=epochs,
        steps=steps, rows=rows, micro=micro, tokens=tokens, length=length, lr=lr, schedule=schedule,
        warmup=warmup, rank=rank, alpha=alpha, dropout=dropout, rslora=rslora, targets=target or None,
        decay=decay, clip=clip, compute=compute, checkpointing=checkpointing, train_on=train_on,
        columns=_columns(column), evaluate=evaluate, save=save, keep=keep, seed=seed,
        skip_refused=skip_refused,
    )  # fmt: skip
    if resume is not None and (settings or config):
        raise InputError(
            f"[finetune] --resume goes on with the run's own settings; without {', '.join(settings)}"
        )
    from trivet.cli.training import watching
    from trivet.train import config as configs
    from trivet.train.finetune import Session, reopen

    if resume is not None:
        session = reopen(resume, device, threads)
    else:
        values = {**(configs.read(config) if config else {}), **settings}
        if "out" not in values and "data" in values:
            values["out"] = Path(str(values["data"])).stem
        session = Session(configs.make(configs.Finetune, values), device, threads)
    if dry_run:
        _dry(session, as_json)
        return
    with watching(as_json) as watch:
        run = session.run(watch)
    _report(run, session, as_json)


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
