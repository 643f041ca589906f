"""The median stopping rule.

Golovin et al., "Google Vizier: a service for black-box optimization", KDD 2017. At a step t, a trial is stopped if

    its best loss until t  >  the median of the other trials' running averages of their losses until t.

It makes no assumption on the form of learning curves. Trials younger than `grace_period` steps, and those that fewer
than `min_trials` others can be compared with, go on.
"""

from __future__ import annotations

from statistics import median

from paceline.algorithms.tuning import TrialSegment
from paceline.algorithms.tuning.fifo import Fifo


class MedianStopping:
    """Stops a trial whose best loss is worse than the median of the others' averages."""

    resumes = False
    heeds: frozenset[int] | None = None

    def __init__(self, trials: int, max_t: int, grace_period: int = 1, min_trials: int = 3) -> None:
        self.trials, self.max_t = Fifo(trials, max_t), max_t
        self.grace_period, self.min_trials = grace_period, min_trials
        #: The losses of each trial, by step.
        self.losses: dict[int, dict[int, float]] = {}

    def next(self) -> TrialSegment | None:
        return self.trials.next()

    def report(self, trial: int, step: int, loss: float) -> bool:
        mine = self.losses.setdefault(trial, {})
        mine[step] = loss
        others = [
            self._average(found, step) for other, found in self.losses.items() if other != trial and step in found
        ]
        if step < self.grace_period or step >= self.max_t or len(others) < self.min_trials:
            return False
        return min(mine.values()) > median(others)

    @staticmethod
    def _average(losses: dict[int, float], until: int) -> float:
        history = [loss for step, loss in losses.items() if step <= until]
        return sum(history) / len(history)

    def end(self, trial: int, step: int, loss: float) -> None:
        pass
