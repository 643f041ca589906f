"""Shares that follow the speeds of workers: chunks move from worker to worker while they train.

    every update      the seconds of a chunk at each worker are summed with the gradients, in a number of its own
    every EVERY-th    all workers divide the chunks by the same numbers, from the next update on

So they agree without a message, and a worker that has become slow gives chunks away within two such updates. The sum is
canonical: no number of the training changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from paceline.algorithms.collectives.canonical import Canonical
from paceline.runtime.engines.workers.collectives import PayloadReduction, Sums
from paceline.runtime.links import TURNS
from paceline.training.gradients.payload import GradientSum

EVERY = 4  # updates between two divisions


class MeasuredSums(Sums):
    """`Sums` whose table changes with the shares."""

    def __init__(
        self,
        collective: Canonical,
        ranks: Sequence[int],
        over: Callable[[Canonical], PayloadReduction],
        moved: Callable[[int, Canonical], object],
    ) -> None:
        """
        Args:
            collective: the shares to begin with.
            ranks: the workers that share, by the places of their paces.
            over: makes the sum by other shares.
            moved: is told from which update on which shares hold.
        """
        self.collective, self._ranks, self._over, self._moved = collective, ranks, over, moved
        self._sums = over(collective)
        #: The seconds of a chunk at each worker, update by update.
        self._paces: list[list[float]] = []

    def all_reduce(self, number: int, computed: GradientSum) -> tuple[GradientSum, int, int]:
        """Run the collective of this number, then divide the chunks anew if it is time to."""
        total = self._sums.all_reduce(number, computed)
        self._paces.append(self._sums.payloads[number % TURNS].paces[list(self._ranks)].tolist())
        if (number + 1) % EVERY == 0:
            paces, self._paces = self._paces, []
            following = self.collective.by_pace([_usual(each) for each in zip(*paces, strict=True)])
            if following is not self.collective:
                self.collective, self._sums = following, self._over(following)
                self._moved(number + 1, following)
        return total


def _usual(paces: Sequence[float]) -> float:
    """Return the median of those that are known, which an interruption does not move; 0 if none is."""
    return median([pace for pace in paces if pace > 0] or [0.0])
