"""What a tuning found, and where its time went."""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import TuningError
from paceline.planning.tuner.study import TrialRecord
from paceline.planning.tuner.trial import Trial
from paceline.runtime.report.formatting import number
from paceline.text_table import Listed, TextList
from paceline.training.jobs.job import Job


@dataclass(frozen=True)
class Account:
    """Where the time of a tuning went, and what it says about more or fewer workers.

    Of W workers that ran for `wall` seconds, `inside` seconds were trials' functions; the rest was overhead: deciding,
    sending, waiting for the last trial. A single worker in the tuning process itself, at the same speed of each trial,
    takes `inside` seconds. So W workers pay where

        start + (inside + outside) / W  <  inside.

    Trials that run side by side slow each other down, so that `inside` is more than one worker would really need: the
    speed-up is an upper bound.

    The account of a tuning, in seconds.
    """

    wall: float
    inside: float
    workers: int
    legs: int
    start: float  # until the workers could begin

    @property
    def outside(self) -> float:
        """Seconds of the workers that were spent outside of trials."""
        return max(0.0, self.wall * self.workers - self.inside)

    @property
    def overhead_per_leg(self) -> float:
        return self.outside / max(1, self.legs)

    @property
    def speedup(self) -> float:
        """How much faster than one worker without any overhead, at the speed that trials had here."""
        return self.inside / max(self.wall + self.start, 1e-9)

    @property
    def break_even(self) -> int | None:
        """The least number of workers that is faster than one; None if there is none."""
        saving = self.inside - self.start
        return math.floor((self.inside + self.outside) / saving) + 1 if saving > 0 else None

    def as_dict(self) -> dict[str, float | int | None]:
        return {
            "seconds": self.wall,
            "inside": self.inside,
            "outside": self.outside,
            "start": self.start,
            "workers": self.workers,
            "legs": self.legs,
            "overhead_per_leg": self.overhead_per_leg,
            "speedup": self.speedup,
            "break_even": self.break_even,
        }

    def sentences(self) -> list[str]:
        """Return the account in words."""
        if not self.legs:
            return ["nothing was left to train"]
        share = self.inside / max(self.wall * self.workers, 1e-9)
        lines = [
            f"{share:.0%} of the workers' time was training; {1e3 * self.overhead_per_leg:.2f} ms for each "
            f"part of a trial were not, and {self.start:.1f} s went by before the workers could begin"
        ]
        if self.workers > 1 and self.speedup < 1:
            lines.append(
                f"this parallel search was slower than a sequential one: {1 / self.speedup:.2f} times its time; take "
                "longer trials, or --executor here"
            )
        elif self.workers > 1:
            lines.append(
                f"at most {self.speedup:.2f} times as fast as one worker; break-even is at {self.break_even} workers"
            )
        return lines


FAILURES = 6  # reasons of failures that are shown


@dataclass(frozen=True)
class Tuning(Listed):
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
