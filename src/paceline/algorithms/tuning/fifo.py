"""First in, first out: every trial is trained to the end."""

from __future__ import annotations

from paceline.algorithms.tuning import TrialSegment


class Fifo:
    """Trains `trials` configurations for `max_t` steps each."""

    resumes = False
    heeds: frozenset[int] | None = frozenset()

    def __init__(self, trials: int, max_t: int) -> None:
        self.trials, self.max_t = trials, max_t
        #: Trials that have begun.
        self.begun = 0

    def next(self) -> TrialSegment | None:
        if self.begun >= self.trials:
            return None
        self.begun += 1
        return TrialSegment(self.begun - 1, 0, self.max_t)

    def report(self, trial: int, step: int, loss: float) -> bool:
        return False

    def end(self, trial: int, step: int, loss: float) -> None:
        pass
