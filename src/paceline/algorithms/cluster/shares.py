"""Which chunks of an update each rank of a group computes.

A batch is cut into as many chunks as the plan has workers, and they stay the same however many are there: so does the
mathematics. Every rank computes the chunk of its own number; those of absent ranks go around from update to update.
Under a canonical sum each rank computes a run of neighbouring chunks, and the runs are divided anew among those there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.algorithms.collectives import Collective
from paceline.algorithms.collectives.canonical import Canonical, lanes_of
from paceline.algorithms.collectives.rings import Hierarchical


def parts_by_rank(ranks: Sequence[int], parts: int, update: int) -> dict[int, list[int]]:
    """Return which parts of a batch, of `parts` in all, each rank computes when only these ranks are there."""
    shares = {rank: [rank] if rank < parts else [] for rank in ranks}
    absent = [part for part in range(parts) if part not in shares]
    for turn, part in enumerate(absent):
        shares[ranks[(turn + update) % len(ranks)]].append(part)
    return {rank: sorted(mine) for rank, mine in shares.items()}


def fitting(collective: Collective, ranks: int) -> Collective:
    """Return the collective of a plan for a group of so many ranks."""
    return collective.fitting(ranks) if isinstance(collective, Hierarchical | Canonical) else collective


def most_lanes(collective: Collective | None, ranks: int) -> int:
    """Return the vectors that a rank has for partial sums, in whichever group of up to so many ranks."""
    if collective is None:
        return 1
    return max(lanes_of(fitting(collective, count), count) for count in range(1, ranks + 1))


class Membership:
    """Which ranks share out which updates, as groups follow one another."""

    def __init__(self, parts: int, collective: Collective | None = None) -> None:
        """`parts` are those of a batch, one for each rank; of a canonical collective, each has a run of chunks."""
        self.parts, self._initial = parts, collective
        #: The first update of each group's shares, and its ranks; at first all are there.
        self._since = [0]
        self._ranks = [tuple(range(parts))]
        self._collectives = [collective]

    def regrouped(self, since: int, ranks: Sequence[int]) -> None:
        """Divide the batches among these ranks from this update on."""
        self._from(since, tuple(ranks), self._initial)

    def moved(self, since: int, collective: Collective) -> None:
        """Divide the batches among the same ranks by other shares from this update on."""
        self._from(since, self.ranks(since), collective)

    def _from(self, since: int, ranks: tuple[int, ...], collective: Collective | None) -> None:
        while self._since and self._since[-1] >= since:
            for each in (self._since, self._ranks, self._collectives):
                each.pop()
        self._since.append(since)
        self._ranks.append(ranks)
        self._collectives.append(collective)

    def ranks(self, update: int) -> tuple[int, ...]:
        """Return the ranks that share out an update."""
        return self._ranks[self._place(update)]

    def parts_of(self, rank: int, update: int) -> list[int]:
        """Return the parts of an update that a rank computes."""
        return self.parts_by_rank(update).get(rank, [])

    def parts_by_rank(self, update: int) -> dict[int, list[int]]:
        """Return the parts of an update that each of its ranks computes."""
        place = self._place(update)
        ranks, collective = self._ranks[place], self._collectives[place]
        if not isinstance(collective, Canonical):
            return parts_by_rank(ranks, self.parts, update)
        runs = collective.fitting(len(ranks)).runs(len(ranks))
        return {rank: list(range(*run)) for rank, run in zip(ranks, runs, strict=True)}

    def _place(self, update: int) -> int:
        return bisect_right(self._since, update) - 1


# --- The groups of a run, one after another, as its trace has recorded them: what a replay follows --------------------


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
