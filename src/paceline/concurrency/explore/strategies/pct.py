"""PCT, probabilistic concurrency testing.

Burckhardt, Kothari, Musuvathi and Nagarakatte, "A randomized scheduler with probabilistic guarantees of finding bugs",
ASPLOS 2010. Every thread has a random priority, and the one with the highest runs. At d - 1 random steps the priority
of the running thread falls below all others. A bug that needs d orderings among n threads and k steps is found by a
run with a probability of at least 1 / (n * k ** (d - 1)).

A thread that polls would keep its priority for ever, so a thread that has made many steps in a row falls too.
"""

from __future__ import annotations

import random

from paceline.concurrency.explore.operation import Option
from paceline.concurrency.explore.strategies import Decision, Strategy, split

DEPTH = 4  # the largest d that is drawn
PATIENCE = 300  # steps in a row after which a thread is taken to poll


class PctRun(Strategy):
    """Chooses the steps of one run by priorities."""

    def __init__(self, seed: int, choices: int) -> None:
        self._chance = random.Random(seed)
        self._priority: dict[int, float] = {}
        changes = self._chance.randrange(DEPTH)
        self._falls = {self._chance.randrange(1, max(20, choices)) for _ in range(changes)}
        self._lowest, self._in_a_row, self._choices = 0.0, 0, 0

    def pick(self, decision: Decision) -> Option:
        self._in_a_row += 1
        self._choices += 1  # steps at which there is no choice do not count
        if self._choices in self._falls or self._in_a_row % PATIENCE == 0:
            self._lowest -= 1
            self._priority[decision.current] = self._lowest
        on, late = split(decision.options)
        chosen = max(on, key=self._of) if on else late[0]
        if chosen.thread != decision.current:
            self._in_a_row = 0
        return chosen

    def _of(self, option: Option) -> float:
        return self._priority.setdefault(option.thread, self._chance.random())
