"""EarlyStopping: end a run whose evaluations do not improve any more."""

from __future__ import annotations

from typing import Any, final

from paceline.errors import whole
from paceline.errors.arguments import check_arguments
from paceline.interfaces.callbacks import Training, require_figure
from paceline.interfaces.callbacks.metric import Best
from paceline.runtime.runs.record import Evaluation


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
