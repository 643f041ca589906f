"""ASHA: asynchronous successive halving.

Li et al., "A system for massively parallel hyperparameter tuning", MLSys 2020, algorithm 2. Trials are compared at

    grace_period x reduction_factor^k  steps,  k = 0, 1, ...

which are the rungs. A worker that is free continues a trial that is among the best 1 / reduction_factor of those that
have ended a rung so far, on the highest rung that has one; otherwise it begins a new trial. So no worker waits for a
rung to be complete, as it does in successive halving. When no trial is left to begin, the best one of the highest rung
is trained to the end.
"""

from __future__ import annotations

from bisect import bisect, insort

from paceline.algorithms.tuning import FAILED, TrialSegment, rungs


class Asha:
    """Continues trials that are among the best 1 / reduction_factor of a rung."""

    resumes = True
    heeds: frozenset[int] | None = frozenset()

    def __init__(self, trials: int, max_t: int, grace_period: int = 1, reduction_factor: int = 4) -> None:
        self.trials, self.max_t, self.reduction_factor = trials, max_t, reduction_factor
        self.steps = [*rungs(grace_period, max_t, reduction_factor), max_t]
        #: (loss, trial) of those that have ended each rung below the last: those that wait, and those that went on.
        self.waiting: list[list[tuple[float, int]]] = [[] for _ in self.steps[1:]]
        self.gone: list[list[tuple[float, int]]] = [[] for _ in self.steps[1:]]
        #: Trials that have begun, and the rung that each of those under way is trained to.
        self.begun = 0
        self.running: dict[int, int] = {}

    def next(self) -> TrialSegment | None:
        for rung in reversed(range(len(self.waiting))):
            if self._continues(rung):
                return self._promote(rung)
        if self.begun < self.trials:
            self.begun += 1
            self.running[self.begun - 1] = 0
            return TrialSegment(self.begun - 1, 0, self.steps[0])
        highest = max((rung for rung, ended in enumerate(self.waiting) if ended), default=None)
        if highest is None or self.running or any(self.gone[highest:]):
            return None
        return self._promote(highest)

    def report(self, trial: int, step: int, loss: float) -> bool:
        return False

    def end(self, trial: int, step: int, loss: float) -> None:
        rung = self.running.pop(trial)
        if loss != FAILED and rung < len(self.waiting):
            insort(self.waiting[rung], (loss, trial))

    def _continues(self, rung: int) -> bool:
        """Whether the best trial that waits at a rung is among the best of all that have come to it."""
        waiting, promoted = self.waiting[rung], self.gone[rung]
        if not waiting:
            return False
        return bisect(promoted, waiting[0]) < (len(waiting) + len(promoted)) // self.reduction_factor

    def _promote(self, rung: int) -> TrialSegment:
        best = self.waiting[rung].pop(0)
        insort(self.gone[rung], best)
        self.running[best[1]] = rung + 1
        return TrialSegment(best[1], self.steps[rung], self.steps[rung + 1])
