"""Exploring every interleaving of a small world.

Desk and shards are machines with integers for state, and a program is where its answers have led it, so a world can be
copied, compared and visited once. The search is breadth-first: the first bad story that it finds is a shortest one. A
worker may die between any two of its commands, up to `deaths` of them in all, and another one may join in its place, up
to `joins` times. A command is atomic (the local engine makes it so, and is tested by killing workers there).

At every state no batch is leased to two living workers, versions count the pushes, and the staleness identity holds. At
every end each shard has applied each batch exactly once. And there is an end: no state in which all workers wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from paceline.core.exploration import Explored, Walker, breadth_first
from paceline.core.server.actions import Action, Apply, Done, Drop, Held, Late, Lease, Noted, Wait
from paceline.core.server.desk import Desk
from paceline.core.server.events import Ask, Command, Compute, Death, Finish, Join, Pull, Push
from paceline.core.server.gates import Gate
from paceline.core.server.gates.asynchronous import Asynchronous
from paceline.core.server.gathering import Gathering
from paceline.core.server.shard import Shard, Taken
from paceline.core.server.worker import Client, Program, push_every_batch, push_in_rounds
from paceline.narrative import Scene

Move = tuple[str, int]  # ("goes on", "dies" or "joins", worker)


@dataclass
class _World:
    """The state of a small world."""

    desk_state: list[int]
    shard_states: list[list[int]]
    workers: list[Walker[Command]]
    alive: list[bool]
    #: Whether each worker was answered Wait and the desk has not changed since.
    waits: list[bool]
    #: For each shard, the (batch, push) that it applied, in order.
    applied: list[list[tuple[int, Taken]]] = field(default_factory=list)
    #: The number of workers that joined late.
    joined: int = 0
    #: For each worker's number, a number that tells the workers that had it one after another apart.
    identity: list[int] = field(default_factory=list)

    def copy(self) -> _World:
        return _World(
            list(self.desk_state),
            [list(s) for s in self.shard_states],
            [worker.copy() for worker in self.workers],
            list(self.alive),
            list(self.waits),
            [list(a) for a in self.applied],
            self.joined,
            list(self.identity),
        )


class _Size(NamedTuple):
    """How large a small world is, and what may happen in it."""

    workers: int
    batches: int
    shards: int
    gathers: int
    deaths: int
    joins: int


class _Explorer:
    """The machines of a small world, and its moves and invariants."""

    def __init__(self, size: _Size, gate: Gate, desk: type[Desk], program: Callable[[Client], Program]) -> None:
        self.count, self.batches, self.shards, self.gathers, self.deaths, self.joins = size
        self.program, self.desk = program, desk(size.workers, size.batches, gate)
        gathering = Gathering(size.workers, size.gathers) if size.gathers else None
        self.shard: Shard | Gathering = gathering or Shard(size.workers)

    def first(self) -> _World:
        desk_state = [0] * self.desk.ints
        self.desk.init(desk_state)
        shard_states = [[0] * self.shard.ints for _ in range(self.shards)]
        for state in shard_states:
            self.shard.init(state)
        workers = [self._worker(Client(number, self.shards)) for number in range(self.count)]
        return _World(
            desk_state,
            shard_states,
            workers,
            [True] * self.count,
            [False] * self.count,
            [[] for _ in shard_states],
            0,
            list(range(self.count)),
        )

    def _worker(self, client: Client) -> Walker[Command]:
        return Walker(partial(self.program, client))

    def key(self, world: _World) -> tuple[Any, ...]:
        return (
            self.desk.key(world.desk_state),
            tuple(self.shard.key(s) for s in world.shard_states),
            tuple(w.key() for w in world.workers),
            tuple(world.alive),
            tuple(world.waits),
            world.joined,
            tuple(tuple(sorted(batch for batch, _ in applied)) for applied in world.applied),
        )

    def moves(self, world: _World) -> Iterator[Move]:
        """Yield the moves that are possible in a world."""
        died = world.alive.count(False) + world.joined
        for number, worker in enumerate(world.workers):
            if world.alive[number] and worker.effect is not None:
                if not world.waits[number]:
                    yield ("goes on", number)
                if died < self.deaths and world.alive.count(True) > 1:
                    yield ("dies", number)
            elif not world.alive[number] and world.joined < self.joins:
                yield ("joins", number)

    def make(self, world: _World, move: Move) -> Scene:
        """Change the world by one move, and describe it."""
        kind, number = move
        if kind == "dies":
            world.alive[number] = False
            self.desk.handle(world.desk_state, Death(number))
            world.waits = [False] * self.count
            return Scene(f"worker {number}", "dies")
        if kind == "joins":
            world.alive[number], world.identity[number] = True, self.count * (world.joined + 1) + number
            world.joined += 1
            world.workers[number] = self._worker(Client(number, self.shards, joins=True))
            return Scene(f"worker {number}", "joins in the place of the dead one")
        worker = world.workers[number]
        command = worker.effect
        assert command is not None
        action = self._perform(world, command)
        if isinstance(command, Finish) or isinstance(action, Lease):
            world.waits = [False] * self.count  # the desk has changed: workers that wait may ask again
        if isinstance(action, Wait):
            world.waits[number] = True
            worker.effect = command if isinstance(command, Join) else Ask(number)
        elif isinstance(command, Compute):
            worker.send(command.lease)
        else:
            worker.send(None if isinstance(action, Done) else action)
        return Scene(f"worker {number}", f"{_say(command)} -> {_say(action)}")

    def _perform(self, world: _World, command: Command) -> Action:
        if isinstance(command, Compute):
            return Noted()
        if isinstance(command, Push | Pull):
            action = self.shard.handle(world.shard_states[command.shard], command)
            if isinstance(command, Push) and isinstance(action, Apply | Held):
                who = world.identity[command.worker]
                world.applied[command.shard].append((command.batch, Taken(who, action.base, who >= self.count)))
            return action
        return self.desk.handle(world.desk_state, command)

    def ended(self, moves: Sequence[Move]) -> bool:
        """Whether no worker can go on."""
        return not any(kind == "goes on" for kind, _ in moves)

    def fault(self, world: _World) -> str | None:
        """Describe an invariant that fails in this state; None if all hold."""
        leases = [b for n, b in enumerate(self.desk.leased(world.desk_state)) if b >= 0 and world.alive[n]]
        if len(set(leases)) < len(leases):
            return f"two living workers hold the same batch: leases {leases}"
        for number, applied in enumerate(world.applied):
            batches = [batch for batch, _ in applied]
            if len(set(batches)) < len(batches):
                return f"shard {number} applied a batch twice: {batches}"
            if fault := self.shard.fault([push for _, push in applied], world.shard_states[number][0]):
                return f"shard {number}: {fault}"
        return None

    def fault_at_end(self, world: _World) -> str | None:
        """Describe what is missing in a final state; None if nothing is."""
        stuck = [n for n, w in enumerate(world.workers) if world.alive[n] and w.effect is not None]
        if stuck:
            return f"workers {stuck} wait for ever"
        for number, applied in enumerate(world.applied):
            missing = set(range(self.batches)) - {batch for batch, _ in applied}
            if missing:
                return f"every worker has finished, but shard {number} never got batches {sorted(missing)}"
        return None


def explore(
    workers: int = 2,
    batches: int = 3,
    shards: int = 1,
    deaths: int = 0,
    gate: Gate | None = None,
    desk: type[Desk] = Desk,
    gathers: int = 0,
    joins: int = 0,
    program: Callable[[Client], Program] | None = None,
) -> Explored:
    """Explore every interleaving, and return the shortest story in which an invariant fails, if there is one."""
    program = program or (push_in_rounds if gathers else push_every_batch)
    size = _Size(workers, batches, shards, gathers, deaths, joins)
    return breadth_first(_Explorer(size, gate or Asynchronous(), desk, program))


def _say(thing: Command | Action) -> str:
    """Return a command or an answer in words."""
    if isinstance(thing, Lease):
        return f"batch {thing.batch}{' again' if thing.again else ''}"
    if isinstance(thing, Apply):
        return f"version {thing.version} (computed from {thing.base})"
    if isinstance(thing, Held):
        return f"held for version {thing.version}"
    if isinstance(thing, Join):
        return "joins"
    if isinstance(thing, Pull):
        return f"pulls shard {thing.shard}"
    if isinstance(thing, Push):
        return f"pushes batch {thing.batch} to shard {thing.shard}"
    if isinstance(thing, Compute):
        return f"computes batch {thing.lease.batch}"
    if isinstance(thing, Noted):
        return "done"
    if isinstance(thing, Done):
        return "finishes"
    if isinstance(thing, Wait | Drop | Late):
        return type(thing).__name__.lower()
    return f"finishes batch {thing.batch}" if isinstance(thing, Finish) else "asks"
