"""What the training verbs share: their options, the live view, and the lines where there is no terminal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

import typer

from trivet.cli.output import emit_json, human_bytes, note, program
from trivet.cli.training_options import columns, given
from trivet.errors import InputError
from trivet.train.config import Finetune, Training, read
from trivet.train.curve import Smoothed
from trivet.train.events import Evaluated, Event, Note, Planned, Stepped, Watch
from trivet.train.recipes import prepared, reopen
from trivet.train.session import Run, Session
from trivet.train.track import found
from trivet.train.trainer import resident

BARS = "▁▂▃▄▅▆▇█"
SHOWN = 60  # losses in the small curve
EVERY = 10.0  # seconds between lines where nobody watches


def clock(seconds: float) -> str:
    """
    >>> clock(59), clock(3700)
    ('0:59', '1:01:40')
    """
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


class State:
    """What the view shows, from the events so far."""

    def __init__(self) -> None:
        self.plan: Planned | None = None
        self.last: Stepped | None = None
        self.held: Evaluated | None = None
        self.losses: list[float] = []
        self.smooth = Smoothed()
        self.tokens = 0
        self.seconds = 0.0
        self.steps = 0

    def add(self, event: Event) -> None:
        match event:
            case Planned():
                self.plan = event
            case Evaluated():
                self.held = event
            case Stepped():
                self._step(event)

    def _step(self, event: Stepped) -> None:
        self.last = event
        self.steps += 1
        self.tokens += event.report.tokens
        self.seconds += event.seconds
        if event.report.skipped:
            return
        self.losses = [*self.losses[-SHOWN + 1 :], event.report.loss]
        self.smooth.add(event.report.loss)

    @property
    def left(self) -> float:
        """Seconds to the end, by the mean of the steps so far."""
        if self.plan is None or self.last is None:
            return 0.0
        return (self.plan.steps - self.last.report.step) * self.seconds / self.steps

    def curve(self) -> str:
        """The last losses as bars."""
        low, high = min(self.losses, default=0), max(self.losses, default=0)
        scale = (len(BARS) - 1) / (high - low) if high > low else 0
        return "".join(BARS[round((x - low) * scale)] for x in self.losses)

    def line(self) -> str:
        """One line of text."""
        if self.plan is None or self.last is None:
            return ""
        r = self.last.report
        held = f"  validation {self.held.loss:.4f}" if self.held else ""
        return (
            f"step {r.step}/{self.plan.steps}  loss {r.loss:.4f}  smoothed {self.smooth.mean:.4f}"
            f"{held}  lr {self.last.lr:.2e}  norm {r.norm:.3f}  {self.tokens / self.seconds:,.0f} tokens/s"
            f"  {human_bytes(resident())}  {clock(self.left)} left"
        )


@contextmanager
def watching(quiet: bool) -> Iterator[Watch]:
    """A watcher that shows a run on stderr: a live view on a terminal, else a line every few seconds."""
    state = State()
    if quiet:
        yield lambda event: None
    elif sys.stderr.isatty():
        with _live(state) as show:
            yield show
    else:
        yield _lines(state)


def _lines(state: State) -> Watch:
    shown = [0.0]

    def show(event: Event) -> None:
        state.add(event)
        match event:
            case Note():
                note(event.text)
            case Planned():
                note(summary(event))
            case Stepped() if time.monotonic() - shown[0] > EVERY or state.steps == 1:
                shown[0] = time.monotonic()
                note(state.line())
            case Evaluated():
                note(f"step {event.step}  validation loss {event.loss:.4f}")

    return show


@contextmanager
def _live(state: State) -> Iterator[Watch]:
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    with Live(
        console=console, refresh_per_second=4, get_renderable=lambda: _view(state, console.width)
    ) as live:

        def show(event: Event) -> None:
            state.add(event)
            match event:
                case Note():
                    live.console.print(event.text, style="dim", markup=False, highlight=False)
                case Planned():
                    live.console.print(summary(event), style="dim", markup=False, highlight=False)

        yield show


def _view(state: State, width: int) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    plan, last = state.plan, state.last
    if plan is None or last is None:
        return "the first step: laying out memory ..."
    r = last.report
    wide = width >= SHOWN
    grid = Table.grid(padding=(0, 3, 0, 0))
    rows = [
        ("step", f"{r.step} of {plan.steps}", "epoch", f"{last.epoch:.2f}"),
        ("loss", f"{r.loss:.4f}", "smoothed", f"{state.smooth.mean:.4f}"),
        ("learning rate", f"{last.lr:.2e}", "gradient norm", f"{r.norm:.3f}"),
        ("tokens/s", f"{state.tokens / state.seconds:,.0f}", "memory", human_bytes(resident())),
        ("time left", clock(state.left), "validation", f"{state.held.loss:.4f}" if state.held else "-"),
    ]
    for a, b, c, d in rows:
        cells = (f"[dim]{a}[/]", b), (f"[dim]{c}[/]", d)
        for row in [cells[0] + cells[1]] if wide else cells:
            grid.add_row(*row)
    outer = Table.grid()
    outer.add_row(ProgressBar(total=plan.steps, completed=r.step, width=min(SHOWN, width)))
    outer.add_row(grid)
    outer.add_row(f"[cyan]{state.curve()[-width:]}[/]")
    return outer


def summary(plan: Planned) -> str:
    """What a run is about to do, in a line or two."""
    share = 100 * plan.parameters / plan.of
    text = (
        f"{plan.method}: {plan.parameters:,} of {plan.of:,} parameters ({share:.2f} %),"
        f" {plan.examples} examples, {plan.tokens:,} tokens, {plan.targets:,} trained, {plan.steps} steps"
    )
    if plan.validation:
        text += f", {plan.validation} validation examples"
    if plan.memory:
        text += f", about {human_bytes(plan.memory)} of memory"
    if plan.seconds:
        text += f", about {clock(plan.seconds)} of steps (opening, measuring and saving come on top)"
    return text + (f"; resumed after step {plan.resumed}" if plan.resumed else "")


def opened(
    recipe: str, settings: dict[str, Any], resume: Path | None, config: Path | None, device: str, threads: int
) -> Session:
    """The run that a verb's options ask for, made ready: a new one, or the one in a folder."""
    if resume is not None:
        mesh = settings.pop("mesh", None)
        if settings or config:
            raise InputError(f"[{recipe}] --resume goes on with the run's own settings; give no others")
        return reopen(resume, device, threads, mesh)
    named = {**settings, "columns": columns(settings.get("column")), "targets": settings.get("target")}
    flags = {name: value for name, value in given(named).items() if name not in ("column", "target")}
    values = {**(read(config) if config else {}), **flags}
    if "out" not in values and "data" in values:
        values["out"] = Path(str(values["data"])).stem
    return prepared(recipe, values, device, threads)


