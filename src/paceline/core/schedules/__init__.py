"""Schedules: in which order the workers of a pipeline do what, as a table.

The model is cut into stages; a batch into micro-batches. A schedule lists, for each worker, what it does one after the
other. `tasks` puts these lists on a common clock of ticks:

    F  forward of a micro-batch through a stage         reads a version of the stage's weights
    B  backward of it                                   reads a version
    I  only the half of it that the stage before waits for: gradients of inputs
    W  the other half: gradients of weights
    U  update: what backwards brought since the last one makes the stage's next version; takes no tick
    M  all meet over a number, where an update needs one of the whole model (its gradient's norm); in `agreeing` only

Nothing here knows what a stage is made of, or how long it takes: `clocked` is asked for seconds. The same table is
executed by the local engine, timed and executed by the virtual one, drawn as a picture, and proved by
`core.schedules.proof` before a process starts. One file per published method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

FORWARD, BACKWARD, INPUTS, WEIGHTS, UPDATE, MEET = "F", "B", "I", "W", "U", "M"
SEND_ON, TAKE_ON, SEND_BACK, TAKE_BACK = "S>", "T>", "S<", "T<"  # activations to the next stage; gradients back
SLOTS = 2  # messages that lie ready between two stages, each way, before the sender has to wait


class Work(NamedTuple):
    """One thing a worker does. A stage's number says where: S> sends to the stage after it, T> takes from the one
    before it.
    """

    stage: int
    micro: int  # of the table's micro-batches; of an update: the last that is in it
    what: str
    version: int = 0  # of the stage's weights that it reads; of an update: that it makes

    def __str__(self) -> str:
        return f"{self.what}{self.micro} of stage {self.stage}"


class Schedule(Protocol):
    @property
    def name(self) -> str:
        """For messages."""

    @property
    def span(self) -> int:
        """Updates that one table holds; then all is quiet, and the next table begins. 0: the whole training."""

    @property
    def predicts(self) -> bool:
        """Whether forwards read weights as they are expected to be when their gradient arrives."""

    @property
    def slots(self) -> int:
        """Messages that may lie ready between two stages, each way."""

    def homes(self, workers: int) -> tuple[int, ...]:
        """The worker of each stage."""

    def keeps(self, stage: int, workers: int) -> int:
        """How many versions of its weights a stage holds at once."""

    def line(self, worker: int, workers: int, counts: Sequence[int]) -> Iterator[Work]:
        """What a worker does, one after the other, when the table's updates are made of so many micro-batches each."""


@dataclass(frozen=True)
class Table:
    """What everybody does in `span` updates, messages left out."""

    homes: tuple[int, ...]  # the worker of each stage
    lines: tuple[tuple[Work, ...], ...]  # one per worker
    keeps: tuple[int, ...]  # versions held, per stage
    predicts: bool = False
    slots: int = SLOTS
    name: str = field(default="table", compare=False)

    @property
    def workers(self) -> int:
        return len(self.lines)

    @property
    def stages(self) -> int:
        return len(self.homes)

    @property
    def micro_batches(self) -> int:
        return 1 + max((work.micro for line in self.lines for work in line), default=-1)

    def agreeing(self) -> Table:
        """The same, but that all meet before anybody makes an update, which they make last."""
        lines = []
        for line in self.lines:
            updates = [work for work in line if work.what == UPDATE]
            meet = [work._replace(what=MEET, version=0) for work in updates[:1]]
            lines.append((*(work for work in line if work.what != UPDATE), *meet, *updates))
        return replace(self, lines=tuple(lines))

    @property
    def programs(self) -> list[list[Work]]:
        """The lines with their messages: what comes from another worker is taken just before it is needed, and what
        goes to another is sent as soon as it is there.
        """
        return [[step for work in line for step in _with_messages(work, self.homes)] for line in self.lines]


def _with_messages(work: Work, homes: Sequence[int]) -> Iterator[Work]:
    stage, here = work.stage, homes[work.stage]
    before = stage > 0 and homes[stage - 1] != here
    after = stage + 1 < len(homes) and homes[stage + 1] != here
    if work.what == FORWARD and before:
        yield work._replace(what=TAKE_ON)
    if work.what in (BACKWARD, INPUTS) and after:
        yield work._replace(what=TAKE_BACK)
    yield work
    if work.what == FORWARD and after:
        yield work._replace(what=SEND_ON)
    if work.what in (BACKWARD, INPUTS) and before:
        yield work._replace(what=SEND_BACK)


def program_of(schedule: Schedule, worker: int, workers: int, counts: Sequence[int]) -> Iterator[Work]:
    """One worker's line of the table with its messages, as it comes: a training without a flush may be long."""
    homes = schedule.homes(workers)
    return (step for work in schedule.line(worker, workers, counts) for step in _with_messages(work, homes))


def table_of(schedule: Schedule, workers: int, counts: Sequence[int]) -> Table:
    homes = schedule.homes(workers)
    lines = tuple(tuple(schedule.line(worker, workers, counts)) for worker in range(workers))
    keeps = tuple(schedule.keeps(stage, workers) for stage in range(len(homes)))
    return Table(homes, lines, keeps, schedule.predicts, schedule.slots, name=schedule.name)


# --- what several schedules share -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class OneStageEach:
    """Worker w holds stage w, in one version; an update is made when all its micro-batches are through."""

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def span(self) -> int:
        return 1

    @property
    def predicts(self) -> bool:
        return False

    @property
    def slots(self) -> int:
        return SLOTS

    def homes(self, workers: int) -> tuple[int, ...]:
        return tuple(range(workers))

    def keeps(self, stage: int, workers: int) -> int:
        return 1
