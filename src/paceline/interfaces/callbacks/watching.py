"""Callbacks that follow a figure of the evaluations: early stopping, and the best checkpoint."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, final

from paceline.errors import UsageError, suggest, whole
from paceline.errors.arguments import check_arguments
from paceline.interfaces.callbacks import Training, require_figure
from paceline.runtime.runs.record import Evaluation
from paceline.runtime.runs.schema import draft_of

MODES = ("max", "min")


class Best:
    """The best value of a metric so far."""

    def __init__(self, metric: str, mode: str | None, min_delta: float) -> None:
        if mode is not None and mode not in MODES:
            raise UsageError(f"mode={mode!r}; {suggest(mode, MODES)}")
        if min_delta < 0:
            raise UsageError(f"min_delta={min_delta} is negative; give the least change that counts, such as 0.001")
        self.metric, self.min_delta = metric, min_delta
        #: 1 where a larger value is better, -1 where a smaller one is: by default, of whatever has "loss" in its name.
        self.sign = -1 if (mode or ("min" if "loss" in metric else "max")) == "min" else 1
        self.value = -math.inf * self.sign

    def improves(self, evaluation: Evaluation) -> bool:
        """Take the evaluation's value, and return whether it is the best so far. NaN never is."""
        if self.metric not in evaluation.metrics:
            raise UsageError(
                f"there is no figure {self.metric!r} in an evaluation of this job; "
                f"{suggest(self.metric, evaluation.metrics)}"
            )
        value = evaluation.metrics[self.metric]
        better = (
            self.sign * (value - self.value) > self.min_delta if math.isfinite(self.value) else not math.isnan(value)
        )
        if better:
            self.value = value
        return better


# EarlyStopping: end a run whose evaluations do not improve any more.


@final
class EarlyStopping:
    """Stop when a figure of the evaluations has not improved for `patience` of them.

    Args:
        metric: The figure: test_accuracy, test_loss or one of `metrics=`.
        patience: Evaluations in a row without an improvement after which the run ends.
        min_delta: The least change that counts as one.
        mode: "max" or "min"; default: "min" for what has "loss" in its name.
    """

    def __init__(
        self, metric: str = "test_loss", *, patience: int = 3, min_delta: float = 0.0, mode: str | None = None
    ) -> None:
        patience = whole("patience", patience, 1)
        check_arguments(EarlyStopping.__init__, locals())
        self.patience, self.best = patience, Best(metric, mode, min_delta)
        #: Evaluations in a row that did not improve.
        self.waited = 0

    def on_train_start(self, training: Training) -> None:
        """Refuse a run without such a figure before it begins."""
        require_figure(training, self, self.best.metric)

    def on_evaluation_end(self, training: Training, evaluation: Evaluation, model: Any) -> None:
        """Count the evaluations without an improvement."""
        self.waited = 0 if self.best.improves(evaluation) else self.waited + 1
        if self.waited >= self.patience and evaluation.updates < training.total_updates:
            metric, value = self.best.metric, self.best.value
            training.stop(f"{metric} has not improved on {value:.4g} for {self.waited} evaluations")


# BestCheckpoint: keep the model of the best evaluation.


@final
class BestCheckpoint:
    """Write the model of the best evaluation so far to `best.pt` in the run's folder: a `state_dict`, as model.pt is.

    Args:
        metric: The figure: test_accuracy, test_loss or one of `metrics=`.
        mode: "max" or "min"; default: "min" for what has "loss" in its name.
        file: Another name in the run's folder.
    """

    def __init__(self, metric: str = "test_loss", *, mode: str | None = None, file: str = "best.pt") -> None:
        check_arguments(BestCheckpoint.__init__, locals())
        if not file or Path(file).name != file:
            raise UsageError(f"file={file!r} is not the name of a file in the run's folder; give one, as 'best.pt' is")
        self.best, self.file = Best(metric, mode, 0.0), file
        #: Where the model lies, and after how many updates it was evaluated; None before the first evaluation.
        self.path: Path | None = None
        self.updates: int | None = None

    def on_train_start(self, training: Training) -> None:
        """Refuse a run without a folder or without such a figure before it begins."""
        require_figure(training, self, self.best.metric)
        if training.folder is None:
            raise UsageError("BestCheckpoint writes into the run's folder, and this run has none; give folder=")

    def on_evaluation_end(self, training: Training, evaluation: Evaluation, model: Any) -> None:
        """Write the model if it is the best so far; the file is replaced atomically."""
        if not self.best.improves(evaluation):
            return
        import torch

        assert training.folder is not None
        self.path, self.updates = training.folder / self.file, evaluation.updates
        with draft_of(self.path) as draft:
            torch.save(model.state_dict(), draft)
