"""Runs the program of a method that keeps step in every order of its workers, on a small world, with deaths anywhere.

Numbers are symbols: a gradient is of a worker, an update and the parameters that it was computed from; a sum is of
gradients; parameters are of what made them. So equal symbols are equal parameters, and tell what they were made of.

    a worker yields      and goes on
    ───────────────      ───────────
    Gradient             at once, with a symbol
    OptimizerStep        at once; it must be of the update's sum, and make the next version
    Offer, Begin ...     at once; the others may have what it contributes from now on
    Sum, Exchange, ...   when all that it exchanges with have come to the same exchange; never, if one has died before
    Move                 when all that compute the gradient together have come to the same movement

A world is at its end when no worker can go on. There every worker has made every update, and replicas that agree hold
one symbol; or it waits, directly or through others, for a worker that has died, and no worker used half of an exchange.
Methods with a server are explored with their desk and their shards, by `algorithms.server.explore`. Where workers with
parts of layers compute a gradient together, its movements are effects, too; that they move what they should is proved
by `algorithms.splits.proof`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from paceline.algorithms.exploration import Explored, ProgramExplorer, Walker, breadth_first
from paceline.algorithms.splits import Mesh
from paceline.algorithms.splits.derivation import ProgramStep
from paceline.algorithms.splits.movements import Move, moving
from paceline.plans.methods import Synchronous
from paceline.plans.methods.program import (
    BeginExchange,
    Change,
    Effect,
    EndExchange,
    Exchange,
    Finish,
    Gather,
    Gradient,
    Keep,
    Offer,
    OptimizerStep,
    Product,
    Program,
    Recall,
    Sum,
    Worker,
    all_of,
)
from paceline.plans.methods.split_layers import DATA, INSIDE

Symbol = Hashable
#: Returns the movements of a worker's gradient of an update.
Movements = Callable[[int, int], Iterable[ProgramStep]]


class Gradients(NamedTuple):
    """The gradient of a worker's part of an update, or of all of it."""

    update: int
    worker: int
    parameters: Symbol


class Meeting(NamedTuple):
    """One exchange of a run: of this number or update, and which one of its kind it is there."""

    kind: str
    number: int
    turn: int = 0


@dataclass
class Client:
    """The `Worker` of a program on a small world."""

    rank: int
    workers: int
    last: int
    first: int = 0

    def updates(self, *, dealt: bool = False, until: Callable[[range], range] = all_of) -> Iterator[int]:
        yield from range(self.rank, self.last, self.workers) if dealt else range(self.last)


@dataclass
class _WorkersWorld:
    """The state of a small world."""

    workers: dict[int, Walker[Effect]]
    #: Of each worker: its parameters, one symbol for each fragment, and how many steps have made them.
    parameters: list[tuple[Symbol, ...]]
    steps: list[int]
    #: What each worker has contributed to each meeting that it has come to, and the one that it is at.
    offers: list[dict[Meeting, Symbol]]
    at: list[Meeting | None]
    dead: frozenset[int] = frozenset()
    fault: str | None = None

    def copy(self) -> _WorkersWorld:
        offers, parameters = [dict(each) for each in self.offers], list(self.parameters)
        return _WorkersWorld(dict(self.workers), parameters, list(self.steps), offers, list(self.at), self.dead)


