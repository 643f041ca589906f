"""What a tuning found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import TuningError
from paceline.jobs.job import Job
from paceline.tuner.account import Account
from paceline.tuner.study import TrialRecord
from paceline.tuner.trial import Trial


@dataclass(frozen=True)
class Tuning:
    """What a tuning found."""

    path: Path | None
    trials: list[TrialRecord]
    best: TrialRecord | None
    account: Account
    metric: str
    mode: str
    search: str
    way: str
    #: Why trials were run in this way; empty if it was asked for.
    why: str
    make_job: Callable[[Trial], Job] | None
    #: This process's rank, where several were started; rank 0 decides and writes.
    rank: int = 0

    @property
    def best_job(self) -> Job:
        """The job of the best configuration."""
        if self.best is None or self.make_job is None:
            raise TuningError("there is no best job: no trial has a value, or the trials were not of a job")
        return self.make_job(Trial(self.best.number, self.best.configuration, 0, 1))

    def summary(self) -> dict[str, Any]:
        """Return the figures of the tuning as JSON has them."""
        best = self.best
        count = {s: sum(t.status == s for t in self.trials) for s in ("done", "stopped", "paused", "failed")}
        return {
            "search": self.search, "trials": len(self.trials), **count, "metric": self.metric, "mode": self.mode,
            "best_trial": best.number if best else None, "best_value": best.value if best else None,
            "best_configuration": best.configuration if best else None, "ran": self.way, "ran_because": self.why,
            **self.account.as_dict(),
            "tuning": str(self.path) if self.path else None,
            "best_job": str(self.path / "best.py") if self.path and (self.path / "best.py").is_file() else None,
            "failures": {t.number: t.reason.splitlines()[0] for t in self.trials if t.reason},
        }  # fmt: skip
