"""Trials in the process that decides, one after another: nothing is started, and nothing is sent."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tuner.study import Assignment
from paceline.tuner.trials import Ended, Objective, Report, Terms, run_leg


class Here:
    """Runs each leg when it is waited for."""

    workers = 1

    def __init__(self, objective: Objective, report: Report, terms: Terms) -> None:
        self.objective, self.report, self.terms = objective, report, terms
        self._given: Assignment | None = None

    def free(self) -> Sequence[int]:
        return () if self._given else (0,)

    def start(self, assignment: Assignment, worker: int) -> None:
        self._given = assignment

    def wait(self) -> Sequence[Ended]:
        given, self._given = self._given, None
        assert given is not None
        trial = given.leg.trial
        return [run_leg(self.objective, given, self.terms, lambda step, value: self.report(trial, step, value), 0)]

    def close(self) -> None:
        """There is nothing to end."""
