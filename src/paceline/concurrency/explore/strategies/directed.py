"""Race-directed testing: threads wait at chosen lines until another thread is about to touch the same there.

Sen, "Race directed random testing of concurrent programs", PLDI 2008. A run has a target: a set of lines, of which two
threads may execute conflicting operations. A thread that comes to one of them is postponed, until another one comes to
a line of the target with a conflicting operation; then chance decides which of the two is first. Where only postponed
threads are left, or one has waited long, one of them continues.

The lines are those of the findings that are to be confirmed, else of the conflicts that earlier runs have come across,
in an order that is learned (`Targets`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import combinations
from random import Random

from paceline.concurrency.explore.operation import Operation, Option, Place
from paceline.concurrency.explore.strategies import EARLY, Decision, Executed, split

Target = frozenset[tuple[str, int]]  # files and lines
SUSPICION = 3  # as how many findings a line under suspicion counts before the first run
SITES = 16  # accesses of one location that are paired
SWITCH, IMPATIENCE = 0.1, 0.02  # how likely a thread is interrupted elsewhere, and a postponed one continues, at a step


def targets(run: Iterable[Executed]) -> set[Target]:
    """Return the pairs of lines at which two threads of a run have executed conflicting operations."""
    accesses: dict[Hashable, dict[tuple[int, Place], Operation]] = {}
    for step in run:
        for touch in () if step.operation.releases else step.operation.touches:
            sites = accesses.setdefault(touch.location, {})
            if len(sites) < SITES:
                sites[step.option.thread, step.operation.place] = step.operation
    pairs = (pair for sites in accesses.values() for pair in combinations(sites.items(), 2))
    return {
        frozenset((place[:2], other_place[:2]))
        for ((thread, place), operation), ((other, other_place), other_operation) in pairs
        if thread != other and operation.conflicts(other_operation)
    }


class Targets:
    """Chooses targets by Thompson sampling (Biometrika 25, 1933): those first of which `paceline check` suspects lines.

    Each run of a target that leaves the search unfinished makes it less likely to be the next one.
    """

    def __init__(self, suspected: Target) -> None:
        self._suspected, self._runs = suspected, Counter[Target]()

    def choose(self, targets: Iterable[Target], seed: int) -> Target:
        """Return the target of the run of a seed; an empty one if there is none yet."""
        chance = Random(seed)

        def odds(target: Target) -> float:
            return chance.betavariate(1 + SUSPICION * len(target & self._suspected), 1 + self._runs[target])

        chosen = max(sorted(targets, key=sorted), key=odds, default=frozenset())
        self._runs[chosen] += 1
        return chosen


class DirectedRun:
    """Chooses the steps of one run by a target."""

    def __init__(self, seed: int, target: Target) -> None:
        self._chance = Random(seed)
        self._target, self._early = target, self._chance.choice(EARLY)

    def pick(self, decision: Decision) -> Option:
        on, late = split(decision.options)
        if late and (not on or self._chance.random() < self._early):
            return late[0] if not on else self._chance.choice(late)
        pending = decision.pending
        postponed = [each for each in on if pending[each.thread].place[:2] in self._target]
        for two in combinations(postponed, 2):
            if pending[two[0].thread].conflicts(pending[two[1].thread]):
                return self._chance.choice(two)
        free = [each for each in on if each not in postponed]
        if not free or (postponed and self._chance.random() < IMPATIENCE):
            return self._chance.choice(postponed)
        stays = decision.plain in free and self._chance.random() >= SWITCH
        return decision.plain if stays else self._chance.choice(free)
