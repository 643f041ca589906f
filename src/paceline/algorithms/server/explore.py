"""Exploring every interleaving of a small world.

Desk and shards are machines with integers for state, and a program is where its answers have led it, so a world can be
copied, compared and visited once. The search is breadth-first: the first bad story that it finds is a shortest one. A
worker may die between any two of its commands, up to `deaths` of them in all, and another one may join in its place, up
to `joins` times. A command is atomic (the local engine makes it so, and is tested by killing workers there).

At every state no batch is leased to two living workers, versions count the pushes, and the staleness identity holds. At
every end each shard has applied each batch exactly once. And there is an end: no state in which all workers wait, and
none from which they only go round.

Worlds that go on alike are one state, however they have come about. That hides no fault: two such worlds have the same
moves, which lead to such worlds again, and the same invariants fail in both.

    of a worker     where its program stands and its variables, by which alone it goes on; not earlier answers
    of a dead one   nothing: it makes no move
    of a shard      what its answers depend on (`key`), and what of its past a later push is checked against (`past`).
                    Whether it has a batch is asked only of one that may be leased again; that none is which was
                    finished is an invariant of its own
    of the desk     its integers; a worker that it lets wait is not seen to ask, as long as that changes none of them

No one sees a gradient that is being computed, so a worker comes from its lease to its push in one move: to die
before it has computed and after is the same to all others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from paceline.algorithms.exploration import Explored, ProgramExplorer, Walker, breadth_first
from paceline.algorithms.server.desk import Desk
from paceline.algorithms.server.gates import Asynchronous, Gate
from paceline.algorithms.server.messages import (
    Action,
    Apply,
    Ask,
    Command,
    Compute,
    Death,
    Done,
    Drop,
    Finish,
    Held,
    Join,
    Late,
    Lease,
    Noted,
    Pull,
    Push,
    Wait,
)
from paceline.algorithms.server.shard import Gathering, Shard, Taken
from paceline.algorithms.server.worker import Client, Program, push_every_batch, push_in_rounds
from paceline.narrative import Scene


@dataclass
class Servers:
    """The desk and the shards of a small world."""

    machine: Desk
    shard: Shard | Gathering
    desk: list[int]
    shards: list[list[int]]
    #: For each shard, the (batch, push) that it applied, in order.
    applied: list[list[tuple[int, Taken]]]
    #: Batches that workers have finished: no worker may get one again.
    finished: frozenset[int] = frozenset()

    @staticmethod
    def of(machine: Desk, shard: Shard | Gathering, shards: int) -> Servers:
        desk, states = [0] * machine.ints, [[0] * shard.ints for _ in range(shards)]
        machine.init(desk)
        for state in states:
            shard.init(state)
        return Servers(machine, shard, desk, states, [[] for _ in states])

    def copy(self) -> Servers:
        shards, applied = [list(state) for state in self.shards], [list(each) for each in self.applied]
        return Servers(self.machine, self.shard, list(self.desk), shards, applied, self.finished)

    def key(self) -> tuple[Any, ...]:
        batches = tuple(tuple(sorted(batch for batch, _ in applied)) for applied in self.applied)
        past = tuple(self.shard.past([push for _, push in applied]) for applied in self.applied)
        shards = tuple(self.shard.key(state, self.finished) for state in self.shards)
        return self.machine.key(self.desk), shards, batches, past, self.finished

    def waits(self, command: Any) -> bool:
        """Whether a command has to wait until the desk has changed: it would change nothing now."""
        if not isinstance(command, Ask | Join):
            return False
        desk = list(self.desk)
        return isinstance(self.machine.handle(desk, command), Wait) and desk == self.desk

    def ask(self, worker: Walker[Any], command: Ask | Finish | Join) -> Action:
        """Let a worker give a command to the desk: it goes on, or has to ask again."""
        action = self.machine.handle(self.desk, command)
        if isinstance(command, Finish):
            self.finished |= {command.batch}
        if isinstance(action, Wait):
            worker.effect = command if isinstance(command, Join) else Ask(command.worker)
        else:
            worker.send(None if isinstance(action, Done) else action)
        return action

    def push(self, push: Push, who: int, joined: bool = False) -> Action:
        """Push; `who` tells workers apart that had one number one after another."""
        action: Action = self.shard.handle(self.shards[push.shard], push)
        if isinstance(action, Apply | Held):
            self.applied[push.shard].append((push.batch, Taken(who, action.base, joined)))
        return action

    def died(self, worker: int) -> None:
        self.machine.handle(self.desk, Death(worker))

    def fault(self, living: Callable[[int], bool]) -> str | None:
        """Describe an invariant that fails; None if all hold."""
        leases = [b for n, b in enumerate(self.machine.leased(self.desk)) if b >= 0 and living(n)]
        if len(set(leases)) < len(leases):
            return f"two living workers hold the same batch: leases {leases}"
        if again := self.finished & {*leases}:
            return f"a worker has batch {min(again)}, which was finished"
        for number, applied in enumerate(self.applied):
            batches = [batch for batch, _ in applied]
            if len(set(batches)) < len(batches):
                return f"shard {number} applied a batch twice: {batches}"
            if fault := self.shard.fault([push for _, push in applied], self.shards[number][0]):
                return f"shard {number}: {fault}"
        return None

    def lacking(self) -> str | None:
        """Describe what a shard lacks at the end."""
        for number, applied in enumerate(self.applied):
            if missing := set(range(self.machine.batches)) - {batch for batch, _ in applied}:
                return f"every worker has finished, but shard {number} never got batches {sorted(missing)}"
        return None


@dataclass
class _ServerWorld:
    """The state of a small world."""

    servers: Servers
    workers: dict[int, Walker[Command]]
    #: For each worker's number, a number that tells the workers that had it one after another apart.
    identity: list[int]
    dead: frozenset[int] = frozenset()
    #: The number of workers that joined late.
    joined: int = 0
    fault: str | None = None

    def copy(self) -> _ServerWorld:
        return replace(self, servers=self.servers.copy(), workers=dict(self.workers), identity=list(self.identity))


class _Size(NamedTuple):
    """How large a small world is, and what may happen in it."""

    workers: int
    batches: int
    shards: int
    gathers: int
    deaths: int
    joins: int


class _ServerExplorer(ProgramExplorer[_ServerWorld, int]):
    """The machines of a small world, and its moves and invariants."""

    visible = (Ask, Finish, Join, Pull, Push)

    def __init__(self, size: _Size, gate: Gate, desk: type[Desk], program: Callable[[Client], Program]) -> None:
        self.count, self.shards, self.deaths, self.joins = size.workers, size.shards, size.deaths, size.joins
        self.program, self.desk = program, desk(size.workers, size.batches, gate)
        gathering = Gathering(size.workers, size.gathers) if size.gathers else None
        self.shard: Shard | Gathering = gathering or Shard(size.workers)

    def first(self) -> _ServerWorld:
        servers: Servers = Servers.of(self.desk, self.shard, self.shards)
        workers = {number: self._worker(Client(number, self.shards)) for number in range(self.count)}
        return _ServerWorld(servers, workers, list(range(self.count)))

    def _worker(self, client: Client) -> Walker[Command]:
        return Walker(partial(self.program, client))

    def key(self, world: _ServerWorld) -> tuple[Any, ...]:
        points = (None if number in world.dead else worker.point() for number, worker in world.workers.items())
        return world.servers.key(), tuple(points), world.dead, world.joined, tuple(world.identity)

    def missing(self, world: _ServerWorld, place: int) -> Collection[int]:
        return world.workers if world.servers.waits(world.workers[place].effect) else ()

    def arrive(self, world: _ServerWorld, place: int) -> None:
        """Do nothing: a command waits for no other worker's."""

    def moves(self, world: _ServerWorld) -> Iterator[tuple[str, int]]:
        die = len(world.dead) + world.joined < self.deaths and len(world.dead) < self.count - 1
        yield from (move for move in super().moves(world) if move[0] == "goes on")
        for number, worker in world.workers.items():
            if number in world.dead and world.joined < self.joins:
                yield "joins", number
            elif number not in world.dead and die and worker.effect is not None:
                yield "dies", number

    def ended(self, moves: Sequence[tuple[str, int]]) -> bool:
        """Whether no worker can go on."""
        return not any(kind == "goes on" for kind, _ in moves)

    def make(self, world: _ServerWorld, move: tuple[str, int]) -> Scene:
        """Change the world by one move, and describe it."""
        kind, number = move
        if kind == "dies":
            world.servers.died(number)
        if kind != "joins":
            return super().make(world, move)
        world.dead -= {number}
        world.joined += 1
        world.identity[number] = self.count * world.joined + number
        world.workers[number] = self._worker(Client(number, self.shards, joins=True))
        return Scene(f"worker {number}", "joins in the place of the dead one")

    def describe(self, effect: Command) -> str:
        return describe(effect)

    def go_on(self, world: _ServerWorld, place: int, effect: Command) -> str:
        worker, servers = world.workers[place], world.servers
        action: Action = Noted()
        match effect:
            case Ask() | Finish() | Join():
                return f"{describe(effect)} -> {describe(servers.ask(worker, effect))}"
            case Compute(_, lease):
                worker.send(lease)
                return f"{describe(effect)} -> {describe(Noted())}"
            case Push():
                who = world.identity[place]
                action = servers.push(effect, who, who >= self.count)
            case Pull():
                action = self.shard.handle(servers.shards[effect.shard], effect)
        worker.send(action)
        return f"{describe(effect)} -> {describe(action)}"

    def fault(self, world: _ServerWorld) -> str | None:
        """Describe an invariant that fails in this state; None if all hold."""
        return world.servers.fault(lambda number: number not in world.dead)

    def fault_at_end(self, world: _ServerWorld) -> str | None:
        """Describe what is missing in a final state; None if nothing is."""
        stuck = [n for n, worker in world.workers.items() if n not in world.dead and worker.effect is not None]
        return f"workers {stuck} wait for ever" if stuck else world.servers.lacking()


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
    return breadth_first(_ServerExplorer(size, gate or Asynchronous(), desk, program))


def describe(thing: Command | Action) -> str:
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
