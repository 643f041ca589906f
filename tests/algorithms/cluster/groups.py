"""A small group of ranks and its head, of which every interleaving is walked.

A rank may die between any two of its steps, the head may take a living one for dead or be replaced, a rank may come at
any moment, and a message may arrive a second time, at any later one. Whatever happens, every survivor applies every
update once, all apply the same sums, every sum has each chunk once, and no one waits for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias, TypeVar

from paceline.algorithms.cluster.group import (
    Excluded,
    GroupMember,
    Head,
    Report,
    SendToMember,
)
from paceline.algorithms.cluster.shares import Membership

AWAY, WAITS, COMPUTES = "has not come", "waits", "computes"
INSIDE, TAKES, DONE = "is in the collective", "takes the sum", "is done"
Move = tuple[str, int, Any]
T = TypeVar("T")
Path: TypeAlias = "tuple[Move, Path] | None"


def twin(thing: T) -> T:
    """Return a shallow copy, faster than `copy.copy`."""
    made = object.__new__(type(thing))
    made.__dict__.update(thing.__dict__)
    return made


class Rank:
    """A worker with its member's machine."""

    def __init__(self, parts: int, member: type[GroupMember]) -> None:
        self.member, self.shares = member(), Membership(parts)
        self.phase, self.alive = AWAY, True
        #: The epoch that it is connected in.
        self.epoch = 0
        #: The sum that it applied as each update: (epoch, {rank: its chunks}).
        self.sums: tuple[Any, ...] = ()
        #: The sum that lies in its vector.
        self.vector: Any = None

    def copy(self) -> Rank:
        other = twin(self)
        other.member, other.shares = twin(self.member), twin(self.shares)
        other.shares._since, other.shares._ranks = list(self.shares._since), list(self.shares._ranks)
        return other

    def key(self) -> Any:
        m, s = self.member, self.shares
        return (
            self.phase,
            self.alive,
            self.epoch,
            self.sums,
            self.vector,
            tuple(s._since),
            tuple(s._ranks),
            m.held,
            m.epoch,
            m.group,
            m.aborted,
            m.inside,
            m.dismissed,
            m.new,
        )


