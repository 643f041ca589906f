"""Callbacks: functions that `train` calls in the parent process while workers train.

    train(job, "downpour", workers=2, callbacks=[EarlyStopping("test_accuracy"), BestCheckpoint()], loggers=["csv"])

A callback is any object with some of the hooks of `Callback`. All hooks run in the process that called `train`, never
in a worker. What a hook raises ends the run. With callbacks that have `on_evaluation_end` the test data are evaluated
while workers train, which takes time of a core; without, after the training.

    watching        EarlyStopping, BestCheckpoint
    progress_bar    ProgressBar
    loggers         csv, tensorboard, wandb and mlflow: the names for `loggers=`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, final

from paceline.errors import UsageError, suggest
from paceline.runtime.runs.progress import Progress
from paceline.runtime.runs.record import Evaluation
from paceline.runtime.runs.run import Run

HOOKS = ("on_train_start", "on_update_end", "on_evaluation_end", "on_checkpoint", "on_exception", "on_train_end")


@final
class Training:
    """The run that a hook is called about."""

    def __init__(
        self,
        job: str,
        plan: str,
        folder: Path | None,
        total_updates: int,
        figures: Sequence[str] = (),
        updates_per_epoch: int = 0,
        metrics: Sequence[str] = (),
    ) -> None:
        self.job, self.plan, self.folder, self.total_updates = job, plan, folder, total_updates
        #: Updates of a pass over the data; 0 where it is not known.
        self.updates_per_epoch = updates_per_epoch
        #: The names of an evaluation's figures, as far as a few samples show them; none without test data. A metric
        #: of `metrics` may give further ones, `name_...`, with more samples.
        self.figures, self.metrics = figures, metrics
        #: Why the run is to stop; None while it is not.
        self.stopping: str | None = None
        #: Set by the engine where a run can be stopped: requests a checkpoint after which it ends.
        self.request_stop: Callable[[], None] | None = None
        #: Why this run cannot be stopped by a callback.
        self.cannot_stop = "only a run of engine='local', 'cluster' or 'ray' with a folder can be stopped by a callback"

    def stop(self, reason: str) -> None:
        """End the run after its next checkpoint; `train` returns the run as it was then, and it can be resumed."""
        if self.request_stop is None:
            raise UsageError(f"{self.cannot_stop}; leave out the callback that stops it")
        if self.stopping is None:
            self.stopping = reason
            self.request_stop()


def require_figure(training: Training, callback: object, figure: str) -> None:
    """Raise UsageError for a callback that follows a figure which no evaluation of this run has."""
    name = type(callback).__name__
    if not training.figures:
        raise UsageError(f"{name} follows evaluations, and this job has no test data; give test=, or leave {name} out")
    if figure not in training.figures and not any(figure.startswith(f"{metric}_") for metric in training.metrics):
        raise UsageError(
            f"{name} follows {figure!r}, and there is no such figure in an evaluation of this job; "
            f"{suggest(figure, training.figures)}"
        )


class Callback(Protocol):
    """The hooks, which do nothing. A callback may also be an object of its own with just some of them."""

    def on_train_start(self, training: Training) -> None:
        """The run begins: its folder exists, its workers do not."""

    def on_update_end(self, training: Training, progress: Progress) -> None:
        """Updates were made since the last call: about ten times a second, not once per update (engine="local")."""

    def on_evaluation_end(self, training: Training, evaluation: Evaluation, model: Any) -> None:
        """The test data were evaluated with this model, a torch module that no other hook sees."""

    def on_checkpoint(self, training: Training, path: Path) -> None:
        """A checkpoint lies complete in this folder."""

    def on_exception(self, training: Training, error: BaseException) -> None:
        """The run ends by an error, or by a signal."""

    def on_train_end(self, training: Training, run: Run) -> None:
        """The run is done, or was stopped by a callback; everything is written."""


def check(callbacks: Sequence[Any]) -> None:
    """Raise UsageError for an object that has no hook, or one with a misspelt name."""
    for callback in callbacks:
        if isinstance(callback, type):
            raise UsageError(f"callbacks: {callback.__name__} is a class; give an object, as in {callback.__name__}()")
        names = [name for name in dir(callback) if name.startswith("on_") and callable(getattr(callback, name))]
        if not names:
            raise UsageError(f"callbacks: {callback!r:.60} has none of the hooks {', '.join(HOOKS)}")
        for name in names:
            if name not in HOOKS:
                raise UsageError(f"callbacks: {type(callback).__name__}.{name} is no hook; {suggest(name, HOOKS)}")


def any_implements(callbacks: Sequence[Any], hook: str) -> bool:
    """Return whether any callback has a hook of its own of this name."""
    return any(_own(callback, hook) is not None for callback in callbacks)


def call(callbacks: Sequence[Any], hook: str, *arguments: Any) -> None:
    """Call a hook of all callbacks, in their order."""
    for callback in callbacks:
        if (function := _own(callback, hook)) is not None:
            function(*arguments)


def _own(callback: Any, hook: str) -> Callable[..., None] | None:
    """Return the callback's hook; None where it has none, or only the one of `Callback`, which does nothing."""
    function = getattr(callback, hook, None)
    return None if getattr(function, "__func__", None) is getattr(Callback, hook) else function
