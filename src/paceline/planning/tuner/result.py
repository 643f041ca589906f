"""What a tuning found."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import TuningError
from paceline.planning.tuner.account import Account
from paceline.planning.tuner.study import TrialRecord
from paceline.planning.tuner.trial import Trial
from paceline.runtime.report.formatting import number
from paceline.text_table import TextList
from paceline.training.jobs.job import Job

FAILURES = 6  # reasons of failures that are shown


@dataclass(frozen=True)
class Tuning:
    """What a tuning found."""

    path: Path | None
    trials: list[TrialRecord] = field(repr=False)
    best: TrialRecord | None
    account: Account = field(repr=False)
    metric: str
    mode: str
    search: str
    way: str
    #: Why trials were run in this way; empty if it was asked for.
    why: str = field(repr=False)
    make_job: Callable[[Trial], Job] | None = field(repr=False)
    #: This process's rank, where several were started; rank 0 decides and writes.
    rank: int = 0

    def __str__(self) -> str:
        return str(self._listed())

    def _repr_html_(self) -> str:
        return self._listed().html()

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
            "search": self.search,
            "trials": len(self.trials),
            **count,
            "metric": self.metric,
            "mode": self.mode,
            "best_trial": best.number if best else None,
            "best_value": best.value if best else None,
            "best_configuration": best.configuration if best else None,
            "ran": self.way,
            "ran_because": self.why,
            **self.account.as_dict(),
            "tuning": str(self.path) if self.path else None,
            "best_job": str(self.path / "best.py") if self.path and (self.path / "best.py").is_file() else None,
            "failures": {t.number: t.reason.splitlines()[0] for t in self.trials if t.reason},
        }

    def _listed(self) -> TextList:
        """Return what was found in words, one line per subject."""
        summary = self.summary()
        counts = ", ".join(f"{summary[s]} {s}" for s in ("done", "stopped", "paused", "failed") if summary[s])
        lines = {"trials": f"{summary['trials']} by {self.search}, run as {self.way}: {counts}"}
        if self.best is not None:
            value = number(self.best.value, 4)
            lines["best"] = f"{self.metric} {value} by trial {self.best.number}: {settings(self.best)}"
        if self.why:
            lines["run as"] = f"{self.way}: {self.why}"
        lines["time"] = "; ".join(self.account.sentences())
        reasons = defaultdict[str, list[int]](list)
        for trial, reason in summary["failures"].items():
            reasons[reason].append(trial)
        for reason, trials in list(reasons.items())[:FAILURES]:
            lines[f"failed {trials[0]}"] = f"{reason} ({len(trials)} trials)" if len(trials) > 1 else reason
        if len(reasons) > FAILURES:
            lines["and"] = f"{len(reasons) - FAILURES} more reasons; the page and the journal have them"
        if self.path is not None:
            lines["tuning"] = str(self.path)
        if summary["best_job"]:
            lines["train it"] = f"paceline train {shlex.quote(summary['best_job'])}"
        return TextList("Tuning", lines)


def settings(trial: TrialRecord) -> str:
    """Return a trial's configuration on one line."""
    values = {k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in trial.configuration.items()}
    return ", ".join(f"{name}={value}" for name, value in values.items())
