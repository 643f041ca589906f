"""The free ranks of an open run: a machine that joins has the rank that it was offered, also if others come meanwhile.

    head                                 newcomer                      the machine that had rank 2
    ----                                 --------                      ---------------------------
    rank 2 is lost
    rank 2, offer 7 -------------------> fetches the job, imports it
         <------------------------------------------------------------ comes back as rank 2
    rank 3, offer 8 -------------------------------------------------> comes as rank 3
         <------------------------------ comes as rank 2, by offer 7

A head that takes over knows none of the offers before: then the first machine to come has the rank, and the other one
is offered another.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

TERM_BITS = 16  # of the number of an offer; those above say the term of the head


class Vacancy(NamedTuple):
    """A rank, and the number of the offer by which a machine may have it."""

    rank: int
    offer: int


#: There is no free rank.
NO_VACANCY = Vacancy(-1, 0)


class Vacancies:
    """The head's part in it. An offer lasts `patience` seconds."""

    def __init__(self, ranks: Collection[int], patience: float, term: int = 0, members: Collection[int] = ()) -> None:
        self.ranks, self.patience, self.members = ranks, patience, set(members)
        #: The ranks that some machine has had, which may come back.
        self.known = set(members)
        self._last = term << TERM_BITS
        #: The offer of each rank that has one, and since when.
        self._offers: dict[int, tuple[int, float]] = {}

    def offer(self, now: float) -> Vacancy:
        """Return a rank that no machine has, nor was offered; of these, one that none has had if there is one."""
        for rank in sorted(self.ranks, key=lambda rank: (rank in self.known, rank)):
            if rank not in self.members and not self._offered(now, rank):
                self._last += 1
                self._offers[rank] = self._last, now
                return Vacancy(rank, self._last)
        return NO_VACANCY

    def withdraw(self, vacancy: Vacancy) -> None:
        """Take an offer back, whose machine has gone away."""
        if self._offers.get(vacancy.rank, (0, 0.0))[0] == vacancy.offer:
            del self._offers[vacancy.rank]

    def admits(self, now: float, vacancy: Vacancy) -> bool:
        """Whether a machine may have a rank by this offer, or by none: it was offered to no other."""
        return self._offered(now, vacancy.rank) in (0, vacancy.offer)

    def joined(self, rank: int) -> None:
        self._offers.pop(rank, None)
        self.members.add(rank)
        self.known.add(rank)

    def lost(self, rank: int) -> None:
        self.members.discard(rank)

    def _offered(self, now: float, rank: int) -> int:
        """Return the number of the offer of a rank; 0 if there is none."""
        number, since = self._offers.get(rank, (0, 0.0))
        return number if number and now - since < self.patience else 0
