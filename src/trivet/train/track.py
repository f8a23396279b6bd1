"""A run's numbers for other programs to show: TensorBoard and trackio. Packages of the extra `track`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from trivet.errors import InputError, UnsupportedError
from trivet.train.events import Evaluated, Event, Planned, Stepped, Watch


def numbers(event: Event) -> tuple[int, dict[str, float]] | None:
    """The step of an event and what there is to draw of it, if anything."""
    if isinstance(event, Stepped):
        r = event.report
        rate = r.tokens / event.seconds if event.seconds else 0.0
        found = {"train/learning_rate": event.lr, "train/epoch": event.epoch, "train/tokens_per_second": rate}
        return r.step, found if r.skipped else {"train/loss": r.loss, "train/gradient_norm": r.norm, **found}
    if isinstance(event, Evaluated):
        return event.step, {"validation/loss": event.loss}
    return None


def tensorboard(folder: Path) -> Watch:
    """Writes event files into `folder`/tensorboard: tensorboard --logdir `folder`."""
    try:
        from tensorboardX import SummaryWriter  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise _missing("tensorboard", "tensorboardX") from None
    writer = SummaryWriter(str(folder / "tensorboard"))

    def watch(event: Event) -> None:
        step, found = numbers(event) or (0, {})
        for name, value in found.items():
            writer.add_scalar(name, value, step)
        if isinstance(event, Evaluated):
            writer.flush()

    return watch


def trackio(folder: Path) -> Watch:
    """Logs to trackio, in a project of the folder's name, kept on this machine: trackio show."""
    try:
        import trackio as client
    except ImportError:
        raise _missing("trackio", "trackio") from None

    def watch(event: Event) -> None:
        if isinstance(event, Planned):
            config: dict[str, Any] = {
                "method": event.method,
                "steps": event.steps,
                "examples": event.examples,
            }
            with redirect_stdout(StringIO()):  # it would print
                client.init(project=folder.resolve().name, config=config, embed=False)
        elif (found := numbers(event)) is not None:
            client.log(found[1], step=found[0])

    return watch


TRACKERS: dict[str, Callable[[Path], Watch]] = {"tensorboard": tensorboard, "trackio": trackio}


def found(name: str) -> Callable[[Path], Watch]:
    """What makes the watcher of that name."""
    if name not in TRACKERS:
        raise InputError(f"[track] no tracker {name!r}; known: {', '.join(TRACKERS)}")
    return TRACKERS[name]


def tracker(name: str, folder: Path) -> Watch:
    """The watcher of that name."""
    return found(name)(folder)


def _missing(name: str, package: str) -> UnsupportedError:
    return UnsupportedError(f"[track] {name} wants the package {package}: pip install 'trivet[track]'")
