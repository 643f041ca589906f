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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.algorithms.cluster.desk import DeskMachine
from paceline.algorithms.cluster.leases import DeskDuties
from paceline.algorithms.cluster.messages import DESK, NONE, NextBatch, Process, Role
from paceline.algorithms.cluster.outputs import Timing, describe
from paceline.algorithms.cluster.shard import ShardMachine
from paceline.algorithms.cluster.steps import (
    DEAD,
    Begin,
    Computed,
    Local,
    Noticed,
    ProcessEvent,
    Steps,
    Tick,
    Transition,
)
from paceline.algorithms.cluster.worker import Stage, WorkerMachine
from paceline.algorithms.server.gates import Asynchronous, Gate
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


class ClusterExplorer:
    """The worlds that were seen, numbered in the order in which they were."""

    def __init__(self, cluster: SmallCluster, machines: Machines) -> None:
        self._moves = Moves(cluster, machines)
        self._numbers: dict[int, int] = {}
        #: For each world, the one that it was reached from first, and the one that follows if nothing goes wrong.
        self._before, self._follows = array("I"), array("I")
        self._ends: list[int] = []
        self._queue: deque[ClusterWorld] = deque()
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

    def _visit(self, number: int, world: ClusterWorld) -> str | None:
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

    def _seen(self, world: ClusterWorld, before: int) -> int:
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
    return ClusterExplorer(cluster, machines or Machines()).explore(limit)


# A small cluster on a network on which a few things go wrong: the worlds that it can be in, and what may happen next.
# - Messages between two processes arrive in the order in which they were sent, as on a connection; those of different
#   connections in any order. A lost one never arrives. A doubled one arrives, and once more at any later time.
# - A process is killed at any time, and the desk notices it at any later time, or takes note of it although the process
#   lives. A desk that is killed is followed by the next one.
# - Time passes, so that machines send again and count silences, when nothing is under way but second copies. A message
#   that is slower than that is the second copy of one that was lost.
# - Nothing goes wrong any more when the desk has counted every batch as finished; the workers still have to hear of it.

# --- The classes of machines that a simulation or an exploration is made of -------------------------------------------


@dataclass(frozen=True)
class Machines:
    """The classes of machines; a test plants a fault by handing in another one."""

    desk: type[DeskMachine] = DeskMachine
    shard: type[ShardMachine] = ShardMachine
    worker: type[WorkerMachine] = WorkerMachine


#: In rounds of time.
TIMING = Timing(heartbeat=1.0, silence=2.0, resend=1.0, stuck=4.0, patience=8.0)
#: The round by which a world has ended; a shard whose servers are all gone is given up after `patience`.
LAST_ROUND = 24


@dataclass(frozen=True)
class SmallCluster:
    """The size of a cluster, and how often things go wrong."""

    workers: int = 2
    shards: int = 2
    batches: int = 2
    backups: int = 1
    spares: int = 0
    #: Messages that are lost, and that arrive twice.
    losses: int = 0
    doubles: int = 0
    #: Processes that are killed, and that the desk takes for dead although they live.
    kills: int = 0
    suspicions: int = 0
    #: Whom it happens to.
    victims: tuple[Role, ...] = (Role.DESK, Role.SERVER, Role.WORKER)
    gate: Gate = field(default_factory=Asynchronous)


class Budget(NamedTuple):
    """What may still go wrong."""

    losses: int
    doubles: int
    kills: int
    suspicions: int


class ClusterWorld(NamedTuple):
    """Everything that the future depends on, as numbers."""

    #: Of each process, in the order of `Moves.names`.
    states: tuple[int, ...]
    #: The events under way, by connection, and in their order on each.
    under_way: tuple[int, ...]
    #: Second copies.
    late: tuple[int, ...]
    budget: Budget
    #: A bit for every shard and batch that was acknowledged.
    acknowledged: int
    now: int
    #: All servers of a shard are gone, and the desk has given the run up.
    given_up: bool = False


class Move(NamedTuple):
    """What may happen next, and the world that follows."""

    #: "arrives", "is lost", "arrives twice", "arrives late", "killed", "suspected" or "time passes".
    what: str
    #: An event, or the place of a process in `Moves.names`.
    number: int
    then: ClusterWorld
    #: The promise that it breaks.
    fault: str | None = None


