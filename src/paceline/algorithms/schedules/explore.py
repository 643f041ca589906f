"""Exploring the workers of a pipeline: all replicas of a small world, in every order, with deaths anywhere.

A message is a symbol of the work that has made it, and a gradient one of the micro-batches that it is of. So a world
tells when a worker computes from another message than its own, sums up two different gradients, or makes an update of
half a sum. Where several workers share the layers of a stage, each has its own line of messages, and what they move
between them is an effect, too.

Replicas that lease their batches from a server are explored with their desk (`algorithms.server.explore_replicas`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

from paceline.algorithms.exploration import Explored, ProgramExplorer, Walker, breadth_first
from paceline.algorithms.schedules import BACKWARD, FORWARD, WEIGHTS, Schedule, Work, table_of
from paceline.algorithms.schedules.clock import Place
from paceline.algorithms.schedules.worker import Agree, Channel, Compute, Effect, Program, Receive, Send, SumUp, Update
from paceline.algorithms.splits.movements import Move

Symbol = Hashable
Meeting = tuple[str, int, int]  # which sum or movement, of which stage or replica, and which one after another


@dataclass
class StageClient:
    """The `StageWorker` of a program on a small world. Micro-batches are numbered through all tables."""

    place: Place
    depth: int
    schedule: Schedule
    counts: Sequence[int]
    agrees: bool = False
    #: Workers that share the layers of a stage; they are neighbours.
    inside: int = 1

    def lines(self) -> Iterator[Iterable[Work]]:
        span = self.schedule.span or len(self.counts)
        for first in range(0, len(self.counts), span):
            yield self.line_of(self.counts[first : first + span], sum(self.counts[:first]), first)

    def line_of(self, counts: Sequence[int], micros: int, versions: int) -> Sequence[Work]:
        """Return its line of one table, after so many micro-batches and versions."""
        mine, depth, agrees = self.place[1] // self.inside, self.depth, self.agrees
        return _line(self.schedule, mine, depth, tuple(counts), agrees, micros, versions)  # type: ignore[arg-type]  # frozen


@lru_cache
def _line(
    schedule: Schedule, worker: int, depth: int, counts: tuple[int, ...], agrees: bool, micros: int, versions: int
) -> Sequence[Work]:
    table = table_of(schedule, depth, counts)
    line = (table.agreeing() if agrees else table).lines[worker]
    return [work._replace(micro=work.micro + micros, version=work.version + versions) for work in line]


AnyWorld = TypeVar("AnyWorld", bound="StageWorld")


@dataclass
class StageWorld:
    """The state of a small world."""

    workers: dict[Place, Walker[Any]]
    dead: frozenset[Place] = frozenset()
    in_flight: dict[tuple[int, Channel], tuple[Symbol, ...]] = field(default_factory=dict)
    #: What each worker has brought to each sum that it has come to.
    offers: dict[tuple[Place, Meeting], Symbol] = field(default_factory=dict)
    #: Of each worker and stage: the micro-batches of its gradient, the sum that it has, and its versions so far.
    gradients: dict[tuple[Place, int], tuple[int, ...]] = field(default_factory=dict)
    sums: dict[tuple[Place, int], Symbol] = field(default_factory=dict)
    versions: dict[tuple[Place, int], tuple[Symbol, ...]] = field(default_factory=dict)
    fault: str | None = None

    def copy(self: AnyWorld) -> AnyWorld:
        tables: dict[str, Any] = {key: dict(each) for key, each in self.__dict__.items() if isinstance(each, dict)}
        return replace(self, **tables)


class StageExplorer(ProgramExplorer[StageWorld, Place]):
    """The moves and the invariants of workers that keep step."""

    visible = (Send, Receive, SumUp, Agree, Move)

    def __init__(
        self, clients: Sequence[StageClient], program: Callable[[Any], Program], deaths: int, slots: int
    ) -> None:
        self.clients, self.program, self.deaths, self.slots = clients, program, deaths, slots
        first = clients[0]
        layout = first.schedule.layout(first.depth)
        self.stage_to_worker, self.inside = layout.stage_to_worker, first.inside
        #: The workers of a replica.
        self.width = first.depth * first.inside
        self.replicas = len(clients) // self.width

    def walkers(self) -> dict[Place, Walker[Any]]:
        return {each.place: Walker(partial(self.program, each)) for each in self.clients}

    def first(self) -> StageWorld:
        return self.begun(StageWorld(self.walkers()))

    def begun(self, world: AnyWorld) -> AnyWorld:
        """Return the world where each worker has come to its first effect."""
        for place in world.workers:
            self.arrive(world, place)
        return world

    def key(self, world: StageWorld) -> Hashable:
        return tuple(worker.key() for worker in world.workers.values()), world.dead

    def fault_at_end(self, world: StageWorld) -> str | None:
        if fault := self.stuck(world):
            return fault
        if world.dead:
            return None
        if unread := [channel for (_, channel), messages in world.in_flight.items() if messages]:
            return f"a message from stage {unread[0][0]} to {unread[0][1]} is left"
        due = len(self.clients[0].counts)
        stages = [(at, stage) for at in world.workers for stage in self._stages(at)]
        for place, stage in stages:
            versions = world.versions.get((place, stage), ())
            if len(versions) != due:
                return f"{self.name(place)} has made {len(versions)} of {due} updates of stage {stage}"
            if versions != world.versions[(0, place[1]), stage]:  # replicas keep step
                return f"the replicas' versions of stage {stage} differ"
        return None

    def name(self, place: Place) -> str:
        return f"worker {place[0] * self.width + place[1]}"

    def describe(self, effect: Any) -> str:
        match effect:
            case Send((stage, other), micro):
                return f"a message of micro-batch {micro} to stage {other}"
            case Receive((stage, other), micro):
                return f"the message of micro-batch {micro} from stage {stage}"
            case Compute(work):
                return f"computes {work}"
            case SumUp(stage):
                return f"the sum of stage {stage}"
            case Agree():
                return "the norm of the gradient"
            case Update(work):
                return f"makes version {work.version} of stage {work.stage}"
            case Move(step):
                return str(step)
        raise AssertionError(effect)

    # ── what a worker waits for ──

    def _stages(self, place: Place) -> list[int]:
        return [stage for stage, layer in enumerate(self.stage_to_worker) if layer == place[1] // self.inside]

    def _line(self, place: Place) -> int:
        """Return the number of the line of stages that a worker exchanges messages in."""
        return place[0] * self.inside + place[1] % self.inside

    def _at(self, place: Place, stage: int) -> Place:
        """Return the worker of a stage in the line of this one."""
        return place[0], self.stage_to_worker[stage] * self.inside + place[1] % self.inside

    def _meeting(self, world: StageWorld, place: Place, effect: SumUp | Agree | Move) -> Meeting:
        """Return the sum or movement that a worker is at; it has brought its part of it already."""
        match effect:
            case SumUp(stage):
                kind, of = "sum", stage
            case Agree():
                kind, of = "norm", self._line(place)
            case Move():
                kind, of = "movement", place[1] // self.inside
        return kind, of, sum(1 for who, (what, which, _) in world.offers if (who, what, which) == (place, kind, of)) - 1

    def missing(self, world: StageWorld, place: Place) -> list[Place]:
        match effect := world.workers[place].effect:
            case Send(channel):
                full = len(world.in_flight.get((self._line(place), channel), ())) >= self.slots
                return [self._at(place, channel[1])] if full else []
            case Receive(channel):
                messages = world.in_flight.get((self._line(place), channel))
                return [] if messages else [self._at(place, channel[0])]
            case SumUp() | Agree() | Move():
                meeting = self._meeting(world, place, effect)
                return [each for each in self._parties(place, effect) if (each, meeting) not in world.offers]
        return []

    def _parties(self, place: Place, effect: SumUp | Agree | Move) -> list[Place]:
        replica, number = place
        match effect:
            case SumUp():
                return [(each, number) for each in range(self.replicas)]
            case Agree():
                return [(replica, worker) for worker in range(number % self.inside, self.width, self.inside)]
            case Move():
                first = number - number % self.inside
                return [(replica, worker) for worker in range(first, first + self.inside)]

    # ── what it is answered ──

    def arrive(self, world: StageWorld, place: Place) -> None:
        effect = world.workers[place].effect
        if isinstance(effect, SumUp | Agree | Move):
            kind, of, count = self._meeting(world, place, effect)
            part: Symbol = effect.step if isinstance(effect, Move) else place
            if isinstance(effect, SumUp):
                part = world.gradients.get((place, effect.stage), ())
            world.offers[place, (kind, of, count + 1)] = part

    def go_on(self, world: StageWorld, place: Place, effect: Any) -> str:
        world.workers[place].send(self.answer(world, place, effect))
        return self.describe(effect)

    def answer(self, world: StageWorld, place: Place, effect: Effect | Move) -> Any:
        line = self._line(place)
        match effect:
            case Send(channel, _, message):
                world.in_flight[line, channel] = (*world.in_flight.get((line, channel), ()), message)
            case Receive(channel):
                message, *rest = world.in_flight[line, channel]
                world.in_flight[line, channel] = tuple(rest)
                return message
            case Move(step):
                meeting = self._meeting(world, place, effect)
                if {world.offers[each, meeting] for each in self._parties(place, effect)} != {step}:
                    world.fault = f"{self.name(place)} comes to: {step}, and others of its stage to another movement"
            case Compute(work, message):
                return self._compute(world, place, work, message)
            case SumUp(stage):
                self._sum_up(world, place, stage, effect)
            case Update(work):
                self._update(world, place, work)
        return None

    def _compute(self, world: StageWorld, place: Place, work: Work, message: Symbol) -> Symbol:
        stage, micro, what, _ = work
        step = 1 if what == FORWARD else -1
        if what != WEIGHTS and 0 <= stage - step < len(self.stage_to_worker):
            way = FORWARD if what == FORWARD else BACKWARD
            if message != (stage - step, micro, way):
                world.fault = f"{self.name(place)} computes {work} from {message or 'no message'}"
        if what in (BACKWARD, WEIGHTS):
            mine = world.gradients.get((place, stage), ())
            if micro in mine:
                world.fault = f"{self.name(place)} computes {work} twice"
            world.gradients[place, stage] = (*mine, micro)
        return stage, micro, FORWARD if what == FORWARD else BACKWARD

    def _sum_up(self, world: StageWorld, place: Place, stage: int, effect: SumUp) -> None:
        meeting = self._meeting(world, place, effect)
        parts = [world.offers[each, meeting] for each in self._parties(place, effect)]
        if len(set(parts)) > 1 or not parts[0]:
            world.fault = f"{self.name(place)} sums up gradients of different micro-batches, or none: {parts}"
        world.sums[place, stage], world.gradients[place, stage] = (meeting, parts[0]), ()

    def _update(self, world: StageWorld, place: Place, work: Work) -> None:
        versions = world.versions.get((place, work.stage), ())
        if (place, work.stage) not in world.sums:
            world.fault = f"{self.name(place)} makes an update of stage {work.stage} without a sum"
        if work.version != len(versions) + 1:
            world.fault = f"{self.name(place)} makes version {work.version} of stage {work.stage} after {len(versions)}"
        world.versions[place, work.stage] = (*versions, world.sums.pop((place, work.stage), None))


def explore_stages(
    program: Callable[[Any], Program],
    schedule: Schedule,
    replicas: int = 1,
    depth: int = 2,
    counts: Sequence[int] = (2, 2),
    agrees: bool = False,
    deaths: int = 1,
    inside: int = 1,
) -> Explored:
    """Explore every order of the workers of a pipeline, and return the shortest story of a fault, if there is one.

    The updates are of so many micro-batches of each replica.
    """
    places = [(replica, worker) for replica in range(replicas) for worker in range(depth * inside)]
    clients = [StageClient(place, depth, schedule, counts, agrees, inside) for place in places]
    return breadth_first(StageExplorer(clients, program, deaths, schedule.layout(depth).slots))
