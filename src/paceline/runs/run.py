"""A finished training, as `train` returns it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.runs.schema import to_dict

if TYPE_CHECKING:
    from torch import nn

    from paceline.jobs.job import Job
    from paceline.runs.record import RunRecord
    from paceline.runs.trace import Trace


@dataclass
class Run:
    """One finished training."""

    path: Path | None  # its folder; None: nothing was written
    trace: Trace
    record: RunRecord  # what run.json holds
    model: nn.Module
    job: Job

    def summary(self) -> dict[str, Any]:
        """The figures of the run, as `paceline train --json` prints them."""
        found: dict[str, Any] = to_dict(self.record.summary)
        return found

    @property
    def history(self) -> list[dict[str, Any]]:
        """The evaluations in order: updates, seconds and a value per metric."""
        return [to_dict(evaluation) for evaluation in self.record.history]
