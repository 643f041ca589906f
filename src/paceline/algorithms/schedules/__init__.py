"""Schedules: the order in which the workers of a pipeline compute, as a table.

The model is cut into stages and a batch into micro-batches. A schedule lists the work of each worker in order.
`clock.ticked` puts these lists on a common clock of ticks:

    F  forward of a micro-batch through a stage         reads a version of the stage's weights
    B  backward of it                                   reads a version
    I  the half of it that the stage before waits for: gradients of inputs
    W  the other half: gradients of weights
    U  update: the gradients since the last one make the stage's next version; takes no tick
    M  all-reduce of one number, for an update that needs one of the whole model (the gradient's norm); only in
       `Table.agreeing`

A schedule knows neither what a stage is made of nor how long it takes: `clocked` is given the seconds. Each line of a
table is followed by a program (`algorithms.schedules.worker`), with the messages between stages: on processes, on the
virtual clock, in a replay, and in a proof before a process starts (`algorithms.schedules.proof`). One class per
published method.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, Protocol

from paceline.algorithms.agenda import Agenda, Chunk

FORWARD, BACKWARD, INPUTS, WEIGHTS, UPDATE, ALL_REDUCE = "F", "B", "I", "W", "U", "M"
SLOTS = 2  # messages between two stages, each way, that may be ready before the sender has to wait


class Work(NamedTuple):
    """One piece of a worker's work."""

    stage: int
    micro: int  # of the table's micro-batches; of an update: the last that is in it
    what: str
    version: int = 0  # of the stage's weights that it reads; of an update: that it makes

    def __str__(self) -> str:
        return f"{self.what}{self.micro} of stage {self.stage}"


class StageLayout(NamedTuple):
    """The worker of each stage, and how many versions of its weights the stage holds."""

    stage_to_worker: tuple[int, ...]
    versions: tuple[int, ...]  # held at once, per stage
    predicts: bool = False  # whether forwards read weights as they are expected to be when their gradient arrives
    slots: int = SLOTS


def one_stage_each(workers: int) -> StageLayout:
    """Return the layout where worker w has stage w, in one version."""
    return StageLayout(tuple(range(workers)), (1,) * workers)


class Schedule(Protocol):
    @property
    def name(self) -> str:
        """The name that messages use."""

    @property
    def span(self) -> int:
        """Updates in one table, after which the pipeline is empty and the next table begins; 0: the whole training."""

    def layout(self, workers: int) -> StageLayout:
        """Return where the stages are."""

    def line(self, worker: int, workers: int, counts: Sequence[int]) -> Iterator[Work]:
        """Yield a worker's work in order; `counts` are the micro-batches of each of the table's updates."""


@dataclass(frozen=True)
class Table:
    """The work of all workers in `span` updates, messages left out."""

    stage_to_worker: tuple[int, ...]
    lines: tuple[tuple[Work, ...], ...]  # one per worker
    versions: tuple[int, ...]  # held at once, per stage
    predicts: bool = False
    slots: int = SLOTS
    name: str = field(default="table", compare=False)

    @property
    def workers(self) -> int:
        return len(self.lines)

    @property
    def stages(self) -> int:
        return len(self.stage_to_worker)

    @property
    def micro_batches(self) -> int:
        return 1 + max((work.micro for line in self.lines for work in line), default=-1)

    def agreeing(self) -> Table:
        """Return the table with an all-reduce before the updates, which every worker makes last."""
        lines = []
        for line in self.lines:
            updates = [work for work in line if work.what == UPDATE]
            reduce = [work._replace(what=ALL_REDUCE, version=0) for work in updates[:1]]
            lines.append((*(work for work in line if work.what != UPDATE), *reduce, *updates))
        return replace(self, lines=tuple(lines))


def table_of(schedule: Schedule, workers: int, counts: Sequence[int]) -> Table:
    """Return the whole table of a schedule."""
    layout = schedule.layout(workers)
    lines = tuple(tuple(schedule.line(worker, workers, counts)) for worker in range(workers))
    return Table(layout.stage_to_worker, lines, layout.versions, layout.predicts, layout.slots, name=schedule.name)


# The updates and micro-batches of each table of a training.
# A schedule that flushes has a table for every update. One that does not has a single table for the whole training,
# which may be long, so everything that can be computed on demand is.


