"""Tables that users write, in the text that `paceline draw` prints:

    worker 0   F0  F1  .   B0  F2  B1  F3  B2  .   B3U
    worker 1   .   F0  B0  F1  B1  F2  B2  F3  B3U .

A line per worker; a worker may have several, one after the other. F2 is the forward of micro-batch 2, B2 its backward
(or I2 and W2 its halves), U the stage's update; B3U is both, and a dot is nothing. Where a worker has several stages
the stage follows a dot: F2.1, U.1. F2v1 reads version 1 of the weights; left out, a forward reads the newest, and a
backward what its forward has read. Lines that may be added: `keeps 2 1`, the versions that each stage holds (else 1);
`slots 4`, messages that may be ready between two stages, each way (else 2); `predicts`, where forwards read predicted
weights and backwards the newest. `#` begins a remark, and a line that begins with `tick` is one.

Ticks do not matter, only the order in which each worker does its work. Messages follow from where stages are. Where the
table holds several updates, the pipeline is empty only after the last of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from paceline.algorithms.schedules import BACKWARD, FORWARD, SLOTS, UPDATE, WEIGHTS, StageLayout, Table, Work
from paceline.errors import PlanError

CELL = re.compile(r"(?:([FBIW])(\d+)(?:\.(\d+))?(?:v(\d+))?)?(U(?:\.(\d+))?)?")
EXAMPLE = """
worker 0   F0  F1  .   B0  F2  B1  F3  B2  .   B3U
worker 1   .   F0  B0  F1  B1  F2  B2  F3  B3U .
"""


@dataclass(frozen=True)
class UserTable:
    """A schedule that a user wrote as a table."""

    text: str = EXAMPLE
    name: str = "table"  # where it came from

    @cached_property
    def table(self) -> Table:
        return read(self.text, self.name)

    @cached_property
    def updates(self) -> list[list[int]]:
        """The micro-batches of each update, taken from stage 0."""
        groups, waiting = list[list[int]](), list[int]()
        holders = self.table.stage_to_worker
        for work in self.table.lines[holders[0]] if holders else ():
            if work.stage == 0 and work.what in (BACKWARD, WEIGHTS):
                waiting.append(work.micro)
            elif work.stage == 0 and work.what == UPDATE:
                groups, waiting = [*groups, sorted(waiting)], []
        if not groups:
            raise PlanError(f"{self.name}: stage 0 makes no update; write U after its last backward, as in B3U")
        if len({len(update) for update in groups}) > 1:
            counts = ", ".join(str(len(update)) for update in groups)
            raise PlanError(f"{self.name}: its updates must be of as many micro-batches each, and are of {counts}")
        used = {micro for update in groups for micro in update}
        if unused := {work.micro for line in self.table.lines for work in line if work.what != UPDATE} - used:
            raise PlanError(
                f"{self.name}: stage 0 makes no update of micro-batch {min(unused)}: it needs a B{min(unused)}, then U"
            )
        return groups

    @property
    def micro_batches(self) -> int:
        return len(self.updates[0])

    @property
    def workers(self) -> int:
        return self.table.workers

    @property
    def span(self) -> int:
        return len(self.updates)

    def layout(self, workers: int) -> StageLayout:
        table = self.table
        return StageLayout(table.stage_to_worker, table.versions, table.predicts, table.slots)

    def line(self, worker: int, workers: int, counts: Sequence[int]) -> Iterator[Work]:
        """Yield a worker's line without what a smaller last batch, or the end of the training, leaves out."""
        used = [micro for update, count in zip(self.updates, counts, strict=False) for micro in update[:count]]
        number = {micro: position for position, micro in enumerate(sorted(used))}
        for work in self.table.lines[worker]:
            if work.what == UPDATE and work.version <= len(counts):
                last = max(m for m in self.updates[work.version - 1][: counts[work.version - 1]])
                yield work._replace(micro=number[last])
            elif work.what != UPDATE and work.micro in number:
                yield work._replace(micro=number[work.micro])


