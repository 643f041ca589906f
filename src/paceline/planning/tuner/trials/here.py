"""Trials in the process that decides, one after another: nothing is started, and nothing is sent."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from paceline.planning.tuner.study import Assignment
from paceline.planning.tuner.trials import Ended, Objective, Report, Terms, run_leg
from paceline.planning.tuner.trials.limit import LIMIT, limited
from paceline.training.gradients.stacks.evaluated_members import one_thread


class Here:
    """Runs each leg when it is waited for. One that takes longer than the `timeout` in seconds, if any, has failed.

    Trials that were found to be `short` run with one thread, as they were timed, and always have a limit.
    """

    workers = 1

    def __init__(
        self,
        objective: Objective,
        report: Report,
        terms: Terms,
        timeout: float | None = None,
        short: bool = False,
    ) -> None:
        self.objective, self.report, self.terms = objective, report, terms
        self._short, self._limit = short, timeout or (LIMIT if short else None)
        self._given: Assignment | None = None

    def free(self) -> Sequence[int]:
        return () if self._given else (0,)

    def start(self, assignment: Assignment, worker: int) -> None:
        self._given = assignment

    def wait(self) -> Sequence[Ended]:
        assignment, self._given = self._given, None
        assert assignment is not None
        trial = assignment.leg.trial
        with contextlib.ExitStack() as stack:
            if self._short:
                stack.enter_context(one_thread())
            if self._limit:
                stack.enter_context(limited(self._limit))
            return [
                run_leg(self.objective, assignment, self.terms, lambda step, value: self.report(trial, step, value), 0)
            ]

    def close(self) -> None:
        """There is nothing to end."""
