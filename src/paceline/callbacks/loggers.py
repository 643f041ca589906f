"""Loggers: callbacks that write losses and evaluations to files while the run goes on.

csv           metrics.csv: a row per report and per evaluation
tensorboard   tensorboard/: an event file; `tensorboard --logdir runs` shows all runs live
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, final

from paceline.callbacks import Training
from paceline.errors import UsageError, suggest
from paceline.report.tensorboard import Scalar, events
from paceline.runs.progress import Progress
from paceline.runs.record import Evaluation
from paceline.runs.run import Run

EVERY = 1.0  # seconds between two rows of the training itself, at least


class _Pace:
    """Lets a report through every so often."""

    def __init__(self) -> None:
        self._next = 0.0

    def due(self, seconds: float) -> bool:
        if seconds < self._next:
            return False
        self._next = seconds + EVERY
        return True


@final
class CsvLogger:
    """Write `metrics.csv` into the run's folder: updates, seconds, the name of a figure and its value."""

    def __init__(self) -> None:
        self._file: IO[str] | None = None
        self._pace = _Pace()

    def on_train_start(self, training: Training) -> None:
        """Open the file; a resumed run goes on in it."""
        path = _folder(training, "csv") / "metrics.csv"
        begun = path.exists()
        self._file = path.open("a", newline="")
        if not begun:
            self._write([("updates", "seconds", "name", "value")])

    def on_update_end(self, training: Training, progress: Progress) -> None:
        """Write the training loss and the speed."""
        if self._pace.due(progress.seconds):
            figures = _of_progress(progress)
            self._write([(progress.updates, f"{progress.seconds:.3f}", name, value) for name, value in figures.items()])

    def on_evaluation_end(self, training: Training, evaluation: Evaluation, model: Any) -> None:
        """Write every figure of an evaluation."""
        where = evaluation.updates, f"{evaluation.seconds:.3f}"
        self._write([(*where, name, value) for name, value in evaluation.metrics.items()])

    def on_exception(self, training: Training, error: BaseException) -> None:
        """Close the file."""
        self._close()

    def on_train_end(self, training: Training, run: Run) -> None:
        """Close the file."""
        self._close()

    def _write(self, rows: Sequence[tuple[object, ...]]) -> None:
        assert self._file is not None
        csv.writer(self._file).writerows(rows)
        self._file.flush()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()


@final
class TensorBoardLogger:
    """Write an event file into `tensorboard/` of the run's folder. TensorBoard itself is not needed to write it."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._pace = _Pace()
        self._started = 0.0  # seconds since 1970, when the run had made no update

    def on_train_start(self, training: Training) -> None:
        """Open an event file of its own, as TensorBoard's own writers do."""
        folder = _folder(training, "tensorboard") / "tensorboard"
        folder.mkdir(exist_ok=True)
        self._started = time.time()
        self._file = (folder / f"events.out.tfevents.{self._started:.6f}.paceline").open("wb")
        self._write([], head=True)

    def on_update_end(self, training: Training, progress: Progress) -> None:
        """Write the training loss and the speed."""
        if self._pace.due(progress.seconds):
            at = progress.updates, progress.seconds
            self._write([(name, at[0], value, at[1]) for name, value in _of_progress(progress).items()])

    def on_evaluation_end(self, training: Training, evaluation: Evaluation, model: Any) -> None:
        """Write every figure of an evaluation."""
        at = evaluation.updates, evaluation.seconds
        self._write([(name, at[0], value, at[1]) for name, value in evaluation.metrics.items()])

    def on_exception(self, training: Training, error: BaseException) -> None:
        """Close the file."""
        self._close()

    def on_train_end(self, training: Training, run: Run) -> None:
        """Close the file."""
        self._close()

    def _write(self, scalars: Sequence[Scalar], head: bool = False) -> None:
        assert self._file is not None
        self._file.write(events(scalars, self._started, head))
        self._file.flush()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()


LOGGERS: dict[str, Callable[[], Any]] = {"csv": CsvLogger, "tensorboard": TensorBoardLogger}


def named(loggers: Sequence[Any]) -> list[Any]:
    """Return loggers as callbacks: names are looked up, other objects are callbacks already."""
    if isinstance(loggers, str):
        raise UsageError(f"loggers={loggers!r} is a word; give a list, as in loggers=[{loggers!r}]")
    for logger in loggers:
        if isinstance(logger, str) and logger not in LOGGERS:
            raise UsageError(f"there is no logger {logger!r}; {suggest(logger, LOGGERS)}")
    return [LOGGERS[logger]() if isinstance(logger, str) else logger for logger in loggers]


def _folder(training: Training, name: str) -> Path:
    if training.folder is None:
        raise UsageError(f"the logger {name} writes into the run's folder, and this run has none; give folder=")
    return training.folder


def _of_progress(progress: Progress) -> dict[str, float]:
    figures = {"samples_per_second": progress.samples / progress.seconds if progress.seconds > 0 else 0.0}
    return figures if progress.loss is None else {"train_loss": progress.loss, **figures}