class World:
    """The head, the ranks, and what lies between them."""

    def __init__(
        self,
        ranks: int,
        updates: int,
        deaths: int,
        alarms: int,
        repeats: int,
        head: type[Head],
        member: type[GroupMember],
        heads: int = 1,
        comes: int = 0,
    ) -> None:
        """The last ranks have not come yet: so many as `comes` says."""
        self.updates, self.deaths, self.alarms, self.repeats = updates, deaths, alarms, repeats
        #: Heads that may still take the place of the one before.
        self.heads = heads - 1
        self.head = head(set(range(ranks - comes)), 1.0)
        self.ranks = [Rank(ranks, member) for _ in range(ranks)]
        #: For each rank, messages to the head and from it, in their order.
        self.up: list[tuple[Any, ...]] = [()] * ranks
        self.down: list[tuple[Any, ...]] = [()] * ranks
        #: Messages that have arrived once: (to the head or from it, rank, message).
        self.past: frozenset[Any] = frozenset()
        #: Dead ranks that the head does not know of.
        self.unnoticed: frozenset[int] = frozenset()
        #: (epoch, update) -> {rank: its chunks}, of ranks that have begun the collective.
        self.begun: dict[tuple[int, int], dict[int, tuple[int, ...]]] = {}
        #: epoch -> the sums that its giver has applied, and the last one, which it has sent.
        self.given: dict[int, Any] = {}
        for number in range(ranks - comes):
            self._become_ready(number)

    def copy(self) -> World:
        other = twin(self)
        other.head, other.ranks = twin(self.head), [rank.copy() for rank in self.ranks]
        other.head.alive, other.head.reports = set(self.head.alive), dict(self.head.reports)
        other.head.joining = set(self.head.joining)
        other.head._apart, other.head._accused = set(self.head._apart), set(self.head._accused)
        other.up, other.down = list(self.up), list(self.down)
        other.begun, other.given = {k: dict(v) for k, v in self.begun.items()}, dict(self.given)
        return other

    def key(self) -> Any:
        h = self.head
        return (
            h.epoch,
            h.members,
            h.forming,
            frozenset(h.alive),
            frozenset(h.joining),
            frozenset(h.reports.items()),
            frozenset(h._apart),
            frozenset(h._accused),
            tuple(rank.key() for rank in self.ranks),
            tuple(self.up),
            tuple(self.down),
            self.unnoticed,
            frozenset((k, frozenset(v.items())) for k, v in self.begun.items()),
            frozenset(self.given.items()),
            self.deaths,
            self.alarms,
            self.heads,
            self.repeats,
            self.past if self.repeats else None,
        )

    # --- what can happen next ---

    def moves(self) -> Iterator[Move]:
        for number, rank in enumerate(self.ranks):
            if self.up[number]:
                yield "the head hears", number, None
            if rank.phase == AWAY:
                yield "the head welcomes", number, None
            elif rank.alive:
                yield from self._moves_of(number, rank)
        for number in self.unnoticed:
            yield "the head notices the death of", number, None
        if self.heads:
            for lost in range(1 << len(self.ranks)):
                yield "the head is replaced", lost, None
        if self.alarms:
            for number in sorted(self.head.alive):
                yield "the head gives up", number, None
        if self.repeats:
            for told in sorted(self.past, key=repr):
                yield "comes again to" if told[0] else "the head hears again", told[1], told[2]

    def _moves_of(self, number: int, rank: Rank) -> Iterator[Move]:
        if self.down[number]:
            yield "hears", number, None
        if self.deaths and number in self.head.alive | self.head.joining:
            yield "dies", number, None
        fresh = rank.member.epoch > rank.epoch and not rank.member.aborted
        if rank.phase == COMPUTES or (rank.phase in (WAITS, DONE) and fresh):
            yield "goes on", number, None
        if rank.phase in (INSIDE, TAKES):
            if self._possible(number, rank):
                yield "gets the sum", number, None
            if rank.member.aborted or self._broken(rank):
                yield "gets nothing", number, None

    def _possible(self, number: int, rank: Rank) -> bool:
        if rank.phase == TAKES:
            return rank.epoch in self.given
        group = self._group(rank)
        return len(self.begun[rank.epoch, rank.member.held + 1]) == len(group)

    def _group(self, rank: Rank) -> tuple[int, ...]:
        return rank.shares.ranks(self.updates)

    def _broken(self, rank: Rank) -> list[int]:
        """The ranks that a rank can no longer reach: dead, or connected in another epoch, or waiting for one."""
        return [
            n
            for n in self._group(rank)
            if not (o := self.ranks[n]).alive or o.epoch > rank.epoch or (o.epoch == rank.epoch and o.phase == WAITS)
        ]

    # --- what it does ---

    def make(self, move: Move) -> None:
        what, number, message = move
        if what == "the head is replaced":
            self._replace_head(number)
            return
        rank = self.ranks[number]
        if what == "the head welcomes":
            rank.member.new = not self.head.starting
            self.head.join(number)
            self._become_ready(number)
        elif what == "dies":
            rank.alive, self.deaths = False, self.deaths - 1
            self.unnoticed |= {number}
            self.down[number] = ()
        elif what == "the head notices the death of":
            self.unnoticed -= {number}
            self._told(self.head.gone(0.0, number, "it has died"))
        elif what == "the head gives up":
            self.alarms -= 1
            self._told(self.head.gone(0.0, number, "it has not answered"))
        elif what == "the head hears":
            message, *rest = self.up[number]
            self.up[number] = tuple(rest)
            self.past |= {(False, number, message)}
            self._to_head(number, message)
        elif what == "the head hears again":
            self.repeats -= 1
            self._to_head(number, message)
        elif what == "hears":
            message, *rest = self.down[number]
            self.down[number] = tuple(rest)
            self.past |= {(True, number, message)}
            self._up(number, rank.member.handle(message))
        elif what == "comes again to":
            self.repeats -= 1
            if rank.alive:
                self._up(number, rank.member.handle(message))
        elif what == "goes on":
            self._go_on(number, rank)
        else:
            self._come_out(number, rank, what == "gets the sum")

    def _become_ready(self, number: int) -> None:
        self.ranks[number].phase = WAITS
        self._up(number, self.ranks[number].member.ready())

    def _replace_head(self, lost: int) -> None:
        """Let another head take over: what was sent to the one before is lost, what it sent only where a bit is set."""
        before, self.heads = self.head, self.heads - 1
        alive = before.alive | before.joining
        self.head = type(before)(alive, 1.0, epoch=before.epoch + 10, starting=before.starting)
        self.up = [()] * len(self.ranks)
        for number in range(len(self.ranks)):
            if lost >> number & 1:
                self.down[number] = ()
        self._told(self.head.take_over(0.0))

    def _to_head(self, number: int, message: Any) -> None:
        hears = self.head.report if isinstance(message, Report) else self.head.accuse
        self._told(hears(0.0, number, message))

    def _told(self, outputs: list[Any]) -> None:
        for each in outputs:
            if isinstance(each, SendToMember) and self.ranks[each.to].alive:
                self.down[each.to] += (each.message,)
            if isinstance(each, Excluded):
                self.down[each.rank] = ()

    def _up(self, number: int, message: Any) -> None:
        if message is not None:
            self.up[number] += (message,)

    def _go_on(self, number: int, rank: Rank) -> None:
        member = rank.member
        if rank.phase in (WAITS, DONE):
            group, rank.epoch = member.group, member.epoch
            assert group is not None
            rank.shares.regrouped(group.since, group.ranks)
            if number in (*group.takers, *group.newcomers):
                rank.phase = TAKES if member.enter(rank.epoch) else WAITS
            else:
                rank.phase = COMPUTES
                if number == group.giver:
                    self.given[group.epoch] = rank.sums[: group.number], rank.vector
        elif member.held + 1 == self.updates:
            rank.phase = DONE
        elif member.enter(rank.epoch):
            rank.phase, update = INSIDE, member.held + 1
            begun = self.begun.setdefault((rank.epoch, update), {})
            begun[number] = tuple(rank.shares.parts_of(number, update))
        else:
            rank.phase = WAITS

    def _come_out(self, number: int, rank: Rank, summed: bool) -> None:
        member = rank.member
        if summed:
            update = member.held + 1
            if rank.phase == TAKES:
                update = self._take(number, rank)
            else:
                rank.vector = self._sum(rank.epoch, update)
                rank.sums += (rank.vector,)
            rank.phase = COMPUTES
            self._up(number, member.leave(update))
            return
        broken = self._broken(rank)
        if broken:
            self._up(number, member.accuse(broken[0]))
        rank.phase = WAITS
        self._up(number, member.leave())

    def _take(self, number: int, rank: Rank) -> int:
        """Take the sum of the giver, or its state first; return the update whose sum the rank holds then."""
        group, (sums, vector) = rank.member.group, self.given[rank.epoch]
        assert group is not None
        if number in group.newcomers:
            began = any(number in ranks for ranks in self.begun.values())
            assert not began, f"rank {number} took a state in the middle of an update"
            rank.sums = sums
        else:
            rank.sums += (vector,)
        if number in group.takers:
            rank.vector = vector
        applied = [each[1] for each in rank.sums]
        assert applied == list(range(group.number)), f"rank {number} applied the sums of updates {applied}"
        assert not rank.sums or vector == rank.sums[-1], f"rank {number} was given another sum than the last"
        return group.number - 1

    def _sum(self, epoch: int, update: int) -> Any:
        begun = self.begun[epoch, update]
        chunks = sorted(chunk for mine in begun.values() for chunk in mine)
        assert chunks == list(range(len(self.ranks))), f"the sum of update {update} has chunks {chunks}"
        return epoch, update, tuple(sorted(begun.items()))

    def check_end(self) -> None:
        """Nothing can happen any longer: every rank of the run has made every update, and all made the same."""
        for number in self.head.alive:
            rank = self.ranks[number]
            assert rank.phase == DONE, f"rank {number} {rank.phase} for ever"
            assert len(rank.sums) == self.updates
        assert len({self.ranks[number].sums for number in self.head.alive}) <= 1, "survivors applied different sums"


