"""Who leads a run: any rank can, one at a time. A term for every change of the head, as an epoch for every group.

    ranks 0 1 2, term 0     rank 0 leads, and dies
    1, 2: Vote(1)           both follow no term below 1 any longer, and vote for rank 1, which is the next
    1: Lead(1)              a majority has voted for it
    1: Roll(1, (1, 2))      the ranks that belong to the run from now on; each answers by Accepted
    1: Confirmed              a majority has accepted it

Of each term only one rank can be the head: `term % nodes`. So no term has two heads, and no vote is split. A rank votes
only when it has lost the head itself, so one bad link deposes no one.

A node that joins while the run goes on may take the rank of one that was lost, which may be only asleep. So those that
vote are nodes, by their numbers: of the k-th node of rank r it is `k * nodes + r`, as with all processes of a run.

A majority is one of the newest roll, so a run of five may lose one after another. Ranks whose process is known to be
gone are not counted; at a tie the side with the head of the roll goes on. As long as a roll is not confirmed, a
majority of the one before is asked for, too: any two majorities have a rank in common, which knows the newer roll.

What cannot be taken back, to give the run its result, waits until a final roll is confirmed. A head that slept
meanwhile, or was cut off, gets no majority for it: it is told of the later term, or gives up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Roll(NamedTuple):
    """The nodes that belong to a run."""

    term: int
    #: Grows with each change within a term.
    number: int
    members: tuple[int, ...]
    #: Those of the last roll that was confirmed, without the dead; the same as `members` once this one is.
    before: tuple[int, ...]
    #: Whether every update is made, so that the run may be given its result.
    final: bool = False
    #: The term and number of the roll that the head of this term was elected by.
    base: tuple[int, int] = (0, 0)

    @property
    def confirmed(self) -> bool:
        """Whether a majority has accepted it."""
        return self.members == self.before

    @property
    def age(self) -> tuple[int, int, bool]:
        """What rolls are ordered by."""
        return self.term, self.number, self.confirmed


class Vote(NamedTuple):
    """A node follows no lower term any longer, and has accepted this roll last."""

    voter: int
    term: int
    roll: Roll


class Accepted(NamedTuple):
    """A node has accepted the roll of this number."""

    voter: int
    term: int
    number: int


class Later(NamedTuple):
    """A later term has a head."""

    term: int


Message = Roll | Vote | Accepted | Later


class SendToNode(NamedTuple):
    """Send a message to the node of a rank, which has to be connected first if it is not the head."""

    to: int
    message: Message


class Lead(NamedTuple):
    """This node is the head from now on."""

    term: int


class Confirmed(NamedTuple):
    """A majority has accepted the roll."""

    roll: Roll


class Deposed(NamedTuple):
    """The run goes on under the head of a later term, without this node."""

    term: int


class Alone(NamedTuple):
    """This node belongs to no majority: it can neither lead nor follow."""

    why: str


Output = SendToNode | Lead | Confirmed | Deposed | Alone


#: The roll of a node that joins, and that knows none yet: older than any.
NO_ROLL = Roll(0, -1, (), ())


def first_roll(ranks: Iterable[int]) -> Roll:
    """Return the roll of a run that begins with the first nodes of these ranks."""
    first = tuple(ranks)
    return Roll(0, 0, first, first)


def next_term(term: int, nodes: int, candidates: Iterable[int]) -> int:
    """Return the next term of which one of these nodes is the head."""
    ranks = {number % nodes for number in candidates}
    return next(later for later in range(term + 1, term + nodes + 1) if later % nodes in ranks)


def deputy(roll: Roll, nodes: int) -> int | None:
    """Return the rank that leads next if the head of a roll is lost; None if there is no other."""
    others = {number % nodes for number in roll.members} - {roll.term % nodes}
    return next_term(roll.term, nodes, others) % nodes if others else None


@dataclass
class Succession:
    """One node's part in it. `patience` is how many seconds a node waits for a majority, or for its candidate."""

    number: int
    #: The ranks that there may be.
    nodes: int
    patience: float
    #: The newest roll that this node has accepted, or made.
    roll: Roll
    #: Nodes whose process is known to be gone.
    dead: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rank = self.number % self.nodes
        #: The lowest term that this node follows.
        self.term = self.roll.term
        self.leads = self.head == self.rank and self.number in self.roll.members
        #: Whether it has lost its head and knows of no other yet; and the nodes that it cannot reach since then.
        self.seeks = False
        self.unreached: set[int] = set()
        #: The votes for terms of this rank; those that have accepted the roll.
        self.votes: dict[int, dict[int, Roll]] = {}
        self.accepted: set[int] = set()
        #: Since when this node waits for a majority or its candidate; None if it does not.
        self.since: float | None = None
        #: Of a head that has taken over: since when, and the members of which it has heard nothing yet.
        self.leads_since, self.unheard = 0.0, set[int]()

    @property
    def head(self) -> int:
        """The rank of the head, or of the one that this node votes for."""
        return self.term % self.nodes

    @property
    def deputy(self) -> int | None:
        """The rank that is to have what this head has: the next one whose node follows it already."""
        following = tuple(number for number in self.roll.members if number not in self.unheard)
        return deputy(self.roll._replace(members=following), self.nodes)

    def handle(self, now: float, sender: int, message: Message) -> list[Output]:
        """Take a message of the node of a rank."""
        if isinstance(message, Roll):
            return self._take_roll(sender, message)
        if isinstance(message, Vote):
            return self._take_vote(now, sender, message)
        if isinstance(message, Accepted):
            if self.leads and message.term == self.term:
                self.unheard.discard(message.voter)
                if message.number == self.roll.number:
                    self.accepted.add(message.voter)
            return self._confirm_if_accepted()
        return self._deposed(message.term) if message.term > self.term or self.seeks else []

    def lost(self, now: float, number: int, dead: bool = False) -> list[Output]:
        """A node cannot be reached any longer; `dead` if its process is known to be gone. It may be said again."""
        if dead:
            self.dead.add(number)
        if self.leads:
            return self._remove(now, number) if number in self.roll.members else self._confirm_if_accepted()
        for votes in self.votes.values():
            votes.pop(number, None)
        leads = number % self.nodes == self.head
        if not leads and not self.seeks:
            return []
        self.unreached.add(number)
        return self._seek(now) if leads else self._lead_if_elected(now)

    def reconnected(self, rank: int) -> list[Output]:
        """A node that was lost is connected again: it is sent the roll, and answers with a later one."""
        return [SendToNode(rank, self.roll)] if self.leads else []

    def tick(self, now: float) -> list[Output]:
        """Give up whom was waited for."""
        if self.leads and self.unheard and now - self.leads_since >= self.patience:
            away, self.unheard = self.unheard, set()
            return [output for number in sorted(away) for output in self.lost(now, number)]
        if self.since is None or now - self.since < self.patience:
            return []
        if self.leads or self.head == self.rank:
            self.since = None
            ranks = _listed(number % self.nodes for number in self.roll.before)
            return [Alone(f"no majority of ranks {ranks} could be reached for {self.patience:.3g} s")]
        self.unreached |= {number for number in self.roll.members if number % self.nodes == self.head}
        return self._seek(now)

    def join(self, now: float, number: int) -> list[Output]:
        """A node has come, perhaps in the place of one that was lost."""
        others = {other for other in self.roll.members if other % self.nodes != number % self.nodes}
        return self._changed(now, tuple(sorted({*others, number})), self.roll.final)

    def finish(self, now: float) -> list[Output]:
        """Every update is made: ask whether this node is still the head. It is when a final roll is confirmed."""
        return self._changed(now, self.roll.members, True)

    # --- the head ---

    def _remove(self, now: float, number: int) -> list[Output]:
        return self._changed(now, tuple(other for other in self.roll.members if other != number), self.roll.final)

    def _changed(self, now: float, members: tuple[int, ...], final: bool) -> list[Output]:
        return [*self._propose(now, members, final), *self._confirm_if_accepted()]

    def _propose(self, now: float, members: tuple[int, ...], final: bool) -> list[Output]:
        """Make the next roll, and ask its members to accept it."""
        before = tuple(number for number in self.roll.before if number not in self.dead)
        number = self.roll.number + 1 if self.roll.term == self.term else 1
        base = self.roll.base if self.roll.term == self.term else (self.roll.term, self.roll.number)
        self.roll = Roll(self.term, number, members, before, final, base)
        self.accepted, self.since = {self.number}, now
        return self._broadcast()

    def _confirm_if_accepted(self) -> list[Output]:
        roll = self.roll
        if not self.leads or self.since is None or not self._have_majority(self.accepted, roll):
            return []
        self.since = None
        self.roll = roll._replace(before=roll.members)
        return [Confirmed(self.roll), *self._broadcast()]

    def _broadcast(self) -> list[Output]:
        return [SendToNode(number % self.nodes, self.roll) for number in self.roll.members if number != self.number]

    # --- the others ---

    def _take_roll(self, sender: int, roll: Roll) -> list[Output]:
        """Accept a roll, unless it is an older one than this node knows, or of a term that it has left."""
        if roll.term < self.roll.term:
            return [SendToNode(sender, Later(self.roll.term))]
        if roll.term < self.term and roll.confirmed and self.number not in roll.members:
            return self._deposed(self.term)  # it has sought another head, while a majority has followed this one
        if roll.term < self.term or roll.age < self.roll.age:
            return []
        if self.leads:
            return self._deposed(roll.term) if roll.term > self.term else []
        if roll.term > self.roll.term and (self.roll.term, self.roll.number) > roll.base:
            return self._deposed(roll.term)  # it has gone on with an earlier head, of which this one does not know
        self.term, self.roll, self.seeks, self.since, self.unreached = roll.term, roll, False, None, set()
        return [SendToNode(sender, Accepted(self.number, roll.term, roll.number))]

    def _deposed(self, term: int) -> list[Output]:
        """Take note that the head of a later term leads, without this rank."""
        self.term, self.leads, self.since = term, False, None
        return [Deposed(term)]

    def _take_vote(self, now: float, sender: int, vote: Vote) -> list[Output]:
        """Count a vote; one that comes after the majority is answered by the roll."""
        if self.leads and vote.term >= self.term:
            belongs = vote.voter in self.roll.members and vote.term == self.term
            return [SendToNode(sender, self.roll if belongs else Later(self.term))]
        if vote.term > self.roll.term and vote.term % self.nodes == self.rank:
            self.votes.setdefault(vote.term, {})[vote.voter] = vote.roll
        return self._lead_if_elected(now)

    def _seek(self, now: float) -> list[Output]:
        """Vote for the next node that may be reached."""
        self.seeks, self.since = True, now
        candidates = set(self.roll.members) - self.unreached - self.dead
        self.term = next_term(self.term, self.nodes, candidates | {self.number})
        if self.head != self.rank:
            return [SendToNode(self.head, Vote(self.number, self.term, self.roll))]
        self.votes.setdefault(self.term, {})[self.number] = self.roll
        return self._lead_if_elected(now)

    def _lead_if_elected(self, now: float) -> list[Output]:
        """Lead as soon as a majority of the newest roll has voted for this node."""
        votes = self.votes.get(self.term, {})
        if self.leads or not self.seeks or self.head != self.rank:
            return []
        newest = max(votes.values(), key=lambda roll: roll.age)
        if self.number not in newest.members or not self._have_majority(votes, newest):
            return []
        self.leads, self.seeks, self.leads_since = True, False, now
        away = self.unreached | self.dead
        members = tuple(number for number in newest.members if number in votes or number not in away)
        self.roll, self.unheard = newest, set(members) - votes.keys()
        return [*self._propose(now, members, False), Lead(self.term), *self._confirm_if_accepted()]

    def _have_majority(self, votes: Collection[int], roll: Roll) -> bool:
        """Whether votes are a majority of a roll, and of the one before as long as that is not confirmed."""
        head = roll.term % self.nodes
        return all(self._is_majority(votes, members, head) for members in {roll.members, roll.before})

    def _is_majority(self, votes: Collection[int], members: Collection[int], head: int) -> bool:
        counted = set(members) - self.dead
        voters = counted & set(votes)
        tie = 2 * len(voters) == len(counted) and any(number % self.nodes == head for number in voters)
        return tie or 2 * len(voters) > len(counted)


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))
