"""Workers of a pipeline in one process: who can go on, what is on its way, and when everything is done.

`Walk` runs the programs of all workers together, each as far as possible. A worker waits only for a message that has
not been sent, for a free slot to put one in, or for the others of a sum. What it does next never depends on which
worker was first, so one order of walking is as good as any: where this one deadlocks, every order does.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from paceline.algorithms.schedules import UPDATE, Table
from paceline.algorithms.schedules.worker import (
    Agree,
    Channel,
    Compute,
    Effect,
    Program,
    Receive,
    Send,
    SumUp,
    Update,
    follow,
)

Place = tuple[int, int]  # which replica, and which worker of its table


class Done(NamedTuple):
    """An effect that was answered."""

    place: Place
    effect: Effect
    answer: Any


def no_numbers(places: Sequence[Place], effect: Effect) -> Any:
    """Answer an effect by the work that it is about, where nothing is computed."""
    return effect.work if isinstance(effect, Compute) else None


class Walk:
    """Walks all workers' programs together; afterwards `blocked` has the effect that each waits at which did not end.

    `answer` answers what is not a message: of all workers that meet in a sum at once, and of each alone else.
    """

    def __init__(
        self,
        replicas: Sequence[Sequence[Program]],
        slots: int,
        answer: Callable[[Sequence[Place], Effect], Any] = no_numbers,
    ) -> None:
        self.replicas, self.workers, self.slots, self.answer = len(replicas), len(replicas[0]), slots, answer
        self.programs = {(r, w): program for r, mine in enumerate(replicas) for w, program in enumerate(mine)}
        #: The effect that each worker is at, and the one before it.
        self.at: dict[Place, Effect | None] = {place: next(each, None) for place, each in self.programs.items()}
        self.last: dict[Place, Effect] = {}
        #: Messages that were sent and not received, by replica.
        self.in_flight: dict[tuple[int, Channel], deque[Any]] = defaultdict(deque)
        #: Workers that have met all others of a sum, and have yet to go on.
        self._met = set[Place]()

    @staticmethod
    def of(table: Table) -> Walk:
        """Walk a table, without anything being computed."""
        return Walk([[follow(line, table.stage_to_worker) for line in table.lines]], table.slots)

    def __iter__(self) -> Iterator[Done]:
        moved = True
        while moved:
            moved = False
            for place, program in self.programs.items():
                while (effect := self.at[place]) is not None and self._can(place, effect):
                    moved = True
                    answer = self._answered(place, effect)
                    yield Done(place, effect, answer)
                    self.last[place] = effect
                    try:
                        self.at[place] = program.send(answer)
                    except StopIteration:
                        self.at[place] = None

    @property
    def blocked(self) -> dict[Place, Effect]:
        return {place: effect for place, effect in self.at.items() if effect is not None}

    def parties(self, place: Place, effect: Effect) -> list[Place]:
        """Return the workers that do this together."""
        replica, worker = place
        if isinstance(effect, SumUp):
            return [(each, worker) for each in range(self.replicas)]
        return [(replica, each) for each in range(self.workers)] if isinstance(effect, Agree) else [place]

    def _can(self, place: Place, effect: Effect) -> bool:
        if isinstance(effect, Send):
            return len(self.in_flight[place[0], effect.channel]) < self.slots
        if isinstance(effect, Receive):
            return bool(self.in_flight[place[0], effect.channel])
        return not isinstance(effect, SumUp | Agree) or place in self._met or not self.missing(place, effect)

    def missing(self, place: Place, effect: Effect) -> list[Place]:
        """Return the workers that have not come to a sum yet."""
        kind, stage = type(effect), effect.stage if isinstance(effect, SumUp) else None
        waiting = [(each, self.at[each]) for each in self.parties(place, effect) if each not in self._met]
        arrived = {
            each for each, at in waiting if type(at) is kind and (not isinstance(at, SumUp) or at.stage == stage)
        }
        return [each for each in self.parties(place, effect) if each not in arrived]

    def _answered(self, place: Place, effect: Effect) -> Any:
        if isinstance(effect, Send):
            self.in_flight[place[0], effect.channel].append(effect.message)
        elif isinstance(effect, Receive):
            return self.in_flight[place[0], effect.channel].popleft()
        elif isinstance(effect, SumUp | Agree):
            if place not in self._met:
                together = self.parties(place, effect)
                self.answer(together, effect)
                self._met.update(together)
            self._met.discard(place)
        else:
            return self.answer([place], effect)
        return None


class Timed(NamedTuple):
    """An effect with the time when it was answered."""

    place: Place
    effect: Effect
    answer: Any
    start: float
    end: float
    waited: float  # before the start


def after_the_last(places: Sequence[Place], effect: Effect, arrived: Sequence[float], seconds: float) -> list[float]:
    """Return when workers leave a sum that begins when the last of them has arrived."""
    return [max(arrived) + seconds] * len(places) if len(places) > 1 else list(arrived)


def clocked(
    walk: Walk,
    seconds: Callable[[Place, Effect], float],
    meet: Callable[[Sequence[Place], Effect, Sequence[float], float], Sequence[float]] = after_the_last,
) -> Iterator[Timed]:
    """Yield all effects with their times.

    `seconds(place, effect)` is how long an effect takes; of a message that is sent, how long it is on its way. `meet`
    says when workers that arrived at these times leave a sum.
    """
    free = dict.fromkeys(walk.programs, 0.0)
    arrivals: dict[tuple[int, Channel], deque[float]] = defaultdict(deque)
    take_starts: dict[tuple[int, Channel], deque[float]] = defaultdict(deque)
    put: dict[tuple[int, Channel], int] = defaultdict(int)
    leaves = dict[Place, float]()
    for place, effect, answer in walk:
        before = start = free[place]
        takes_time, replica = 0.0, place[0]
        if isinstance(effect, Send):
            way = replica, effect.channel
            put[way] += 1
            if put[way] > walk.slots:
                start = max(start, take_starts[way].popleft())
            arrivals[way].append(start + seconds(place, effect))
        elif isinstance(effect, Receive):
            way = replica, effect.channel
            start = max(start, arrivals[way].popleft())
            take_starts[way].append(start)
        elif isinstance(effect, SumUp | Agree):
            if place not in leaves:
                together = walk.parties(place, effect)
                arrived = [free[each] for each in together]
                leaves.update(zip(together, meet(together, effect, arrived, seconds(place, effect)), strict=True))
            start = leaves.pop(place)
        else:
            takes_time = seconds(place, effect)
        free[place] = start + takes_time
        yield Timed(place, effect, answer, start, free[place], start - before)


class Task(NamedTuple):
    """Work on the common clock of ticks."""

    tick: int
    stage: int
    micro: int
    what: str
    version: int = 0


def ticks(place: Place, effect: Effect) -> float:
    """All work takes a tick; messages and updates take none."""
    return float(isinstance(effect, Compute))


def ticked(table: Table) -> list[Task]:
    """Return the table in order of ticks; an update is in the tick before it."""
    tasks = []
    for timed in clocked(Walk.of(replace(table, slots=table.micro_batches + 1)), ticks):
        if isinstance(timed.effect, Compute | Update):
            work = timed.effect.work
            tasks.append(Task(int(timed.start) - (work.what == UPDATE), *work))
    return sorted(tasks, key=lambda task: task.tick)