def explore(
    deaths: int,
    alarms: int = 0,
    repeats: int = 0,
    updates: int = 2,
    ranks: int = 3,
    head: type[Head] = Head,
    member: type[GroupMember] = GroupMember,
    deep: bool = False,
    heads: int = 1,
    comes: int = 0,
) -> int:
    """Visit every state of the world; return how many there are, and raise with the story of a fault.

    The story is a shortest one, unless the search goes `deep` first, which finds some fault sooner.
    """
    first = World(ranks, updates, deaths, alarms, repeats, head, member, heads, comes)
    seen = {first.key()}
    #: Worlds to visit, each with the moves that led to it, the last one first.
    ahead: deque[tuple[World, Path]] = deque([(first, None)])
    while ahead:
        world, path = ahead.pop() if deep else ahead.popleft()
        moves, here = list(world.moves()), path
        try:
            if not moves:
                world.check_end()
            for move in moves:
                after, here = world.copy(), (move, path)
                after.make(move)
                key = after.key()
                if key not in seen:
                    seen.add(key)
                    ahead.append((after, here))
        except Exception as fault:
            raise AssertionError("\n".join([*_story(here), f"{type(fault).__name__}: {fault}"])) from fault
    return len(seen)


def _story(path: Path) -> list[str]:
    lines: list[str] = []
    while path is not None:
        (what, number, message), path = path
        lines.append(f"{what} {number}" if what.startswith("the head") else f"rank {number} {what} {message or ''}")
    return lines[::-1]
