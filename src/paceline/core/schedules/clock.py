"""A table on the clock: when each worker does what, given how long everything takes.

`Walk` advances all workers' programs together, each as far as possible. A worker waits only for a message that has not
been sent, or for a free slot to put one in. What it does next never depends on which worker was first, so one order of
walking is as good as any: where this one deadlocks, every order does.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from paceline.core.schedules import ALL_REDUCE, SEND_BACK, SEND_ON, TAKE_BACK, TAKE_ON, UPDATE, Table, Work

Channel = tuple[int, int]  # from which stage to which


def channel_of(work: Work) -> Channel:
    """Return the channel that a message takes."""
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
    """Walks all workers' programs together; afterwards `blocked` has the next work of each that did not finish."""

    def __init__(self, table: Table) -> None:
        self.slots, self.programs = table.slots, table.programs
        #: The position of each worker in its program.
        self.positions = [0] * table.workers
        #: Micro-batches of the messages that were sent and not taken.
        self.in_flight: dict[Channel, deque[int]] = defaultdict(deque)
        #: All-reduces that each worker has begun, and those that it has finished.
        self.began, self.finished = [0] * table.workers, [0] * table.workers

    def __iter__(self) -> Iterator[tuple[int, Work]]:
        moved = True
        while moved:
            moved = False
            for worker, program in enumerate(self.programs):
                while self.positions[worker] < len(program) and self._can(worker, program[self.positions[worker]]):
                    work = program[self.positions[worker]]
                    self.positions[worker] += 1
                    moved = True
                    yield worker, work
                    self._do(worker, work)

    @property
    def blocked(self) -> dict[int, Work]:
        return {
            w: program[at]
            for w, (program, at) in enumerate(zip(self.programs, self.positions, strict=True))
            if at < len(program)
        }

    def _can(self, worker: int, work: Work) -> bool:
        if work.what == ALL_REDUCE:
            return self._all_began(worker)
        if sends(work):
            return len(self.in_flight[channel_of(work)]) < self.slots
        return not takes(work) or bool(self.in_flight[channel_of(work)])

    def _all_began(self, worker: int) -> bool:
        self.began[worker] = self.finished[worker] + 1
        return min(self.began) >= self.began[worker]

    def _do(self, worker: int, work: Work) -> None:
        self.finished[worker] += work.what == ALL_REDUCE
        if sends(work):
            self.in_flight[channel_of(work)].append(work.micro)
        elif takes(work):
            self.in_flight[channel_of(work)].popleft()


class Timed(NamedTuple):
    """Work with the time when it was done."""

    worker: int
    work: Work
    start: float
    end: float
    waited: float  # before the start


def clocked(table: Table, seconds: Callable[[int, Work], float], begins: list[float] | None = None) -> Iterator[Timed]:
    """Yield all work with its times.

    `seconds(worker, work)` is how long work takes; of a message that is sent, how long it is on its way. `begins` is
    when each worker is free, and afterwards when it is free again.
    """
    free = begins if begins is not None else [0.0] * table.workers
    arrivals: dict[Channel, deque[float]] = defaultdict(deque)
    taken: dict[Channel, list[float]] = defaultdict(list)
    put: dict[Channel, int] = defaultdict(int)
    walk, reductions = Walk(table), dict[int, float]()
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
        elif work.what == ALL_REDUCE:  # begins when the last worker has arrived
            start = reductions.setdefault(walk.finished[worker], max(free) + seconds(worker, work))
        else:
            takes_time = seconds(worker, work)
        free[worker] = start + takes_time
        yield Timed(worker, work, start, free[worker], start - before)


class Task(NamedTuple):
    """Work on the common clock of ticks."""

    tick: int
    stage: int
    micro: int
    what: str
    version: int = 0


def ticked(table: Table) -> list[Task]:
    """Return the table in order of ticks: all work takes one, messages none, and an update is in the tick before it."""

    def ticks(worker: int, work: Work) -> float:
        return 0.0 if work.what in (UPDATE, ALL_REDUCE) or sends(work) else 1.0

    found = []
    for _, work, start, _, _ in clocked(replace(table, slots=table.micro_batches + 1), ticks):
        if not (sends(work) or takes(work)):
            found.append(Task(int(start) - (work.what == UPDATE), *work))
    return sorted(found, key=lambda task: task.tick)
