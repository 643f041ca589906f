"""Random walk: at each step, with a probability that is drawn once for a run, any thread that can continue.

Few switches find most bugs, so most runs draw a small probability. Also called naive random scheduling: unlike
`pos`, it favours no order of conflicting operations, and long threads are interrupted more often than short ones.
"""

from __future__ import annotations

import random

from paceline.concurrency.explore.operation import Option
from paceline.concurrency.explore.strategies import Decision, Strategy, split

SWITCH = (0.02, 0.1, 0.3, 0.6)
#: Most runs let time pass only when no thread can continue; the others let it pass early in one step of twenty.
EARLY = (0.0, 0.0, 0.05)


class RandomWalk(Strategy):
    """Chooses the steps of one run at random."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._switch, self._early = self._chance.choice(SWITCH), self._chance.choice(EARLY)

    def pick(self, decision: Decision) -> Option:
        on, late = split(decision.options)
        if late and (not on or self._chance.random() < self._early):
            return late[0] if not on else self._chance.choice(late)
        blocked = decision.plain.thread != decision.current
        return self._chance.choice(on) if blocked or self._chance.random() < self._switch else decision.plain
