"""Chance: a run draws its random numbers from a seed, which is part of its schedule.

With a seed other than 0 two rare events come about as well: one of the numbers is at an end of its range, so that
`if random() < 0.001` is true for once, and at one of the steps garbage is collected, as Python may at any time. And
`asyncio.sleep(0)`, which in small programs stands for an answer of unknown speed, may take several turns of the loop.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

from paceline.concurrency.explore.strategies import Chance


class Random(random.Random):
    """Random numbers of the program."""

    is_usual, draws, rare = True, 0, (0, 0.0)  # of the run; which of them is rare, and what it is
    _randbelow = random.Random._randbelow_with_getrandbits  # type: ignore[attr-defined]  # which draws no float

    def seed(self, a: Any = None, version: int = 2) -> None:
        super().seed(random.getrandbits(64) if a is None else a, version)

    def random(self) -> float:
        Random.draws += 1
        number, value = Random.rare
        return value if Random.draws == number else super().random()


def begin(chance: Chance) -> int:
    """Begin a run; return at which step garbage is collected, 0 for none."""
    random.seed(chance.seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(chance.seed)
    Random.is_usual = chance.seed == 0
    if Random.is_usual:
        return 0
    Random.rare = random.randint(0, chance.draws), random.choice((0.0, 1 - 2.0**-53))
    return random.randint(1, chance.steps + 1)


def turns() -> int:
    """Return how many turns of the loop a yield takes: one in the usual run, often one in others, and at most eight."""
    number = random.random()
    return 1 if Random.is_usual else 1 + int(8 * number**3)


def install() -> None:
    _instance: Any = random._inst
    _instance.__class__ = random.Random = Random  # type: ignore[misc]
    random.random = _instance.random
    random._urandom = os.urandom = _instance.randbytes  # type: ignore[attr-defined]
