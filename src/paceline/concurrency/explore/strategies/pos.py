"""POS, partial order sampling.

Yuan, Yang and Gu, "Partial order aware concurrency sampling", CAV 2018. Every pending *operation*, not every thread,
has a random priority, and the highest is executed. Then the operations that conflict with it draw new priorities, so
that the order of each conflicting pair is as good as independent of the others. Unlike PCT it needs no number of steps.
"""

from __future__ import annotations

from random import Random

from paceline.concurrency.explore.operation import Operation, Option
from paceline.concurrency.explore.strategies import EARLY, Decision, Strategy


class PosRun(Strategy):
    """Chooses the steps of one run by priorities of operations."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._priority: dict[Option, float] = {}
        self._pending: dict[int, Operation] = {}
        self._early = self._chance.choice(EARLY)

    def pick(self, decision: Decision) -> Option:
        self._pending = dict(decision.pending)
        on = [each for each in decision.options if not each.expires or self._chance.random() < self._early]
        return max(on, key=self._of) if on else decision.plain

    def _of(self, option: Option) -> float:
        return self._priority.setdefault(option, self._chance.random())

    def executed(self, option: Option, operation: Operation) -> None:
        for key in list(self._priority):
            waiting = self._pending.get(key.thread)
            if key.thread == option.thread or waiting is None or waiting.conflicts(operation):
                del self._priority[key]
