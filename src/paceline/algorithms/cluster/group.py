"""The group of ranks that keep step, through deaths: an epoch for every change of its members.

    ranks 0 1 2, epoch 1        update 17: rank 2 dies in the collective
    head: CallOff(1)            every survivor ends its wait
    members: Report(1, ...)     which sum a member holds last, and which update it can still share out differently
    head: Regroup(2, ...)       the ranks of epoch 2 and its first collective; a survivor that lacks the sum before it
                                takes that sum from one that has it

A collective can be finished only when every rank of its group has begun it. So two members are never more than one
collective apart: when all have reported, either no survivor holds sum 17, and all make it again with the chunks of
rank 2 shared out, or one does, and gives it to the others. Sums lie in two vectors that alternate, so the giver still
has it, and nothing is copied beforehand or rolled back.

The head decides alone who belongs to the group, so there are never two. A member that was taken for dead, and was not,
holds an epoch that no one answers any longer: it is dismissed, and no rank of the group is connected to it.

Where the head itself is lost, another takes its place (succession.py). It cancels what members are in, by an epoch
beyond all that the head before could have given, so nothing that is still under way from that one counts any longer.

A report is final: its member begins no collective before the next Regroup. That is why the head may count on it.

A group grows in the same way, where all members hold the same after every sum:

    ranks 0 1, epoch 2          rank 2 has come, and its worker is ready
    head: AbortFlag(2)          the members end their wait, and report
    head: Regroup(3, ...)       the ranks of epoch 3, and its first collective, 18: from that update on they share out
                                batches. Rank 0 gives rank 2 its state after update 17, and sum 17, which another rank
                                may lack

Until then no one counts on a newcomer. If it dies first, the others form a group without it, whose first collective is
the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from paceline.errors import ProtocolError

NO_RANK = -1
#: The part of the patience with a member that is left for one that another has heard nothing of for so long already.
ONCE_MORE = 1 / 8


class Report(NamedTuple):
    """A member has been cancelled, or is ready for its first group (epoch 0)."""

    epoch: int
    #: The last collective whose sum it holds; -1 for none.
    held: int
    #: The first update that it can still share out differently.
    ahead: int
    #: Whether it has come while the run goes on, and does not have the state of the others yet.
    new: bool = False


class Accuse(NamedTuple):
    """A member cannot reach another one of its group."""

    epoch: int
    rank: int
    #: Whether it has been silent for as long as peers bear.
    silent: bool = False


class AbortFlag(NamedTuple):
    """The collective of this epoch, if any, will not be finished."""

    epoch: int


class Regroup(NamedTuple):
    """A group begins."""

    epoch: int
    ranks: tuple[int, ...]
    #: Its first collective.
    number: int
    #: The first update whose chunks are shared out among its ranks.
    since: int
    #: The rank that holds the sum before `number`, and those that take it from there; NO_RANK if all hold it.
    giver: int = NO_RANK
    takers: tuple[int, ...] = ()
    #: What each rank held when it reported; for the record of the run, which any of them can restore.
    held: tuple[int, ...] = ()
    #: Those of the takers that take the whole state of the giver, and then the sum.
    newcomers: tuple[int, ...] = ()


class Release(NamedTuple):
    """The group has gone on without this rank."""

    epoch: int


class SendToMember(NamedTuple):
    """The head sends a message to a member."""

    to: int
    message: AbortFlag | Regroup | Release


class Excluded(NamedTuple):
    """A rank is no longer part of the run."""

    rank: int
    why: str


class Formed(NamedTuple):
    """A group has begun; for the record of the run."""

    group: Regroup


Output = SendToMember | Excluded | Formed


@dataclass
class Head:
    """The head's side. The engine hands in what it hears, and sends what comes out.

    `patience` is how many seconds a member that was cancelled may take to report. A head that takes over begins with an
    `epoch` beyond all of those before it, and calls its members: whatever they are in is cancelled.
    """

    #: Ranks that are part of the run.
    alive: set[int]
    patience: float
    #: Whether a sum can be given to members that lack it. Neighbours on a graph hold no common sum.
    gives: bool = True
    epoch: int = 0
    #: Whether members may not be ready yet: the first group is formed when all are.
    starting: bool = True

    def __post_init__(self) -> None:
        #: The ranks of the group of `epoch`; none before the first.
        self.members: tuple[int, ...] = ()
        #: Whether the group was cancelled and the next one is not formed yet.
        self.forming = True
        #: What the living members have reported since then.
        self.reports: dict[int, Report] = {}
        #: When the group was cancelled.
        self.since = 0.0
        #: Pairs of ranks of which one could not reach the other in this epoch, and in the one before although no one
        #: of its group was gone.
        self._accused: set[frozenset[int]] = set()
        self._apart: set[frozenset[int]] = set()
        #: The rank that was silent for the one whose accusation has cancelled the group, or NO_RANK.
        self._silent = NO_RANK
        #: Ranks that have come while the run goes on, and whose workers are not ready yet.
        self.joining: set[int] = set()

    def join(self, rank: int) -> None:
        """A rank has come. Before the first group all wait for it; later the group grows when its worker is ready."""
        (self.alive if self.starting else self.joining).add(rank)

    def report(self, now: float, rank: int, message: Report) -> list[Output]:
        """A member has reported, or a newcomer is ready, which reports again in the group's epoch."""
        if rank in self.joining:
            self.joining.discard(rank)
            self.alive.add(rank)
            self.since = now
            return [SendToMember(rank, AbortFlag(self.epoch))] if self.forming else self._abort(now)
        if rank not in self.alive:
            return [SendToMember(rank, Release(self.epoch))]
        if not self.forming or rank in self.reports or message.epoch > self.epoch:
            return []
        if message.epoch < self.epoch:
            # Of a group before; or it has come since this head took over, which called only those that were there.
            return [SendToMember(rank, AbortFlag(self.epoch))]
        self.reports[rank] = message
        return self._form_if_complete(now)

    def accuse(self, now: float, rank: int, message: Accuse) -> list[Output]:
        """A member cannot reach another one: the group is cancelled, and a member that does not report is lost.

        If both report, the fault may have been a short one. When it comes again in the next group, the accused rank is
        excluded.
        """
        if rank not in self.alive:
            return [SendToMember(rank, Release(self.epoch))]
        if self.forming or message.epoch != self.epoch or message.rank not in self.members:
            return []
        pair = frozenset((rank, message.rank))
        if pair in self._apart:
            return self.gone(now, message.rank, f"could not be reached by rank {rank}, twice")
        self._accused.add(pair)
        return self._abort(now, message.rank if message.silent else NO_RANK)

    def take_over(self, now: float) -> list[Output]:
        """Begin with the members of the head before: let them report."""
        return self._abort(now)

    def gone(self, now: float, rank: int, why: str) -> list[Output]:
        """A rank has died, or is taken for dead."""
        if rank in self.joining:
            self.joining.discard(rank)
            return [SendToMember(rank, Release(self.epoch))]
        if rank not in self.alive:
            return []
        self.alive.discard(rank)
        self.reports.pop(rank, None)
        outputs: list[Output] = [Excluded(rank, why), SendToMember(rank, Release(self.epoch))]
        if self.forming:
            return outputs + self._form_if_complete(now)
        return outputs + (self._abort(now) if rank in self.members else [])

    def tick(self, now: float) -> list[Output]:
        """Exclude the members that were cancelled and have not reported in time."""
        outputs: list[Output] = []
        for rank in sorted(self.alive - set(self.reports)) if self.forming and not self.starting else ():
            if now - self.since >= self.patience * (ONCE_MORE if rank == self._silent else 1):
                outputs += self.gone(now, rank, f"has not answered for {round(self.patience, 1):g} s")
        return outputs

    def _abort(self, now: float, silent: int = NO_RANK) -> list[Output]:
        self.forming, self.since, self.reports, self._silent = True, now, {}, silent
        return [SendToMember(rank, AbortFlag(self.epoch)) for rank in sorted(self.alive)]

    def _form_if_complete(self, now: float) -> list[Output]:
        """Begin the next group, if every living rank has reported."""
        if not self.alive or self.reports.keys() != self.alive:
            return []
        reports = {rank: self.reports[rank] for rank in sorted(self.alive)}
        progress = {rank: report.held for rank, report in reports.items() if not report.new}
        if not progress:
            return self.gone(now, min(reports), "has just come, and all that had the state of the run are lost")
        newest, oldest = max(progress.values()), min(progress.values())
        if self.gives and newest - oldest > 1:
            raise ProtocolError(f"members hold sums {progress}, which are more than one collective apart")
        newcomers = tuple(rank for rank in reports if rank not in progress)
        lacking = tuple(rank for rank, last in progress.items() if last < newest) if self.gives else ()
        takers = tuple(sorted(lacking + newcomers))
        giver = min(rank for rank, last in progress.items() if last == newest) if takers else NO_RANK
        self._apart = self._accused if self.alive.issuperset(self.members) else set()
        self._accused = set()
        self.epoch, self.forming, self.starting, self.members = self.epoch + 1, False, False, tuple(reports)
        since, held = max(report.ahead for report in reports.values()), tuple(each.held for each in reports.values())
        group = Regroup(self.epoch, self.members, newest + 1, since, giver, takers, held, newcomers)
        return [Formed(group), *(SendToMember(rank, group) for rank in self.members)]


