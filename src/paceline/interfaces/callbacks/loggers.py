"""Loggers: callbacks that write losses and evaluations to files or a tracker while the run goes on.

    on_train_start      ──▶ sink.open
    on_update_end       ──▶ sink.write, at most once a second: the training loss and the speed
    on_evaluation_end   ──▶ sink.write: every figure of the evaluation
    on_train_end,
    on_exception        ──▶ sink.close

A sink is a class for each kind; its name for `loggers=` is a row of `SINKS`.
"""

from __future__ import annotations

import csv
import importlib.util
import inspect
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar, final

from paceline.errors import UsageError, suggest
from paceline.interfaces.callbacks import Training
from paceline.runtime.report.exports import tensorboard_events
from paceline.runtime.report.formatting import cell
from paceline.runtime.runs.progress import Progress
from paceline.runtime.runs.record import Evaluation, RunRecord, read_record
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.schema import to_dict
from paceline.runtime.runs.trace import Kind

# `wandb`: a run of Weights & Biases. With WANDB_MODE=offline it is written to the run's folder, for `wandb sync`.


@final
class WandbRun:
    """A run with the name of the run's folder and the settings of its job. The step of a figure is the update.

    project   the project that it belongs to; default: WANDB_PROJECT, or paceline
    mode      online, offline or disabled; default: WANDB_MODE, or online
    """

    def __init__(self, project: str = "", mode: str = "") -> None:
        require("wandb", "the logger wandb")
        self.project, self.mode = project, mode
        self._run: Any = None

    def open(self, folder: Path, record: RunRecord) -> None:
        import wandb

        config: dict[str, Any] = {"plan": record.plan, "workers": record.workers, **to_dict(record.job)}
        self._run = wandb.init(
            project=self.project or os.environ.get("WANDB_PROJECT") or "paceline",
            name=folder.name,
            id=folder.name,
            resume="allow",
            dir=str(folder),
            config=config,
            reinit="create_new",
            mode=self.mode or None,  # type: ignore[arg-type]
        )

    def write(self, updates: int, seconds: float, figures: Mapping[str, float]) -> None:
        # W&B drops a row whose step is smaller than the last one: an evaluation may come after later updates.
        self._run.log({**figures, "updates": updates, "seconds": seconds})

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


# `mlflow`: a run of MLflow, on the server of MLFLOW_TRACKING_URI, or in `mlruns/` beside the run's folder.

TAG = "paceline.run"  # holds the name of the run's folder, by which a resumed run finds its run of MLflow


@final
class MlflowRun:
    """A run with the name of the run's folder and the settings of its job. The step of a figure is the update.

    uri          where it is kept; default: MLFLOW_TRACKING_URI, or the folder `mlruns` beside the run's folder
    experiment   the experiment that it belongs to
    """

    def __init__(self, uri: str = "", experiment: str = "paceline") -> None:
        require("mlflow", "the logger mlflow")
        self.uri, self.experiment = uri, experiment
        self._client: Any = None
        self._run = ""

    def open(self, folder: Path, record: RunRecord) -> None:
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"file:{folder.resolve().parent / 'mlruns'}"
        if uri.startswith("file:"):  # MLflow 3 wants to be told that files are meant
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient

        self._client = client = MlflowClient(tracking_uri=uri)
        stored_experiment = client.get_experiment_by_name(self.experiment)
        experiment = stored_experiment.experiment_id if stored_experiment else client.create_experiment(self.experiment)
        runs = client.search_runs([experiment], f"tags.`{TAG}` = '{folder.name}'", max_results=1)
        if runs:
            self._run = runs[0].info.run_id
            client.update_run(self._run, status="RUNNING")
            return
        self._run = client.create_run(experiment, tags={TAG: folder.name}, run_name=folder.name).info.run_id
        for name, value in {"plan": record.plan, "workers": record.workers, **to_dict(record.job)}.items():
            client.log_param(self._run, name, value)

    def write(self, updates: int, seconds: float, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[Metric(name, v, now, updates) for name, v in figures.items()])

    def close(self, failed: bool) -> None:
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