class Moves:
    """The moves of a small cluster."""

    def __init__(self, cluster: SmallCluster, machines: Machines) -> None:
        self.cluster, self.machines, self.steps = cluster, machines, Steps()
        copies = 1 + cluster.backups
        servers = [Process(Role.SERVER, n) for n in range(cluster.shards * copies + cluster.spares)]
        workers = [Process(Role.WORKER, n) for n in range(cluster.workers)]
        self.names = [DESK, *servers, *workers]
        self._places = {process: place for place, process in enumerate(self.names)}
        self._workers = range(1 + len(servers), len(self.names))

    # The first world

    def first(self) -> ClusterWorld:
        """Return the world in which every worker has sent its first request for a batch."""
        world = ClusterWorld(tuple(map(self.steps.state, self._begin())), (), (), Budget(0, 0, 0, 0), 0, 0)
        for process in self.names:
            if process.role is not Role.SERVER:
                world, _ = self._happens(world, self.steps.event(ProcessEvent(process, process, Begin())))
        while waiting := [e for e in world.under_way if not isinstance(self.steps.events[e].what, NextBatch)]:
            world, _ = self._happens(_without(world, waiting[0]), waiting[0])
        cluster = self.cluster
        return world._replace(budget=Budget(cluster.losses, cluster.doubles, cluster.kills, cluster.suspicions))

    def _begin(self) -> Iterator[Local]:
        """Make the processes: servers hold the shards round robin, and the last ones are spares."""
        cluster, copies = self.cluster, 1 + self.cluster.backups
        members = [tuple(range(shard * copies, (shard + 1) * copies)) for shard in range(cluster.shards)]
        yield self._desk(1, members, 0, None)
        for role, number in self.names[1:]:
            if role is Role.WORKER:
                yield Local(self.machines.worker(number, cluster.shards, TIMING))
            else:
                shard = number // copies if number < cluster.shards * copies else NONE
                yield Local(self.machines.shard(number, TIMING, shard))

    def _desk(self, epoch: int, members: list[tuple[int, ...]], now: int, expected: list[int] | None) -> Local:
        cluster, copies = self.cluster, 1 + self.cluster.backups
        duties = DeskDuties(cluster.workers, cluster.batches, cluster.gate, copies)
        return Local(self.machines.desk(epoch, duties, TIMING, members, float(now), expected))

    # What may happen next

    def moves(self, world: ClusterWorld) -> Iterator[Move]:
        """Return what may happen next; first what does if nothing goes wrong."""
        calm, links, last = self._finished(world), self.steps.links, NONE
        for event in world.under_way:
            if links[event] != last:  # the others on a connection come after the first
                last = links[event]
                yield from self._arrivals(world, event, calm)
        if not world.under_way:
            then = self._time_passes(world)
            yield Move("time passes", 0, then, self._fault_in_time(then))
        if not calm:
            for event in world.late:
                then = world._replace(late=tuple(other for other in world.late if other != event))
                yield Move("arrives late", event, *self._happens(then, event))
            yield from self._mishaps(world)

    def _arrivals(self, world: ClusterWorld, event: int, calm: bool) -> Iterator[Move]:
        """Let the first event of a connection happen, or go wrong."""
        without, budget = _without(world, event), world.budget
        yield Move("arrives", event, *self._happens(without, event))
        if calm or isinstance(self.steps.events[event].what, Computed | Noticed):
            return
        if budget.losses:
            yield Move("is lost", event, without._replace(budget=budget._replace(losses=budget.losses - 1)))
        if budget.doubles:
            less = budget._replace(doubles=budget.doubles - 1)
            then = without._replace(budget=less, late=(*world.late, event))
            yield Move("arrives twice", event, *self._happens(then, event))

    def _mishaps(self, world: ClusterWorld) -> Iterator[Move]:
        """Kill a process, or let the desk take one for dead."""
        budget, victims = world.budget, self.cluster.victims
        for place, process in enumerate(self.names):
            if world.states[place] == DEAD or process.role not in victims:
                continue
            if budget.kills:
                then = world._replace(budget=budget._replace(kills=budget.kills - 1))
                yield Move("killed", place, self._killed(then, place))
            if budget.suspicions and process != DESK:
                then = world._replace(budget=budget._replace(suspicions=budget.suspicions - 1))
                yield Move("suspected", place, self._noticed(then, process))

    def _happens(self, world: ClusterWorld, event: int) -> tuple[ClusterWorld, str | None]:
        """Let an event happen to its process."""
        place = self._places[self.steps.events[event].to]
        state = world.states[place]
        if state == DEAD:
            return world, None
        step = self.steps.step(world.now, state, event)
        states = (*world.states[:place], step.state, *world.states[place + 1 :])
        acknowledged = world.acknowledged
        for shard, batch in step.acknowledges:
            acknowledged |= 1 << shard * self.cluster.batches + batch
        under_way = self._sent(states, world.under_way, step.sends) if step.sends else world.under_way
        abandoned = world.given_up or step.gives_up
        then = ClusterWorld(states, under_way, world.late, world.budget, acknowledged, world.now, abandoned)
        return then, step.fault or (self._lacks(step, then) if step.leads else None)

    def _sent(self, states: tuple[int, ...], under_way: tuple[int, ...], sends: tuple[int, ...]) -> tuple[int, ...]:
        """Return what is under way when this is sent too; what goes to the dead is not."""
        events, places = self.steps.events, self._places
        alive = [event for event in sends if states[places[events[event].to]] != DEAD]
        return tuple(sorted([*under_way, *alive], key=self.steps.links.__getitem__))

    def _time_passes(self, world: ClusterWorld) -> ClusterWorld:
        """Let every process do what is due. News that change nothing but times arrive at once."""
        now, states, news, given_up = world.now + 1, list(world.states), list[int](), False
        workers = tuple(self.names[place] for place in self._workers if states[place] != DEAD)
        for place, process in enumerate(self.names):
            if states[place] != DEAD:
                tick = self.steps.event(ProcessEvent(process, process, Tick(workers if process == DESK else ())))
                step = self.steps.step(now, states[place], tick)
                states[place], given_up = step.state, given_up or step.gives_up
                news += step.sends
        sends, busy = list[int](), set[int]()
        for event in news:
            place, link = self._places[self.steps.events[event].to], self.steps.links[event]
            if states[place] != DEAD and link not in busy:
                step = self.steps.step(now, states[place], event)
                if self.steps.is_silent(states[place], step):
                    states[place] = step.state
                    continue
            busy.add(link)
            sends.append(event)
        after = tuple(states)
        return world._replace(states=after, under_way=self._sent(after, (), tuple(sends)), now=now, given_up=given_up)

    def _killed(self, world: ClusterWorld, place: int) -> ClusterWorld:
        """Kill a process; the desk will notice it, or is followed by the next one."""
        process, states = self.names[place], list(world.states)
        if process != DESK:
            states[place] = DEAD
            under_way = tuple(event for event in world.under_way if self.steps.events[event].to != process)
            return self._noticed(world._replace(states=tuple(states), under_way=under_way), process)
        servers = [p.number for p, s in zip(self.names, states, strict=True) if p.role is Role.SERVER and s != DEAD]
        unknown: list[tuple[int, ...]] = [() for _ in range(self.cluster.shards)]
        states[place] = self.steps.state(self._desk(self._epoch(world) + 1, unknown, world.now, servers))
        return world._replace(states=tuple(states))

    def _noticed(self, world: ClusterWorld, process: Process) -> ClusterWorld:
        """Let the desk get to know that its connection to a process has ended."""
        notice = self.steps.event(ProcessEvent(DESK, DESK, Noticed(process)))
        return world._replace(under_way=self._sent(world.states, world.under_way, (notice,)))

    def _epoch(self, world: ClusterWorld) -> int:
        return self.steps.locals[world.states[0]].machine.epoch  # type: ignore[no-any-return]

    # The promises that are not of one process alone

    def _lacks(self, step: Transition, world: ClusterWorld) -> str | None:
        """Check that a server that has become a primary has every acknowledged push."""
        local, batches = self.steps.locals[step.state], self.cluster.batches
        shard, bits = local.machine.shard, world.acknowledged
        missing = [b for b in range(batches) if bits >> shard * batches + b & 1 and b not in local.batches]
        if not missing:
            return None
        return f"server {local.machine.number} becomes the primary of shard {shard} without acknowledged {missing}"

    def _fault_in_time(self, world: ClusterWorld) -> str | None:
        if world.given_up and self.cluster.backups:
            return "the desk gives a shard up, although a server of each is alive"
        return f"after {LAST_ROUND} rounds the workers have not finished" if world.now > LAST_ROUND else None

    def ended(self, world: ClusterWorld) -> bool:
        """Whether every worker that is alive has finished, or the run was given up."""
        locals_, states = self.steps.locals, world.states
        return world.given_up or all(
            states[place] == DEAD or locals_[states[place]].machine.stage is Stage.FINISHED for place in self._workers
        )

    def fault_at_the_end(self, world: ClusterWorld) -> str | None:
        """Check that every shard has every batch, when all workers have finished."""
        servers = [self.steps.locals[state] for state in world.states[1 : self._workers.start] if state != DEAD]
        for shard in range(self.cluster.shards) if not world.given_up else ():
            holders = [local for local in servers if local.machine.shard == shard]
            if not holders and not self.cluster.backups:
                continue  # it died after its last batch
            newest = max(holders, key=lambda local: (local.machine.view, local.machine.primary), default=Local(None))
            missing = set(range(self.cluster.batches)) - set(newest.batches)
            if missing:
                return f"all workers have finished, and shard {shard} lacks batches {sorted(missing)}"
        return None

    def _finished(self, world: ClusterWorld) -> bool:
        """Whether the desk has counted every batch as finished."""
        return bool(self.steps.locals[world.states[0]].machine.leases.done)


def _without(world: ClusterWorld, event: int) -> ClusterWorld:
    at = world.under_way.index(event)
    return world._replace(under_way=world.under_way[:at] + world.under_way[at + 1 :])