@dataclass
class GroupMember:
    """A rank's side, between its worker and the head. What its methods return is sent to the head.

    The worker asks `enter` before a collective and says `leave` after it, with its number if it was finished. The
    messages of the head may arrive at any moment, also while the worker computes.
    """

    #: The last collective whose sum the rank holds.
    held: int = -1
    #: Whether an update whose sum is not there yet can be shared out differently: its gradient is computed again.
    repeats: bool = True
    #: The first update that this rank has not begun.
    begun: int = 0
    #: Whether it has come while the run goes on, and does not have the state of the others yet.
    new: bool = False

    def __post_init__(self) -> None:
        self.epoch = 0
        #: The newest group; None before the first.
        self.group: Regroup | None = None
        #: Whether the newest group was cancelled.
        self.aborted = True
        #: Whether the worker is in a collective, or in the exchange before the first.
        self.inside = False
        #: Whether the group has gone on without this rank.
        self.dismissed = False

    @property
    def reported(self) -> bool:
        """Whether the head counts on a report of which update this rank has not begun."""
        return self.aborted and not self.inside and not self.repeats

    def ready(self) -> Report:
        """The rank is ready for its first group."""
        return self._report()

    def handle(self, message: AbortFlag | Regroup | Release) -> Report | None:
        """Take a message of the head; one of an earlier epoch is left aside."""
        if isinstance(message, Release):
            self.dismissed = self.aborted = True
            return None
        if isinstance(message, Regroup):
            if message.epoch > self.epoch:
                self.group, self.epoch, self.aborted = message, message.epoch, self.dismissed
            return None
        if message.epoch < self.epoch or (message.epoch == self.epoch and self.aborted):
            return None
        self.epoch, self.aborted = message.epoch, True
        return None if self.inside else self._report()

    def enter(self, epoch: int) -> bool:
        """Whether the worker, which is connected to the ranks of this epoch, may exchange with them."""
        self.inside = epoch == self.epoch and not self.aborted
        return self.inside

    def leave(self, number: int | None = None) -> Report | None:
        """The worker is out of the collective, and holds its sum if `number` is given, and all that led to it."""
        self.inside = False
        if number is not None:
            self.held, self.new = number, False
        return self._report() if self.aborted and not self.dismissed else None

    def accuse(self, rank: int, silent: bool = False) -> Accuse | None:
        """The worker cannot reach a rank; to be called before `leave`."""
        return None if self.aborted else Accuse(self.epoch, rank, silent)

    def _report(self) -> Report:
        return Report(self.epoch, self.held, self.held + 1 if self.repeats else self.begun, self.new)
