"""Chance: a run draws its random numbers from a seed, which is part of its schedule.

With a seed other than 0 two rare events come about as well: one of the numbers is at an end of its range, so that
`if random() < 0.001` is true for once, and at one of the steps garbage is collected, as Python may at any time.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any, NamedTuple


class Chance(NamedTuple):
    """The seed of a run; how many numbers the plain run has drawn, and how many steps it had."""

    seed: int = 0
    draws: int = 0
    steps: int = 0


class Random(random.Random):
    """Random numbers of the program."""

    draws, rare = 0, (0, 0.0)  # of the run; which of them is rare, and what it is
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
    if chance.seed == 0:
        return 0
    Random.rare = random.randint(0, chance.draws), random.choice((0.0, 1 - 2.0**-53))
    return random.randint(1, chance.steps + 1)


def install() -> None:
    _instance: Any = random._inst
    _instance.__class__ = random.Random = Random  # type: ignore[misc]
    random.random = _instance.random
    random._urandom = os.urandom = _instance.randbytes  # type: ignore[attr-defined]
