"""Loggers: callbacks that write losses and evaluations to files or a tracker while the run goes on.

    on_train_start      ──▶ sink.open
    on_update_end       ──▶ sink.write, at most once a second: the training loss and the speed
    on_evaluation_end   ──▶ sink.write: every figure of the evaluation
    on_train_end,
    on_exception        ──▶ sink.close

A sink is a class for each kind; its name for `loggers=` is a row of `SINKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, final

from paceline.errors import UsageError, suggest
from paceline.interfaces.callbacks import Training
from paceline.interfaces.callbacks.loggers.csv_file import CsvFile
from paceline.interfaces.callbacks.loggers.event_file import EventFile
from paceline.interfaces.callbacks.loggers.mlflow_run import MlflowRun
from paceline.interfaces.callbacks.loggers.wandb_run import WandbRun
from paceline.interfaces.callbacks.parsing import parsed
from paceline.runtime.runs.progress import Progress
from paceline.runtime.runs.record import Evaluation, RunRecord, read_record
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.trace import Kind

EVERY = 1.0  # seconds between two rows of the training itself, at least


class Sink(Protocol):
    """Where a logger writes."""

    def open(self, folder: Path, record: RunRecord) -> None:
        """Begin to write about the run in this folder; a resumed run goes on where it was."""

    def write(self, updates: int, seconds: float, figures: Mapping[str, float]) -> None:
        """Write figures as of so many updates, after so many seconds of training."""

    def close(self, failed: bool) -> None:
        """End; the run is done, or has failed."""


@final
class Logger:
    """Writes what happens in a run into a sink."""

    def __init__(self, name: str, sink: Sink) -> None:
        self.name, self.sink = name, sink
        self._open = False
        #: Seconds of training before which nothing more is written about it.
        self._next = 0.0
        #: What workers measured last.
        self._measured: dict[str, float] = {}

    def on_train_start(self, training: Training) -> None:
        """Open the sink."""
        if training.folder is None:
            raise UsageError(
                f"the logger {self.name} writes into the run's folder, and this run has none; give folder="
            )
        self.sink.open(training.folder, read_record(training.folder))
        self._open = True

    def on_update_end(self, training: Training, progress: Progress) -> None:
        """Write the training loss, the speed and what workers measured."""
        self._measured |= _measured(progress)
        if progress.seconds >= self._next:
            self._next = progress.seconds + EVERY
            self.sink.write(progress.updates, progress.seconds, _of_progress(progress) | self._measured)
            self._measured = {}

    def on_evaluation_end(self, training: Training, evaluation: Evaluation, model: Any) -> None:
        """Write every figure of an evaluation."""
        self.sink.write(evaluation.updates, evaluation.seconds, evaluation.metrics)

    def on_exception(self, training: Training, error: BaseException) -> None:
        """Close the sink of a run that failed or was stopped."""
        self._close(failed=True)

    def on_train_end(self, training: Training, run: Run) -> None:
        """Close the sink."""
        self._close(failed=False)

    def _close(self, failed: bool) -> None:
        if self._open:
            self._open = False
            self.sink.close(failed)


SINKS: dict[str, Callable[..., Sink]] = {
    "csv": CsvFile,
    "tensorboard": EventFile,
    "wandb": WandbRun,
    "mlflow": MlflowRun,
}


def named(loggers: Sequence[Any]) -> list[Any]:
    """Return loggers as callbacks: names, with options after a colon, are looked up; other objects are callbacks."""
    return [_logger(each) if isinstance(each, str) else each for each in loggers]


def _logger(text: str) -> Logger:
    name = text.partition(":")[0]
    if name not in SINKS:
        raise UsageError(f"there is no logger {name!r}; {suggest(name, SINKS)}")
    return Logger(name, parsed(SINKS[name], text, "logger"))


def _of_progress(progress: Progress) -> dict[str, float]:
    figures = {"samples_per_second": progress.samples / progress.seconds if progress.seconds > 0 else 0.0}
    return figures if progress.loss is None else {"train_loss": progress.loss, **figures}


def _measured(progress: Progress) -> dict[str, float]:
    """Return the newest learning rate, gradient norm and memory of a worker in these rows, by name."""
    figures = {}
    for kind in (Kind.LEARNING_RATE, Kind.GRADIENT_NORM, Kind.MEMORY):
        for rows in progress.rows:
            values = rows["value"][rows["kind"] == kind]
            if len(values):
                figures[kind.name.lower()] = float(values[-1])
    return figures
