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
virtual clock, in a replay, and in a proof before a process starts (`algorithms.schedules.proof`). One file per
published method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

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
