"""Walks every interleaving of a small cluster, each world once.

    found = explore(SmallCluster(workers=2, shards=2, batches=2, losses=1, doubles=1, kills=1))
    found.story                                              # None: every promise holds in every interleaving

What may happen is in `small_cluster`. What is checked: a server applies each version once, in order, and no batch
twice; a backup confirms what its primary has; a server that becomes a primary has every acknowledged push; and every
world ends, with every batch in every shard: from each one there is a way to an end on which nothing more goes wrong.

The search is breadth-first, so the story of a fault is a shortest one. Of each world its 64-bit hash is kept: that any
two of ten million share theirs has a chance of three in a million.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import NamedTuple

from paceline.algorithms.cluster.machines import Machines
from paceline.algorithms.cluster.outputs import describe
from paceline.algorithms.cluster.small_cluster import Move, Moves, SmallCluster, World
from paceline.algorithms.cluster.steps import Computed, Noticed
from paceline.narrative import Scene, format_story

HEADLINE = "A small cluster goes wrong:"
UNKNOWN, ON_THE_WAY, ENDS = 0, 1, 2


class Explored(NamedTuple):
    """What an exploration has found."""

    worlds: int
    moves: int
    #: Worlds in which the run has ended.
    ends: int
    #: The shortest story in which a promise breaks; None if none does.
    story: str | None


class TooManyWorlds(Exception):
    """There are more worlds than were asked for."""


class Explorer:
    """The worlds that were seen, numbered in the order in which they were."""

    def __init__(self, cluster: SmallCluster, machines: Machines) -> None:
        self._moves = Moves(cluster, machines)
        self._numbers: dict[int, int] = {}
        #: For each world, the one that it was reached from first, and the one that follows if nothing goes wrong.
        self._before, self._follows = array("I"), array("I")
        self._ends: list[int] = []
        self._queue: deque[World] = deque()
        self._made = 0

    def explore(self, limit: int | None) -> Explored:
        """Visit every world."""
        self._seen(self._moves.first(), 0)
        number = 0
        while self._queue:
            if limit is not None and len(self._numbers) > limit:
                raise TooManyWorlds(f"more than {limit:,} worlds")
            story = self._visit(number, self._queue.popleft())
            if story is not None:
                return self._found(story)
            number += 1
        return self._found(self._endless())

    def _found(self, story: str | None) -> Explored:
        return Explored(len(self._numbers), self._made, len(self._ends), story)

    def _visit(self, number: int, world: World) -> str | None:
        """Look at everything that may happen next; return the story of a fault."""
        if self._moves.ended(world):
            self._ends.append(number)
            self._follows.append(number)
            fault = self._moves.fault_at_the_end(world)
            return self._describe(self._path(number), fault) if fault else None
        for place, move in enumerate(self._moves.moves(world)):
            self._made += 1
            if move.fault:
                return self._describe([*self._path(number), move], move.fault)
            then = self._seen(move.then, number)
            if place == 0:
                self._follows.append(then)
        return None

    def _seen(self, world: World, before: int) -> int:
        """Return the number of a world, which will be visited if it is a new one."""
        number = self._numbers.setdefault(hash(world), len(self._before))
        if number == len(self._before):
            self._before.append(before)
            self._queue.append(world)
        return number

    def _endless(self) -> str | None:
        """Return the story of a world that comes back to itself for ever, although nothing more goes wrong."""
        fates = bytearray(len(self._follows))
        for end in self._ends:
            fates[end] = ENDS
        for start in range(len(fates)):
            path, number = list[int](), start
            while fates[number] == UNKNOWN:
                fates[number] = ON_THE_WAY
                path.append(number)
                number = self._follows[number]
            if fates[number] == ON_THE_WAY:
                return self._describe(self._path(number), "what follows comes back to this again and again")
            for each in path:
                fates[each] = ENDS
        return None

    # The story

    def _path(self, number: int) -> list[Move]:
        """Return the moves that have led to a world: they are made again, from the first one on."""
        numbers = [number]
        while numbers[-1]:
            numbers.append(self._before[numbers[-1]])
        world, path = self._moves.first(), []
        for target in reversed(numbers[:-1]):
            move = next(m for m in self._moves.moves(world) if self._numbers.get(hash(m.then)) == target)
            path.append(move)
            world = move.then
        return path

    def _describe(self, path: list[Move], fault: str) -> str:
        return format_story(HEADLINE, [self._scene(move) for move in path], fault)

    def _scene(self, move: Move) -> Scene:
        """Return a move in words."""
        if move.what == "time passes":
            return Scene("", "time passes")
        if move.what in ("killed", "suspected"):
            happened = "is killed" if move.what == "killed" else "is taken for dead, and lives"
            return Scene(str(self._moves.names[move.number]), happened)
        to, sender, what, _ = self._moves.steps.events[move.number]
        if isinstance(what, Computed):
            return Scene(str(to), "has computed its batch")
        if isinstance(what, Noticed):
            return Scene(str(to), f"notices that {what.process} is gone")
        if move.what == "is lost":
            return Scene(str(sender), f"sends {describe(what)} to {to}, and it is lost")
        more = {"arrives twice": ", and a second one is under way", "arrives late": " a second time"}.get(move.what, "")
        return Scene(str(to), f"gets {describe(what)} from {sender}{more}")


def explore(cluster: SmallCluster, machines: Machines | None = None, limit: int | None = None) -> Explored:
    """Walk every interleaving.

    Raises:
        TooManyWorlds: there are more than `limit`.
    """
    return Explorer(cluster, machines or Machines()).explore(limit)