class Pass:
    """One table: its first update, and how many micro-batches each of its updates is made of."""

    def __init__(self, first: int, counts: tuple[int, ...], chunks: Callable[[int], list[Chunk]]) -> None:
        self.first, self.counts = first, counts
        self._begins = [0, *accumulate(counts)]
        #: The micro-batches of an update.
        self.chunks = lru_cache(maxsize=64)(chunks)

    @property
    def stop(self) -> int:
        """The update after its last."""
        return self.first + len(self.counts)

    def update(self, micro: int) -> int:
        """The update that this micro-batch of the table is in."""
        return self.first + bisect_right(self._begins, micro) - 1

    def opens(self, micro: int) -> bool:
        """Whether this micro-batch is the first of its update."""
        return self._begins[self.update(micro) - self.first] == micro

    def chunk(self, micro: int) -> Chunk:
        update = self.update(micro)
        return self.chunks(update)[micro - self._begins[update - self.first]]

    def ahead(self, micro: int, version: int) -> int:
        """Return the updates between a version of weights and the one that the micro-batch's gradient changes.

        Versions are in the table's count. An update makes the version after it.
        """
        return self.update(micro) - self.first - version


def passes(
    span: int, agenda: Agenda, start: int = 0, stop: int | None = None, replica: int = 0, replicas: int = 1
) -> Iterator[Pass]:
    """Yield the tables of the updates from `start` to `stop`, of `span` updates each (0: all).

    Where there are several replicas of the pipeline, each has the same number of neighbouring chunks of every batch.
    """

    def chunks(update: int) -> list[Chunk]:
        filled = agenda.filled(update)
        return [c for c in filled if c.number % agenda.parts * replicas // agenda.parts == replica]

    end = agenda.updates if stop is None else stop
    step = span or max(1, end - start)
    epoch = [len(chunks(update)) for update in range(min(end, agenda.updates_per_epoch))]  # all are alike
    for first in range(start, end, step):
        updates = range(first, min(first + step, end))
        yield Pass(first, tuple(epoch[update % agenda.updates_per_epoch] for update in updates), chunks)


# The memory that a table takes: what each worker holds, walked through in the order of its work.
# always           weights in all their versions, the optimizer's state
# in an update     gradients, from the first backward to the update
# in flight        what a forward keeps for its backward, for each micro-batch between the two
# for a moment     what forward, backward and update need while they run, over what they leave behind


class Back(NamedTuple):
    """Bytes of a backward, over those before it, without what its forward left."""

    most: int  # while it runs; where it comes in two halves: while the first runs
    left: int  # after it: gradients of weights; of the first half: also what the second needs
    most_later: int = 0  # in the second half
    left_later: int = 0  # after that


class Weighed(NamedTuple):
    """Bytes of one stage and one micro-batch."""

    always: int
    kept: int  # what a forward leaves, with what it has taken
    forward: int  # most while it runs, over what was there before
    first: Back  # of the first micro-batch of an update, which makes gradients
    later: Back  # of the others, which add to them
    update: int  # most while it runs, over what was there before

    @property
    def gradients(self) -> int:
        """The bytes of gradients, which are held from the first backward to the update."""
        return self.first.left_later or self.first.left


def peaks(table: Table, stages: Sequence[Weighed]) -> list[int]:
    """Return the most bytes that each worker holds at one time."""
    return [_peak(table, worker, stages) for worker in range(table.workers)]


def _peak(table: Table, worker: int, stages: Sequence[Weighed]) -> int:
    mine = [number for number, holder in enumerate(table.stage_to_worker) if holder == worker]
    resident = most = sum(stages[number].always for number in mine)
    begun = set[tuple[int, str]]()  # (stage, which half), since the last update
    for work in table.lines[worker]:
        weighed = stages[work.stage]
        back = weighed.later if (work.stage, work.what) in begun else weighed.first
        moment = delta = 0
        if work.what == FORWARD:
            moment, delta = weighed.forward, weighed.kept
        elif work.what in (BACKWARD, INPUTS):
            moment, delta = back.most - weighed.kept, back.left - weighed.kept
        elif work.what == WEIGHTS:
            moment, delta = back.most_later - back.left, back.left_later - back.left
        elif work.what == UPDATE:
            moment, delta = weighed.update, -weighed.gradients
            begun -= {(work.stage, what) for what in (BACKWARD, INPUTS, WEIGHTS)}
        most = max(most, resident + moment, resident + delta)
        resident += delta
        begun.add((work.stage, work.what))
    return most
