"""POS, partial order sampling.

Yuan, Yang and Gu, "Partial order aware concurrency sampling", CAV 2018. Every pending *operation*, not every thread,
has a random priority, and the highest is executed. Then the operations that conflict with it draw new priorities, so
that the order of each conflicting pair is as good as independent of the others. Unlike PCT it needs no number of steps.
"""

from __future__ import annotations

from random import Random

from paceline.concurrency.explore.operation import Option
from paceline.concurrency.explore.strategies import EARLY, Decision


class PosRun:
    """Chooses the steps of one run by priorities of operations."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._priority: dict[Option, float] = {}
        self._early = self._chance.choice(EARLY)

    def pick(self, decision: Decision) -> Option:
        pending = decision.pending
        on = [each for each in decision.options if not each.expires or self._chance.random() < self._early]
        for each in on:
            self._priority.setdefault(each, self._chance.random())
        chosen = max(on, key=self._priority.__getitem__, default=decision.plain)
        self._priority = {
            option: priority
            for option, priority in self._priority.items()
            if option.thread != chosen.thread
            and option.thread in pending
            and not pending[option.thread].conflicts(pending[chosen.thread])
        }
        return chosen