def read(text: str, source: str = "table") -> Table:
    """Parse a table. Errors of the text name its line; whether the table is valid is left to its proof."""
    cells: dict[int, list[tuple[int, str]]] = {}
    keeps: list[int] = []
    slots, predicts = SLOTS, False
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].replace(":", " ").split()
        if not words or words[0] == "tick":
            continue
        if words[0] == "worker" and len(words) > 1 and words[1].isdigit():
            cells.setdefault(int(words[1]), []).extend((number, word) for word in words[2:])
        elif words[0] == "keeps" and all(word.isdigit() for word in words[1:]):
            keeps = [int(word) for word in words[1:]]
        elif words[0] == "slots" and len(words) == 2 and words[1].isdigit() and int(words[1]) > 0:
            slots = int(words[1])
        elif words == ["predicts"]:
            predicts = True
        else:
            raise PlanError(
                f"{source}, line {number}: {line.strip()!r} is neither a worker's line nor keeps, slots, predicts"
            )
    if not cells or sorted(cells) != list(range(len(cells))):
        raise PlanError(f"{source}: each worker must have a line, numbered from 0; there are {sorted(cells) or 'none'}")
    works = [list(_works(worker, cells[worker], source)) for worker in sorted(cells)]
    stage_to_worker = _stage_to_worker(works, source)
    stages = len(stage_to_worker)
    if keeps and len(keeps) != stages:
        raise PlanError(f"{source}: keeps has {len(keeps)} numbers, and there are {stages} stages")
    lines = tuple(tuple(_versions(line, predicts)) for line in works)
    did = Counter((work.stage, work.what) for line in lines for work in line)
    # More versions than are made, or slots than messages, would take memory for nothing.
    version_counts = (
        tuple(min(versions, 1 + did[stage, UPDATE]) for stage, versions in enumerate(keeps)) or (1,) * stages
    )
    lie = min(slots, max(1, *(did[stage, FORWARD] for stage in range(stages))))
    return Table(stage_to_worker, lines, version_counts, predicts, lie, name=source)


NEWEST = -1  # stands for a version that is not given


def _works(worker: int, cells: Sequence[tuple[int, str]], source: str) -> Iterator[Work]:
    """Yield the work in a worker's cells; the last micro-batch of an update is filled in later."""
    stage = worker
    for number, word in cells:
        if word == ".":
            continue
        match = CELL.fullmatch(word)
        if match is None:
            raise PlanError(
                f"{source}, line {number}: {word!r} is no work; write F2, B2, I2, W2, U, F2.1, F2v1 or a dot"
            )
        what, micro, where, version, update, updated = match.groups()
        if what is not None:
            stage = int(where) if where else worker
            yield Work(stage, int(micro), what, int(version) if version else NEWEST)
        if update is not None:
            yield Work(int(updated) if updated else stage if what else worker, NEWEST, UPDATE)


def _stage_to_worker(lines: Sequence[Sequence[Work]], source: str) -> tuple[int, ...]:
    """Return the worker of each stage: the one that does its work."""
    placement: dict[int, int] = {}
    for worker, line in enumerate(lines):
        for work in line:
            if placement.setdefault(work.stage, worker) != worker:
                raise PlanError(
                    f"{source}: workers {placement[work.stage]} and {worker} both work on stage {work.stage}"
                )
    if sorted(placement) != list(range(len(placement))):
        raise PlanError(f"{source}: stages must be numbered from 0 without a gap; there are {sorted(placement)}")
    return tuple(placement[stage] for stage in sorted(placement))


def _versions(line: Sequence[Work], predicts: bool) -> Iterator[Work]:
    """Yield the work with the versions and micro-batches that the text left out."""
    newest: dict[int, int] = {}
    waiting: dict[int, list[int]] = {}
    read_by: dict[tuple[int, int], int] = {}
    for work in line:
        current = newest.get(work.stage, 0)
        if work.what == UPDATE:
            newest[work.stage] = current + 1
            yield work._replace(micro=max(waiting.pop(work.stage, [0])), version=current + 1)
            continue
        if work.what in (BACKWARD, WEIGHTS):
            waiting.setdefault(work.stage, []).append(work.micro)
        usual = current if work.what == FORWARD or predicts else read_by.get((work.stage, work.micro), current)
        version = usual if work.version == NEWEST else work.version
        if work.what == FORWARD:
            read_by[work.stage, work.micro] = version
        yield work._replace(version=version)
