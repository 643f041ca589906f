"""Exploring replicas of several workers that lease their batches from a desk: all workers, in every order, with deaths.

A worker that dies takes its replica with it, but not at once: the others may still push and finish, until the replica
is ended and the desk told. At every state no batch is leased to two replicas, a shard takes each batch once, and a
worker pushes the lease of its replica, whole. At every end each shard has each batch, as long as a replica lives.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.algorithms.exploration import Explored, ProgramExplorer, breadth_first
from paceline.algorithms.schedules import Schedule, Work
from paceline.algorithms.schedules.clock import Place as At
from paceline.algorithms.schedules.explore import StageClient, StageExplorer, StageWorld
from paceline.algorithms.schedules.worker import Program
from paceline.algorithms.server.desk import Desk
from paceline.algorithms.server.explore import Servers, describe
from paceline.algorithms.server.gates import Asynchronous, Gate
from paceline.algorithms.server.messages import Ask, Finish, Lease, Push
from paceline.algorithms.server.shard import Shard
from paceline.algorithms.server.worker import Assign, AwaitPushes, Count, Place, TakeUp
from paceline.narrative import Scene

Assigned = tuple[int, Lease | None]  # which lease of a replica


class LeasingClient(StageClient):
    """The `LeasingWorker` of a program on a small world."""

    @property
    def client(self) -> Place:
        return Place(*self.place)

    def line(self, lease: Lease) -> Iterable[Work]:
        return self.line_of(self.counts[:1], self.counts[0] * lease.batch, 0)


@dataclass
class LeasedWorld(StageWorld):
    """A small world with its desk and shards."""

    servers: Servers = field(kw_only=True)
    #: What each replica was assigned last, and how many leases each worker has pushed.
    assigned: dict[int, Assigned] = field(default_factory=dict)
    pushed: dict[At, int] = field(default_factory=dict)
    #: Replicas that were ended, since a worker of them had died.
    gone: dict[int, None] = field(default_factory=dict)

    def copy(self) -> LeasedWorld:
        return replace(super().copy(), servers=self.servers.copy())


class LeaseExplorer(ProgramExplorer[LeasedWorld, At]):
    """The moves and the invariants of workers whose replicas lease batches."""

    visible = (*StageExplorer.visible, Ask, Finish, Push, Assign, Count)

    def __init__(
        self,
        clients: list[LeasingClient],
        program: Callable[[Any], Program],
        deaths: int,
        slots: int,
        batches: int,
        gate: Gate,
    ) -> None:
        #: What workers do that do not lease.
        self.stages = stages = StageExplorer(clients, program, deaths, slots)
        self.each, self.deaths = clients[0].counts[0], deaths
        self.machine, self.shard = Desk(stages.replicas, batches, gate), Shard(stages.replicas)

    def first(self) -> LeasedWorld:
        servers: Servers = Servers.of(self.machine, self.shard, self.stages.width)
        return self.stages.begun(LeasedWorld(self.stages.walkers(), servers=servers))

    def key(self, world: LeasedWorld) -> Hashable:
        return self.stages.key(world), world.servers.key(), frozenset(world.gone), frozenset(world.assigned.items())

    def name(self, place: At) -> str:
        return self.stages.name(place)

    def arrive(self, world: LeasedWorld, place: At) -> None:
        self.stages.arrive(world, place)

    def describe(self, effect: Any) -> str:
        match effect:
            case Assign(_, lease):
                return "announces the end" if lease is None else f"assigns batch {lease.batch}"
            case TakeUp(number):
                return f"lease {number} of its replica"
            case Count(pushed):
                return f"counts {pushed} pushed"
            case AwaitPushes(pushed):
                return f"{pushed} pushes of each worker"
            case Ask() | Finish() | Push():
                return describe(effect)
        return self.stages.describe(effect)

    def moves(self, world: LeasedWorld) -> Iterator[tuple[str, At]]:
        yield from (move for move in super().moves(world) if move[1][0] not in world.gone)
        for replica in {place[0] for place in world.dead} - set(world.gone):
            yield "ends", (replica, 0)

    def make(self, world: LeasedWorld, move: tuple[str, At]) -> Scene:
        kind, (replica, _) = move
        if kind != "ends":
            return super().make(world, move)
        world.gone[replica] = None
        world.dead |= {place for place in world.workers if place[0] == replica}
        world.servers.died(replica)
        return Scene(f"replica {replica}", "is ended, since a worker of it has died")

    def fault(self, world: LeasedWorld) -> str | None:
        return world.servers.fault(lambda replica: replica not in world.gone) or world.fault

    def fault_at_end(self, world: LeasedWorld) -> str | None:
        living = [place for place in world.workers if place not in world.dead]
        if stuck := [self.name(place) for place in living if world.workers[place].effect is not None]:
            return f"{', '.join(stuck)} wait for ever"
        return world.servers.lacking() if living else None

    def missing(self, world: LeasedWorld, place: At) -> list[At]:
        replica = place[0]
        if world.servers.waits(effect := world.workers[place].effect):
            return list(world.workers)
        match effect:
            case TakeUp(number):
                count, _ = world.assigned.get(replica, (0, None))
                return [] if count >= number else [(replica, 0)]
            case AwaitPushes(count):
                group = ((replica, number) for number in range(self.stages.width))
                return [each for each in group if world.pushed.get(each, 0) < count]
        return self.stages.missing(world, place)

    def go_on(self, world: LeasedWorld, place: At, effect: Any) -> str:
        if isinstance(effect, Ask | Finish):
            world.servers.ask(world.workers[place], effect)
        else:
            world.workers[place].send(self._answer(world, place, effect))
        return self.describe(effect)

    def _answer(self, world: LeasedWorld, place: At, effect: Any) -> Any:
        replica = place[0]
        match effect:
            case Assign(number, lease):
                world.assigned[replica] = (number, lease)
                return None
            case TakeUp(number):
                count, lease = world.assigned.get(replica, (0, None))
                if count != number:
                    world.fault = f"{self.name(place)} takes up lease {count}, and was to take up {number}"
                return lease
            case Count(pushed):
                world.pushed[place] = pushed
                return None
            case AwaitPushes():
                return None
            case Push():
                return self._push(world, place, effect)
        return self.stages.answer(world, place, effect)

    def _push(self, world: LeasedWorld, place: At, push: Push) -> Any:
        each, (_, lease) = self.each, world.assigned[place[0]]
        gradient = world.gradients.pop((place, place[1] // self.stages.inside), ())
        if sorted(gradient) != list(range(push.batch * each, (push.batch + 1) * each)):
            world.fault = f"{self.name(place)} pushes micro-batches {gradient} as batch {push.batch}"
        elif lease is None or lease.batch != push.batch or push.worker != place[0] or push.shard != place[1]:
            world.fault = f"{self.name(place)} pushes what its replica has not leased: {push}"
        return world.servers.push(push, push.worker)


def explore_replicas(
    program: Callable[[Any], Program],
    schedule: Schedule,
    replicas: int = 2,
    depth: int = 2,
    micro_batches: int = 1,
    batches: int = 3,
    deaths: int = 1,
    gate: Gate | None = None,
    inside: int = 1,
) -> Explored:
    """Explore every order of replicas that lease, and return the shortest story of a fault, if there is one."""
    places = [(replica, worker) for replica in range(replicas) for worker in range(depth * inside)]
    clients = [LeasingClient(place, depth, schedule, (micro_batches,), inside=inside) for place in places]
    slots = schedule.layout(depth).slots
    return breadth_first(LeaseExplorer(clients, program, deaths, slots, batches, gate or Asynchronous()))