@dataclass
class _WorkersExplorer(ProgramExplorer[_WorkersWorld, int]):
    """The moves and the invariants of the workers of one method."""

    visible = (Offer, BeginExchange, EndExchange, Exchange, Sum, Product, Gather, Move)
    method: Synchronous
    workers: int
    updates: int
    deaths: int
    #: The program of a worker: the method's own, or one with a fault.
    program: Callable[[Worker], Program]
    #: What moves between the workers that compute a gradient together.
    movements: Movements
    symbols: dict[Symbol, int] = field(default_factory=dict)
    #: By number of steps: the parameters that the first worker to make them had.
    agreed: dict[int, Symbol] = field(default_factory=dict)
    mesh: Mesh = field(init=False)

    def __post_init__(self) -> None:
        self.mesh = self.method.mesh(self.workers)

    def first(self) -> _WorkersWorld:
        count = self.workers
        programs = {rank: Walker[Any](partial(self._start, Client(rank, count, self.updates))) for rank in range(count)}
        parts = [self.mesh.coordinate(rank, INSIDE) for rank in range(count)]
        parameters: list[tuple[Symbol, ...]] = [(part,) * self.fragments for part in parts]
        world = _WorkersWorld(programs, parameters, [0] * count, [{} for _ in range(count)], [None] * count)
        for worker in range(count):
            self.arrive(world, worker)
        return world

    def _start(self, client: Client) -> Generator[Any, Any, None]:
        def movements(effect: Effect) -> Iterable[ProgramStep]:
            return self.movements(client.rank, effect.update) if isinstance(effect, Gradient) else ()

        return moving(self.program(client), movements)

    @property
    def fragments(self) -> int:
        return 1 if self.method.streaming is None else self.method.streaming.fragments

    def key(self, world: _WorkersWorld) -> Hashable:
        offers = tuple(tuple(each.items()) for each in world.offers)
        keys = tuple(worker.key() for worker in world.workers.values())
        return keys, world.dead, tuple(world.parameters), offers

    def describe(self, effect: Effect) -> str:
        return describe(effect)

    def go_on(self, world: _WorkersWorld, worker: int, effect: Effect) -> str:
        world.workers[worker].send(self._answer(world, worker, effect))
        return describe(effect)

    def fault_at_end(self, world: _WorkersWorld) -> str | None:
        if fault := self.stuck(world):
            return fault
        for worker, program in world.workers.items():
            if program.effect is None and world.steps[worker] != (due := len(list(self._updates(worker)))):
                return f"worker {worker} has finished after {world.steps[worker]} of {due} updates"
        return None if world.dead else self._apart(world)

    def _apart(self, world: _WorkersWorld) -> str | None:
        """Describe replicas that differ at the end, where they should not."""
        together = self.method.division(self.workers, 1).results == 1 and self.method.collective is not None
        for group in self.mesh.groups(DATA) if together else ():
            if len({world.parameters[worker] for worker in group}) > 1:
                return f"the replicas of workers {', '.join(map(str, group))} differ at the end"
        return None

    def _updates(self, worker: int) -> Iterator[int]:
        return Client(worker, self.workers, self.updates).updates(dealt=self.method.collective is None)

    # ── what a worker waits for ──

    def _parties(self, worker: int, meeting: Meeting) -> set[int]:
        """Return the workers that an exchange of this one is made of, itself among them."""
        if meeting.kind == "movement":
            return set(self.mesh.group(worker, INSIDE))
        assert self.method.collective is not None
        if self.method.division(self.workers, 1).results == 1:
            return set(self.mesh.group(worker, DATA))
        steps = self.method.collective.steps(worker, self.workers)
        return {step.receive.other for step in steps if step.receive is not None} | {worker}

    def missing(self, world: _WorkersWorld, worker: int) -> set[int]:
        if (meeting := world.at[worker]) is None:
            return set()
        return {other for other in self._parties(worker, meeting) if meeting not in world.offers[other]}

    # ── what it is answered ──

    def _symbol(self, *parts: Symbol) -> int:
        """Return the number of what is made of these parts."""
        return self.symbols.setdefault(parts, len(self.symbols) + 1)

    def arrive(self, world: _WorkersWorld, worker: int) -> None:
        effect, offers, mine = world.workers[worker].effect, world.offers[worker], world.parameters[worker]
        match effect:
            case Sum(update, gradient):
                world.at[worker] = self._offer(offers, "sum", update, gradient)
            case Product(update):
                world.at[worker] = self._offer(offers, "product", update, mine)
            case Gather(update):
                world.at[worker] = self._offer(offers, "whole", update, mine)
            case Move(step):
                world.at[worker] = self._offer(offers, "movement", 0, self._symbol("movement", step))
            case Exchange(number) | EndExchange(number):
                world.at[worker] = meeting = Meeting("exchange", number)
                if isinstance(effect, Exchange):
                    offers.setdefault(meeting, self._fragment(mine, number))
            case _:
                world.at[worker] = None

    def _offer(self, offers: dict[Meeting, Symbol], kind: str, update: int, what: Symbol) -> Meeting:
        turn = sum(1 for each in offers if each[:2] == (kind, update))
        offers[meeting := Meeting(kind, update, turn)] = what
        return meeting

    def _fragment(self, parameters: tuple[Symbol, ...], exchange: int) -> Symbol:
        return parameters[exchange % self.fragments]

    def _answer(self, world: _WorkersWorld, worker: int, effect: Effect) -> Any:
        match effect:
            case Gradient(update, version, whole, _):
                if version != world.steps[worker]:
                    world.fault = f"the gradient of update {update} is of version {version}, not {world.steps[worker]}"
                return Gradients(update, -1 if whole else worker, world.parameters[worker])
            case OptimizerStep(update, version, gradient):
                self._step(world, worker, update, version, gradient)
            case Offer(number) | BeginExchange(number):
                if (meeting := Meeting("exchange", number)) in world.offers[worker]:
                    world.fault = f"worker {worker} offers its replica twice for exchange {number}"
                world.offers[worker][meeting] = self._fragment(world.parameters[worker], number)
            case Sum(update):
                return self._sum(world, worker, update)
            case Move(step):
                if len(set(self._offered(world, worker))) > 1:
                    world.fault = f"worker {worker} comes to: {step}, and others of its group to another movement"
            case Exchange(number) | EndExchange(number):
                self._mix(world, worker, number, ahead=isinstance(effect, EndExchange))
            case Gather():
                world.parameters[worker] = (self._symbol("whole", *self._offered(world, worker)),)
            case Change(command):
                world.parameters[worker] = (self._symbol("changed", *world.parameters[worker], *command),)
            case Finish(update):
                self._count(world, worker, update, update + 1)
            case Recall():
                return ()
            case Keep() | Product():
                return -1.0
        return None

    def _offered(self, world: _WorkersWorld, worker: int) -> list[Symbol]:
        """Return what all that take part in a worker's exchange have contributed."""
        meeting = world.at[worker]
        assert meeting is not None
        return [world.offers[other][meeting] for other in sorted(self._parties(worker, meeting))]

    def _mix(self, world: _WorkersWorld, worker: int, number: int, ahead: bool) -> None:
        """Average a fragment, which may be ahead of what it has contributed to the exchange."""
        fragments = list(world.parameters[worker])
        mixed = self._symbol("mean", number, *self._offered(world, worker))
        place = number % self.fragments
        fragments[place] = self._symbol("ahead", mixed, fragments[place]) if ahead else mixed
        world.parameters[worker] = tuple(fragments)

    def _sum(self, world: _WorkersWorld, worker: int, update: int) -> Symbol:
        gradients = self._offered(world, worker)
        for each in gradients:
            assert isinstance(each, Gradients)
            if each.update != update:
                world.fault = f"the sum of update {update} has a gradient of update {each.update}"
            elif each.parameters != world.parameters[worker]:
                world.fault = f"the sum of update {update} has gradients of different parameters"
        return self._symbol("sum", update, *gradients)

    def _step(self, world: _WorkersWorld, worker: int, update: int, version: int, gradient: Symbol) -> None:
        if self.method.traits.agrees and isinstance(gradient, Gradients):
            world.fault = f"worker {worker} steps by its own gradient of update {update}, not by the sum"
        world.parameters[worker] = tuple(self._symbol("step", each, gradient) for each in world.parameters[worker])
        self._count(world, worker, update, version)
        if self.method.traits.agrees:
            agreed = self.agreed.setdefault(version, world.parameters[worker])
            if agreed != world.parameters[worker]:
                world.fault = f"version {version} of worker {worker} is not that of the others"

    def _count(self, world: _WorkersWorld, worker: int, update: int, version: int) -> None:
        world.steps[worker] += 1
        if version != world.steps[worker]:
            world.fault = f"step {world.steps[worker]} of worker {worker} makes version {version}, at update {update}"


def explore_program(
    method: Synchronous,
    workers: int = 3,
    updates: int = 3,
    deaths: int = 1,
    program: Callable[[Worker], Program] | None = None,
    movements: Movements = lambda worker, update: (),
) -> Explored:
    """Explore every interleaving of the workers of a method, and return the shortest story of a fault, if any."""
    return breadth_first(_WorkersExplorer(method, workers, updates, deaths, program or method.program, movements))


SAYINGS: Mapping[type, str] = {
    Gradient: "computes the gradient of update {0.update}",
    Sum: "the sum of update {0.update}",
    OptimizerStep: "makes version {0.version}",
    Offer: "offers its replica for exchange {0.exchange}",
    Exchange: "exchange {0.exchange}, after update {0.update}",
    BeginExchange: "begins exchange {0.exchange}",
    EndExchange: "the end of exchange {0.exchange}, after update {0.update}",
    Recall: "recalls",
    Keep: "keeps its slice of the gradient",
    Product: "a product of update {0.update}",
    Change: "changes its slice",
    Gather: "the whole parameters of update {0.update}",
    Finish: "finishes update {0.update}",
    Move: "{0.step}",
}


def describe(effect: Effect | Move) -> str:
    return SAYINGS[type(effect)].format(effect)
