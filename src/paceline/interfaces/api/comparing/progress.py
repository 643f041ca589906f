"""How long a comparison takes, by an estimate, and how far it is."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from paceline.interfaces.api.lines import Say
from paceline.interfaces.api.train import train
from paceline.plans.plan import make
from paceline.runtime.runs.trace import Kind
from paceline.training.jobs.job import Job

#: Is called with the share of the comparison that is done, and with what is done next.
Progress = Callable[[float, str], None]
PROBED = 8  # updates that an estimate is made from


class Cost(NamedTuple):
    """What one process takes, in seconds, as an estimate."""

    start: float  # of a training, before and after its updates: starting, probing, evaluating
    updates: float  # all updates of the job

    @property
    def training(self) -> float:
        """Seconds of a whole training."""
        return self.start + self.updates

    @classmethod
    def of(cls, job: Job) -> Cost:
        """Measure a few updates of the job by one process."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the whole training says it again
            train(job.untested(), make("sequential"), folder=None, max_updates=1)  # loads PyTorch in the fork server
            begin = time.monotonic()
            run = train(job, make("sequential"), folder=None, max_updates=PROBED)
        starts = np.sort(run.trace.of_kind(Kind.COMPUTE)["start"])
        each = statistics.median(np.diff(starts)) / 1e9 if len(starts) > 1 else 0.0
        summary = run.record.summary
        assert summary is not None
        samples = (run.record.job.samples or 0) * (run.record.job.epochs or 1)
        updates = samples * summary.updates / max(1, summary.samples)
        return cls(max(0.0, time.monotonic() - begin - summary.seconds), float(each * updates))


class Rounds(Protocol):
    """The rounds that are timed."""

    @property
    def rounds(self) -> int:
        """How many there are at least."""

    @property
    def seconds(self) -> float:
        """Seconds that each plan is timed in one of them."""

    @property
    def most(self) -> int:
        """How many there are at most, while they disagree; 0: no more."""


class Course:
    """Says what is done next, and how far the comparison is."""

    def __init__(self, cost: Cost, say: Say, progress: Progress | None) -> None:
        self.cost, self.say, self._progress = cost, say, progress
        self._whole, self._done, self._now, self._said = 1.0, 0.0, 0.0, ""

    def announce(self, plans: int, entrants: int, rounds: Rounds) -> None:
        """Say how long it takes, and what is done in that time."""
        a_round = entrants * (self.cost.start + rounds.seconds)
        trainings = plans * self.cost.training
        self._whole = trainings + rounds.rounds * a_round
        most = trainings + max(rounds.rounds, rounds.most) * a_round
        longer = f", up to {duration(most)} while rounds disagree" if rounds.most > rounds.rounds else ""
        count = f"{plans} plan{'s' * (plans > 1)} x {rounds.rounds} rounds"
        self.say(f"about {duration(self._whole)}{longer}: {count}, after a whole training by each")

    def begin(self, what: str, seconds: float, detail: str = "") -> None:
        """Note that the last step is done, and that one of about so many seconds begins; a bar shows the detail."""
        self._done, self._now = self._done + self._now, seconds
        if self._progress is not None:
            self._progress(min(1.0, self._done / self._whole), f"{what}: {detail}" if detail else what)
        elif what != self._said:
            self._said = what
            self.say(f"{what} ...")


def duration(seconds: float) -> str:
    """Return seconds as people say them, to about two digits."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
