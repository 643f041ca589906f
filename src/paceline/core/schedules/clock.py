"""A table on the clock: who does what when, if everything takes as long as it is said to.

`play` walks all workers' programs together, each as far as it can go. A worker waits only for a message that is not
yet there, or for a free slot to put one in. What it does next never depends on who came first, so one order of walking
is as good as any: where this one gets stuck, every one does.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from paceline.core.schedules import ALL_REDUCE, SEND_BACK, SEND_ON, TAKE_BACK, TAKE_ON, UPDATE, Table, Work

Channel = tuple[int, int]  # from which stage to which


def channel_of(work: Work) -> Channel:
    """The channel that a message takes."""
    stage = work.stage
    return {
        SEND_ON: (stage, stage + 1),
        TAKE_ON: (stage - 1, stage),
        SEND_BACK: (stage, stage - 1),
        TAKE_BACK: (stage + 1, stage),
    }[work.what]


def sends(work: Work) -> bool:
    return work.what in (SEND_ON, SEND_BACK)


def takes(work: Work) -> bool:
    return work.what in (TAKE_ON, TAKE_BACK)


class Walk:
    """All workers' programs, walked together. `standing` says what each has still to do when nobody can go on."""

    def __init__(self, table: Table) -> None:
        self.slots, self.programs = table.slots, table.programs
        self.places = [0] * table.workers
        self.lying: dict[Channel, deque[int]] = defaultdict(deque)  # micro-batches of messages under way
        self.came = [0] * table.workers  # to how many meetings
        self.met = [0] * table.workers  # from how many they have gone on

    def __iter__(self) -> Iterator[tuple[int, Work]]:
        moved = True
        while moved:
            moved = False
            for worker, program in enumerate(self.programs):
                while self.places[worker] < len(program) and self._can(worker, program[self.places[worker]]):
                    work = program[self.places[worker]]
                    self.places[worker] += 1
                    moved = True
                    yield worker, work
                    self._do(worker, work)

    @property
    def standing(self) -> dict[int, Work]:
        return {
            w: program[at]
            for w, (program, at) in enumerate(zip(self.programs, self.places, strict=True))
            if at < len(program)
        }

    def _can(self, worker: int, work: Work) -> bool:
        if work.what == ALL_REDUCE:
            return self._all_came(worker)
        if sends(work):
            return len(self.lying[channel_of(work)]) < self.slots
        return not takes(work) or bool(self.lying[channel_of(work)])

    def _all_came(self, worker: int) -> bool:
        self.came[worker] = self.met[worker] + 1
        return min(self.came) >= self.came[worker]

    def _do(self, worker: int, work: Work) -> None:
        self.met[worker] += work.what == ALL_REDUCE
        if sends(work):
            self.lying[channel_of(work)].append(work.micro)
        elif takes(work):
            self.lying[channel_of(work)].popleft()


class Timed(NamedTuple):
    """Something that was done, and when."""

    worker: int
    work: Work
    start: float
    end: float
    waited: float  # before the start


def clocked(table: Table, seconds: Callable[[int, Work], float], begins: list[float] | None = None) -> Iterator[Timed]:
    """When everything happens. `seconds(worker, work)`: how long work takes; of a message that is sent: how long it is
    on its way. `begins`: when each worker is free; afterwards, when it is free again.
    """
    free = begins if begins is not None else [0.0] * table.workers
    arrivals: dict[Channel, deque[float]] = defaultdict(deque)
    taken: dict[Channel, list[float]] = defaultdict(list)
    put: dict[Channel, int] = defaultdict(int)
    walk, meetings = Walk(table), dict[int, float]()
    for worker, work in walk:
        before = start = free[worker]
        takes_time = 0.0
        if sends(work):
            channel = channel_of(work)
            if put[channel] >= table.slots:
                start = max(start, taken[channel][put[channel] - table.slots])
            put[channel] += 1
            arrivals[channel].append(start + seconds(worker, work))
        elif takes(work):
            channel = channel_of(work)
            start = max(start, arrivals[channel].popleft())
            taken[channel].append(start)
        elif work.what == ALL_REDUCE:  # when the last has come
            start = meetings.setdefault(walk.met[worker], max(free) + seconds(worker, work))
        else:
            takes_time = seconds(worker, work)
        free[worker] = start + takes_time
        yield Timed(worker, work, start, free[worker], start - before)


class Task(NamedTuple):
    """Work on the common clock."""

    tick: int
    stage: int
    micro: int
    what: str
    version: int = 0


def ticked(table: Table) -> list[Task]:
    """Everything takes one tick, messages none; an update stands in the tick of what it follows. In order of ticks."""

    def ticks(worker: int, work: Work) -> float:
        return 0.0 if work.what in (UPDATE, ALL_REDUCE) or sends(work) else 1.0

    found = []
    for _, work, start, _, _ in clocked(replace(table, slots=table.micro_batches + 1), ticks):
        if not (sends(work) or takes(work)):
            found.append(Task(int(start) - (work.what == UPDATE), *work))
    return sorted(found, key=lambda task: task.tick)
