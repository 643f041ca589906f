"""Successive halving: all trials are trained a little, the best part of them longer, and so on.

Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016. All
trials are trained for `grace_period` steps; when the last of them has ended, the best 1 / reduction_factor go on from
where they were to reduction_factor times as many steps, until `max_t`. Trials that lost are not trained again. Not to
be confused with ASHA, which does not wait for a rung to be complete.
"""

from __future__ import annotations

from paceline.algorithms.tuning import FAILED, TrialSegment, rungs


class SuccessiveHalving:
    """One bracket; its trials have the numbers from `first` on."""

    resumes = True
    heeds: frozenset[int] | None = frozenset()

    def __init__(
        self, trials: int, max_t: int, grace_period: int = 1, reduction_factor: int = 3, first: int = 0
    ) -> None:
        self.reduction_factor, self.max_t = reduction_factor, max_t
        self.steps = [*rungs(grace_period, max_t, reduction_factor), max_t]
        #: The rung that trials are trained to now, as a place in `steps`.
        self.rung = 0
        #: Trials of this rung that have not begun, and the losses of those that have ended.
        self.waiting = list(range(first, first + trials))
        self.ended: dict[int, float] = {}
        #: Trials of this rung: those that wait, are under way, or have ended.
        self.size = trials

    def next(self) -> TrialSegment | None:
        if not self.waiting:
            return None
        start = self.steps[self.rung - 1] if self.rung else 0
        return TrialSegment(self.waiting.pop(0), start, self.steps[self.rung])

    def report(self, trial: int, step: int, loss: float) -> bool:
        return False

    def end(self, trial: int, step: int, loss: float) -> None:
        self.ended[trial] = loss
        self._promote()

    def _promote(self) -> None:
        """Begin the next rung, if this one is complete."""
        if len(self.ended) < self.size or self.rung + 1 == len(self.steps):
            return
        best = sorted((loss, trial) for trial, loss in self.ended.items() if loss != FAILED)
        keep = max(1, self.size // self.reduction_factor)
        self.waiting = sorted(trial for _, trial in best[:keep])
        self.size, self.ended, self.rung = len(self.waiting), {}, self.rung + 1
