"""Hyperband: brackets of successive halving that begin with different numbers of trials and steps.

Li et al., "Hyperband: a novel bandit-based approach to hyperparameter optimization", JMLR 2018. With R = max_t,
eta = reduction_factor and s_max = floor(log_eta(R)), bracket s = s_max, ..., 0 begins with

    n = ceil((s_max + 1) / (s + 1) * eta^s)  trials of  R / eta^s  steps.

So a configuration that learns slowly, which a bracket with many short trials would drop, has its chance in another one.
The number of trials follows from max_t. A bracket need not be over for the next one to begin.
"""

from __future__ import annotations

from paceline.algorithms.tuning import TrialSegment
from paceline.algorithms.tuning.successive_halving import SuccessiveHalving


class Hyperband:
    """All brackets of one round."""

    resumes = True
    heeds: frozenset[int] | None = frozenset()

    def __init__(self, max_t: int, reduction_factor: int = 3) -> None:
        self.max_t = max_t
        self.brackets = list[SuccessiveHalving]()
        #: The bracket of each trial.
        self.bracket_of = list[SuccessiveHalving]()
        s_max = 0
        while reduction_factor ** (s_max + 1) <= max_t:
            s_max += 1
        for s in range(s_max, -1, -1):
            trials = -(-(s_max + 1) * reduction_factor**s // (s + 1))
            least = max(1, max_t // reduction_factor**s)
            bracket = SuccessiveHalving(trials, max_t, least, reduction_factor, first=len(self.bracket_of))
            self.brackets.append(bracket)
            self.bracket_of += [bracket] * trials

    def next(self) -> TrialSegment | None:
        return next((leg for bracket in self.brackets if (leg := bracket.next()) is not None), None)

    def report(self, trial: int, step: int, loss: float) -> bool:
        return False

    def end(self, trial: int, step: int, loss: float) -> None:
        self.bracket_of[trial].end(trial, step, loss)
