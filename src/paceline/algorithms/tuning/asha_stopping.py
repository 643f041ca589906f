"""ASHA in its stopping form, for trials that cannot be continued later.

Li et al., "A system for massively parallel hyperparameter tuning", MLSys 2020. Trials are compared at rungs,

    grace_period x reduction_factor^k  steps,  k = 0, 1, ...

A trial that comes to a rung goes on if its loss is among the best 1 / reduction_factor of all that have come to this
rung so far, itself included (at least one), and is stopped otherwise. No trial waits for another one. This is what Ray
Tune and Optuna have; it trains more than the paper's form (asha.py), since the first ones that come to a rung go on.
"""

from __future__ import annotations

from paceline.algorithms.tuning import TrialSegment, rungs
from paceline.algorithms.tuning.fifo import Fifo


class AshaStopping:
    """Stops trials that are not among the best 1 / reduction_factor at a rung."""

    resumes = False

    def __init__(self, trials: int, max_t: int, grace_period: int = 1, reduction_factor: int = 4) -> None:
        self.trials, self.max_t = Fifo(trials, max_t), max_t
        self.reduction_factor = reduction_factor
        #: The losses that came to each rung, by its step.
        self.rungs: dict[int, list[float]] = {step: [] for step in rungs(grace_period, max_t, reduction_factor)}
        self.heeds: frozenset[int] | None = frozenset(self.rungs)

    def next(self) -> TrialSegment | None:
        return self.trials.next()

    def report(self, trial: int, step: int, loss: float) -> bool:
        if step not in self.rungs:
            return False
        losses = self.rungs[step]
        losses.append(loss)
        best = max(1, len(losses) // self.reduction_factor)
        return sum(other < loss for other in losses) >= best

    def end(self, trial: int, step: int, loss: float) -> None:
        pass
