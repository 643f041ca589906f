"""The desk's side of one shard: which servers hold it, and which come next.

    established [p, b] --p is gone--> proposed [b] --b confirms--> established [b]
        --a spare is fed--> proposed [b, s] --both confirm--> established [b, s]

A member is *safe* if it certainly holds every acknowledged push: one that has caught up with the primary of its view,
since a push is acknowledged only when all members have it. A member that is safe in one view is safe in the next. If no
safe member is alive, nor silent for so short a time that it may come back, the best survivor continues the shard, and
the change is *lossy*: what was acknowledged before may have to be computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from paceline.algorithms.cluster.messages import NONE, Applied, Process, Propose, Role, Status, SyncSpare, View, common
from paceline.algorithms.cluster.outputs import Changed, Output, Send


class Trust(NamedTuple):
    """The views whose acknowledgements a desk trusts: what they acknowledged is in the shard."""

    #: All from this one on.
    since: int = 0
    #: And this one, the last of an earlier desk. What came between them is unknown.
    inherited: int = NONE

    def holds(self, view: int) -> bool:
        return view >= self.since or view == self.inherited


class ShardViews:
    """The views of one shard."""

    def __init__(self, shard: int, copies: int, now: float) -> None:
        #: Servers that should hold the shard: 1 + backups.
        self.shard, self.copies = shard, copies
        self.view = View(shard, 0, ())
        #: All members of `view` have confirmed it.
        self.established = False
        #: Members that hold every acknowledged push.
        self.safe: frozenset[int] = frozenset()
        #: Whose acknowledgements still hold: a lossy change ends those of earlier views.
        self.trust = Trust()
        #: The spare that the primary brings up to date, and servers that it did not reach.
        self.feeding, self.unreached = NONE, set[int]()
        #: The newest status of every server of this shard.
        self.statuses: dict[int, Status] = {}
        #: When it came.
        self.noted: dict[int, float] = {}
        #: When a member was last alive.
        self.since = now

    def first(self, view: int, members: tuple[int, ...]) -> Iterator[Output]:
        """Begin with servers that all hold version 0."""
        self.safe = frozenset(members)
        yield from self._propose(view, members)

    def note(self, now: float, server: int, status: Status) -> None:
        """Note what a server reports."""
        self.statuses[server], self.noted[server] = status, now

    def fresh(self, since: float) -> bool:
        """Whether the view is established, and every member has reported since then."""
        return self.established and all(self.noted[member] >= since for member in self.view.members)

    def proposals(self, epoch: int, pending: Iterable[int]) -> Iterator[Output]:
        """Propose the view to members that have not confirmed it."""
        for member in pending:
            yield Send(Process(Role.SERVER, member), Propose(epoch, *self.view))

    @property
    def unconfirmed(self) -> list[int]:
        """The members whose last status is of an earlier view."""
        return [m for m in self.view.members if m not in self.statuses or self.statuses[m].view != self.view.number]

    def finalize(self) -> bool:
        """Establish the view if all its members have confirmed it; return whether it was established now."""
        number, members = self.view.number, self.view.members
        if self.unconfirmed or not members:
            return False
        self.safe |= {m for m in members if self.statuses[m].synced == number}
        news, self.established = not self.established, True
        return news

    def mend(
        self,
        epoch: int,
        number: Callable[[], int],
        alive: Callable[[int], bool],
        silent: Callable[[int], bool],
        spare: Callable[[ShardViews], int],
        waited: bool,
    ) -> Iterator[Output]:
        """Replace members that are gone, and bring a spare up to date where one is missing.

        Args:
            number: returns the number of the next view.
            alive: whether a server has been heard of lately.
            silent: whether a server that has not may still come back: its messages may only be late.
            spare: returns the spare that a shard is to get, or NONE.
            waited: whether members that are all gone have had the time to come back. Then a server that the shard has
                gone on without is better than none.
        """
        members = self.view.members
        missing = self._missing
        living = [member for member in members if alive(member) and member != missing]
        if missing != NONE:
            self.unreached.add(missing)
        if living and not self.safe & set(living) and any(silent(member) for member in self.safe):
            return
        if living and len(living) < len(members):
            yield from self._propose(number(), self._ordered(living))
        elif self.established and living:
            yield from self._replenish(epoch, number, alive, spare)
        elif not living and waited and (others := [server for server in self.statuses if alive(server)]):
            yield from self._propose(number(), self._ordered(others)[:1])

    @property
    def _missing(self) -> int:
        """The backup that the primary does not reach, although both may be alive; NONE if it reaches all."""
        status = self.statuses.get(self.view.members[0]) if self.view.members else None
        return status.missing if status is not None and status.view == self.view.number else NONE

    def _ordered(self, living: list[int]) -> tuple[int, ...]:
        """Return the members of the next view, a safe one first, otherwise the one that has most."""

        def rank(member: int) -> tuple[bool, int, int]:
            status = self.statuses.get(member)
            return member not in self.safe, -(status.synced if status else 0), -(status.version if status else 0)

        return tuple(sorted(living, key=rank))

    def _replenish(
        self, epoch: int, number: Callable[[], int], alive: Callable[[int], bool], spare: Callable[[ShardViews], int]
    ) -> Iterator[Output]:
        members, primary = self.view.members, self.view.members[0]
        if len(members) >= self.copies:
            return
        before, self.feeding = self.feeding, spare(self)
        if self.feeding == NONE:
            return
        if self.statuses[primary].fed == self.feeding and alive(self.feeding):
            yield from self._propose(number(), (*members, self.feeding))
        elif self.feeding != before:
            yield from self.ask_again(epoch)

    def ask_again(self, epoch: int) -> Iterator[Output]:
        """Send what the servers have not answered yet."""
        yield from self.proposals(epoch, self.unconfirmed)
        if self.established and self.feeding != NONE:
            yield Send(Process(Role.SERVER, self.view.members[0]), SyncSpare(epoch, self.view.number, self.feeding))

    def _propose(self, number: int, members: tuple[int, ...]) -> Iterator[Output]:
        """Propose a view; its first member is its primary."""
        lossy = members[0] not in self.safe
        if lossy:
            self.trust = Trust(since=number)
            self.safe = frozenset(members[:1])
        if members[:1] != self.view.members[:1]:
            self.unreached = set()
        self.safe &= frozenset(members)
        self.view, self.established, self.feeding = View(self.shard, number, members), False, NONE
        epoch = number >> EPOCH_BITS
        yield Changed(*self.view, lossy)
        yield from self.proposals(epoch, members)

    def recover(self, number: int, alive: Callable[[int], bool], complete: bool) -> Iterator[Output]:
        """Choose the members from what servers report, when the desk that knew them is gone.

        `complete` is whether all servers have reported. If not, one of them may have been the only member of a later
        view, so that no other is safe.
        """
        living = {m: s for m, s in self.statuses.items() if alive(m)}
        best = max(living, key=lambda m: _standing(m, living[m]))
        newest, members = living[best].view, living[best].members
        all_in = complete and bool(members) and all(m in living and living[m].view == newest for m in members)
        self.safe = frozenset(m for m in members if all_in and living[m].synced == newest)
        self.trust = Trust(since=number, inherited=newest)
        yield from self._propose(number, self._ordered([m for m in living if m in members] or [best]))

    @property
    def end(self) -> int:
        """One more than the highest batch that a member has."""
        return max(Applied(s.mark, s.above).end for m, s in self.statuses.items() if m in self.view.members)

    @property
    def durable(self) -> Applied:
        """The batches that every safe member has: those that no failure of one of them loses."""
        return common(Applied(s.mark, s.above) for m, s in self.statuses.items() if m in self.view.members)


def _standing(server: int, status: Status) -> tuple[int, bool, int, bool]:
    """Return what makes a server's state better than another's, the most important first."""
    return status.view, server in status.members, status.synced, status.members[:1] == (server,)


EPOCH_BITS = 32  # a view's number is the epoch of its desk, then how many views that desk had made
