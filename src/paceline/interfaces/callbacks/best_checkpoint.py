"""BestCheckpoint: keep the model of the best evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

from paceline.errors import UsageError
from paceline.errors.arguments import check_arguments
from paceline.interfaces.callbacks import Training, require_figure
from paceline.interfaces.callbacks.metric import Best
from paceline.runtime.runs.json_files import draft_of
from paceline.runtime.runs.record import Evaluation


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