def carry_out(session: Session, dry_run: bool, track: list[str] | None, as_json: bool) -> None:
    """Runs a session, or says what it would do, and reports."""
    trackers = [found(name) for name in track or []]
    if dry_run:
        plan = session.planned(measure=True)
        if as_json:
            emit_json(asdict(plan))
        else:
            print("\n".join([*session.notes, summary(plan)]))
        return
    watches = [make(session.folder) for make in trackers]
    with watching(as_json) as watch:
        run = session.run([watch, *watches])
    if as_json:
        emit_json(_facts(run))
    else:
        _report(run, session)
    if not run.finished:
        raise typer.Exit(130)


def _facts(run: Run) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "finished": run.finished,
        "steps": run.steps,
        "loss": _last(run.losses),
        "validation": _last(run.validation),
        "result": str(run.result) if run.result else None,
        "seconds": round(run.seconds, 3),
        "notes": run.notes,
    }


def _last(losses: list[tuple[int, float]]) -> float | None:
    return losses[-1][1] if losses and math.isfinite(losses[-1][1]) else None


def _report(run: Run, session: Session) -> None:
    if not run.finished:
        again = f"{program()} {session.recipe} --resume {quote(str(run.folder))}"
        print(f"stopped after step {run.steps}, and saved; go on with: {again}")
        return
    before = session.saved.step if session.saved else 0
    took = f"{run.steps - before} more steps" if before else f"{run.steps} steps"
    print(f"{took} in {run.seconds:.0f} s{_best(run.validation)}")
    print(f"wrote {', '.join(str(path) for path in (run.result, run.curve) if path)}")
    print(f"next: {program()} {_next(run, session.config)}")


def _best(validation: list[tuple[int, float]]) -> str:
    """The validation loss of what is handed over."""
    finite = [(step, loss) for step, loss in validation if math.isfinite(loss)]
    if not finite:
        return ""
    step, loss = min(finite, key=lambda x: x[1])
    return f", validation loss {loss:.4f}" + (f" at step {step}" if step != validation[-1][0] else "")


def _next(run: Run, config: Training) -> str:
    """The command to type next."""
    if not isinstance(config, Finetune):
        return f'run {quote(str(run.result))} "..."'
    if config.method == "full":
        return f"chat {quote(str(run.result))}"
    return f"chat {quote(config.model)} --adapter {quote(str(run.result))}"