# `tensorboard`: an event file in `tensorboard/` of the run's folder. `tensorboard --logdir runs` shows runs live.


@final
class EventFile:
    """An event file of its own for each life of a run, as TensorBoard's own writers make. It needs no TensorBoard."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        #: Seconds since 1970, when this life of the run had made no update.
        self._started = 0.0

    def open(self, folder: Path, record: RunRecord) -> None:
        place = folder / "tensorboard"
        place.mkdir(exist_ok=True)
        self._started = time.time()
        self._file = (place / f"events.out.tfevents.{self._started:.6f}.paceline").open("wb")
        self._file.write(tensorboard_events([], self._started, head=True))
        self._file.flush()

    def write(self, updates: int, seconds: float, figures: Mapping[str, float]) -> None:
        assert self._file is not None
        scalars = [(name, updates, value, seconds) for name, value in figures.items()]
        self._file.write(tensorboard_events(scalars, self._started, head=False))
        self._file.flush()

    def close(self, failed: bool) -> None:
        if self._file is not None:
            self._file.close()


# `csv`: `metrics.csv` in the run's folder, a row per figure.


@final
class CsvFile:
    """Rows of updates, seconds, the name of a figure and its value."""

    def __init__(self) -> None:
        self._file: IO[str] | None = None

    def open(self, folder: Path, record: RunRecord) -> None:
        path = folder / "metrics.csv"
        begun = path.exists()
        self._file = path.open("a", encoding="utf-8", newline="")
        if not begun:
            self._rows([("updates", "seconds", "name", "value")])

    def write(self, updates: int, seconds: float, figures: Mapping[str, float]) -> None:
        self._rows([(updates, f"{seconds:.3f}", cell(name), value) for name, value in figures.items()])

    def close(self, failed: bool) -> None:
        if self._file is not None:
            self._file.close()

    def _rows(self, rows: Sequence[tuple[object, ...]]) -> None:
        assert self._file is not None
        csv.writer(self._file).writerows(rows)
        self._file.flush()


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


# Callbacks and loggers as words: `name:option=value,option=value`, as plans are written.

Made = TypeVar("Made")


def parsed(make: Callable[..., Made], text: str, what: str, *first: Any) -> Made:
    """Call `make` with the options after the colon of a text, each of the type of its default."""
    name, _, rest = text.partition(":")
    defaults = {
        key: parameter.default
        for key, parameter in list(inspect.signature(make).parameters.items())[len(first) :]
        if parameter.default is not inspect.Parameter.empty
    }
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UsageError(
                f"{what} {text!r}: {part!r} is no option=value, as in {name}:{next(iter(defaults), 'x')}=..."
            )
        if key not in defaults:
            raise UsageError(f"{what} {name} has no option {key!r}; {suggest(key, defaults)}")
        options[key] = _value(value, defaults[key], f"{what} {name}: {key}")
    return make(*first, **options)


def _value(text: str, default: Any, where: str) -> Any:
    kind = type(default) if isinstance(default, int | float) else str
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{where}={text!r} is not {'a whole number' if kind is int else 'a number'}") from None


def named_callbacks(early_stopping: str | None, best_checkpoint: str | None) -> list[Any]:
    """Return the callbacks that a command line names, each by its metric and options."""
    from paceline.interfaces.callbacks.watching import BestCheckpoint, EarlyStopping

    requests = (
        ("early stopping by", EarlyStopping, early_stopping),
        ("best checkpoint by", BestCheckpoint, best_checkpoint),
    )
    return [parsed(make, text, what, text.partition(":")[0]) for what, make, text in requests if text is not None]


def require(package: str, what: str) -> None:
    """Raise UsageError if a package is not installed that an extra of Paceline brings."""
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{what} needs the package {package}; install it by: pip install 'paceline[{package}]'")
