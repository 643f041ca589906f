"""The groups of a run, one after another, as its trace has recorded them: what a replay follows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from paceline.algorithms.cluster.shares import Membership
from paceline.algorithms.collectives import Collective


@dataclass(frozen=True)
class Epoch:
    """One group."""

    #: The first update whose chunks are shared out among its ranks.
    since: int
    #: For each of its ranks, in their order, the last collective of earlier groups that the rank has made.
    held: Mapping[int, int]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.held)

    @property
    def number(self) -> int:
        """Its first collective."""
        return max(self.held.values()) + 1


class Epochs:
    """Which ranks exchange with whom, from the first update of a run to the last; `shares` says who computes what."""

    def __init__(self, workers: int, later: Iterable[Epoch] = (), collective: Collective | None = None) -> None:
        """`later` are the groups that followed the first one, in which all workers were."""
        #: Which ranks share out which updates, as it was while the run was made.
        self.shares = Membership(workers, collective)
        #: The groups that have made a collective, for the questions about collectives.
        self._all = [Epoch(0, dict.fromkeys(range(workers), -1))]
        for epoch in later:
            self.shares.regrouped(epoch.since, epoch.ranks)
            while len(self._all) > 1 and (self._all[-1].since, self._all[-1].number) >= (epoch.since, epoch.number):
                self._all.pop()  # it was cancelled before it had made anything
            self._all.append(epoch)

    @property
    def last(self) -> tuple[int, ...]:
        """The ranks that have finished the run."""
        return self._all[-1].ranks

    def exchanging(self, number: int) -> tuple[int, ...]:
        """Return the ranks between which a collective was made."""
        return self._all[self._of(number)].ranks

    def made(self, rank: int, number: int) -> bool:
        """Whether a rank has made a collective; between neighbours some may have been left out.

        Of a rank that is gone it is not known, and matters only for collectives that came before another of its own.
        """
        place = self._of(number)
        following = self._all[place + 1] if place + 1 < len(self._all) else None
        return following is None or number <= following.held.get(rank, following.number)

    def _of(self, number: int) -> int:
        return bisect_right([epoch.number for epoch in self._all], number) - 1
