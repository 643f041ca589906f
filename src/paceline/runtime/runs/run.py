"""A finished training, as `train` returns it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.runtime.runs.schema import to_dict
from paceline.runtime.runs.tables import summary_lines
from paceline.text_table import TextList

if TYPE_CHECKING:
    from torch import nn

    from paceline.runtime.runs.record import RunRecord
    from paceline.runtime.runs.trace import Trace
    from paceline.training.jobs.job import Job


@dataclass
class Run:
    """One finished training.

    Attributes:
        path: The run's folder; None if nothing was written.
        trace: What happened, a row per event.
        record: What run.json holds.
        model: The trained model.
        job: The job.
    """

    path: Path | None
    trace: Trace
    record: RunRecord
    model: nn.Module
    job: Job

    def summary(self) -> dict[str, Any]:
        """The figures of the run, as `paceline train --json` prints them."""
        document: dict[str, Any] = to_dict(self.record.summary)
        return document

    @property
    def history(self) -> list[dict[str, Any]]:
        """The evaluations in order: updates, seconds and a value per metric."""
        return [to_dict(evaluation) for evaluation in self.record.history]

    def __repr__(self) -> str:
        return f"Run({self.record.plan!r} of {self.job.name!r}, path={self.path and str(self.path)!r})"

    def __str__(self) -> str:
        return str(self._listed())

    def _repr_html_(self) -> str:
        return self._listed().html()

    def _listed(self) -> TextList:
        return TextList(f"Run of {self.job.name}", summary_lines(self.summary()))
