"""Replaying a plan with a server: what each worker did, in the orders that the trace recorded.

The trace says which version of each shard a worker held when it computed, and in which order the shards took the
pushes; everything else follows. Workers are replayed by their own lines (`recorded`), and each step waits until its
shard has the version before, so that no clock has to be trusted.

    worker 1      pulls version 7 of shard 0 and 9 of shard 1, computes batch 12, makes version 8 of shard 0 and ...
    shard 0       makes version 8 only when every worker that pulled version 7 has done so again
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from paceline.algorithms.agenda import Agenda, Chunk
from paceline.algorithms.server.messages import Pull, Push
from paceline.errors import ReplayDiverged
from paceline.runtime.engines.arithmetic.pipeline import ReplicaArithmetic
from paceline.runtime.engines.arithmetic.servers import ServerArithmetic
from paceline.runtime.engines.setup import Setup
from paceline.runtime.runs.trace import Columns, Kind

# What the workers of a plan with servers did, as their trace has recorded it: one line of effects for each.
#
# Where shards lie in memory that workers share, every worker's rows are there in its own order: what it has computed
# and pushed. Where servers were processes of their own, only the pushes are sure to be: a machine that died has taken
# its workers' rows with it, and clocks of several machines do not agree. A push tells its batch, its worker and which
# process of it, and the version of every shard that its gradient was computed from; PULL rows, which begin when it did,
# tell those of shards that did not take it. So a batch of which two processes have pushed parts, since one was killed
# or taken for dead, is two computations, also where both were started for one rank.
#
# A worker killed between writing a row and making its version leaves a row too many, and servers that had lost versions
# make them again: the later row is valid.


class Step(NamedTuple):
    """An effect of a worker."""

    what: Literal["begin", "pull", "compute", "push"]
    #: The number of its line.
    worker: int
    #: Of a computation: none, since it needs the worker's parts of all shards.
    shard: int
    #: Of a computation its task, of a push its batch.
    number: int
    #: The version that the shard has before.
    before: int


class Process(NamedTuple):
    """A process of a worker."""

    worker: int
    #: How many processes the worker had before.
    life: int

    @staticmethod
    def of(row: Any) -> Process:
        return Process(int(row["worker"]), int(row["value"]))


#: Steps by the version that they make, or (True) begin from, with their process.
Event = tuple[int, bool, Process, list[Step]]


@dataclass
class Recorded:
    """The steps of every worker in its own order."""

    lines: list[list[Step]]
    #: The last version of every shard that the rows tell of, where another part of the run may follow.
    end: int | None = None
    #: The worker of each line. One whose processes overlapped has several.
    workers: list[int] = field(default_factory=list)

    @staticmethod
    def of(processes: Mapping[Process, list[Step]], workers: int, end: int) -> Recorded:
        """Put the steps of a worker's processes one after another into its line, or into another if they overlap."""
        whole = Recorded([[] for _ in range(workers)], end, list(range(workers)))
        for (worker, _), steps in sorted(processes.items()):
            mine = (n for n, other in enumerate(whole.workers) if other == worker)
            number = next((n for n in mine if _follows(steps, whole.lines[n])), len(whole.lines))
            if number == len(whole.lines):
                whole.lines.append([])
                whole.workers.append(worker)
            line = whole.lines[number]
            line += [Step("begin", number, -1, -1, -1)] * bool(line)
            line += [step._replace(worker=number) for step in steps]
        return whole


def _follows(steps: list[Step], line: list[Step]) -> bool:
    """Whether a process has pulled nothing that is older than what another one has pushed."""
    versions = {step.shard: step.before + 1 for step in line if step.what == "push"}
    return all(step.before >= versions.get(step.shard, 0) for step in steps if step.what == "pull")


def recorded(setup: Setup, rows: Columns, apart: bool) -> Recorded:
    """Return what was recorded; `apart` is whether servers were processes of their own."""
    gathers, workers = setup.plan.traits.gathers, setup.plan.workers
    if setup.pipeline is not None:
        rows, workers = of_replicas(rows, setup.pipeline.shards(workers)), setup.pipeline.spread.data
    if not apart:
        return Recorded(_own_rows(rows, workers, gathers), None, list(range(workers)))
    if gathers:
        return recorded_rounds(setup.agenda, rows, workers)
    read = recorded_pushes if setup.plan.method.exchange is None else recorded_exchanges
    return read(setup.agenda, rows, workers)


def _own_rows(rows: Columns, workers: int, gathers: bool) -> list[list[Step]]:
    """Return the steps of workers by their own rows. Of a shard that gathers, late gradients are in no version."""
    kinds, last = (Kind.COMPUTE, Kind.APPLY, *((Kind.DROP,) if gathers else ())), dict[tuple[int, int], int]()
    for at in np.flatnonzero(rows["kind"] == Kind.APPLY).tolist():
        last[_push_of(rows[at], gathers)] = at
    lines: list[list[Step]] = []
    for worker in range(workers):
        mine = np.flatnonzero((rows["worker"] == worker) & np.isin(rows["kind"], kinds))
        mine = mine[np.argsort(rows["end"][mine], kind="stable")]
        after = [*rows["kind"][mine].tolist(), Kind.DEATH][1:]
        line: list[Step] = []
        for at, following in zip(mine.tolist(), after, strict=True):
            row = rows[at]
            if row["kind"] == Kind.COMPUTE and (not gathers or following == Kind.APPLY):
                line += [Step("pull", worker, 0, -1, int(row["base"]))] * gathers
                line.append(Step("compute", worker, -1, int(row["update"]), -1))
            elif row["kind"] == Kind.APPLY and last[_push_of(row, gathers)] == at:
                line.append(_push(worker, row))
        lines.append(line)
    return lines


def _push_of(row: Any, gathers: bool) -> tuple[int, int]:
    """Identify a push: by its batch where several make a version, else by the version."""
    return int(row["shard"]), int(row["update" if gathers else "version"])


def _push(worker: int, row: Any) -> Step:
    return Step("push", worker, int(row["shard"]), int(row["update"]), int(row["version"]) - 1)


@dataclass
class Computation:
    """A process's gradient of one batch."""

    #: For each shard, the version that it was computed from.
    bases: dict[int, int]
    #: The pushes of it that made a version.
    pushes: list[Step] = field(default_factory=list)


def recorded_pushes(agenda: Agenda, rows: Columns, workers: int) -> Recorded:
    """Return the steps of workers that pull the version of every shard that their gradients were computed from."""
    applied = rows[rows["kind"] == Kind.APPLY]
    valid = list({(int(row["shard"]), int(row["version"])): row for row in applied}.values())
    pulled: dict[tuple[Process, int, int], dict[int, int]] = defaultdict(dict)
    for row in rows[rows["kind"] == Kind.PULL]:
        pulled[Process.of(row), int(row["update"]), int(row["start"])][int(row["shard"])] = int(row["base"])
    computations: dict[tuple[Process, int, tuple[int, ...]], Computation] = {}
    for row in valid:
        process, batch = Process.of(row), int(row["update"])
        bases = pulled.get((process, batch, int(row["start"])), {})
        # Pushes of one computation lack the same shards.
        each = computations.setdefault((process, batch, tuple(sorted(bases))), Computation(dict(bases)))
        each.bases[int(row["shard"])] = int(row["base"])
        each.pushes.append(_push(process.worker, row))
    lines: dict[Process, list[Step]] = defaultdict(list)
    # What a process holds only grows, and each push adds to it.
    for (process, batch, _), each in sorted(computations.items(), key=lambda item: sum(item[1].bases.values())):
        lines[process] += [Step("pull", process.worker, shard, -1, base) for shard, base in each.bases.items()]
        lines[process] += [*_computes(agenda, process.worker, batch), *each.pushes]
    newest: dict[int, int] = {}
    for row in valid:
        newest[int(row["shard"])] = max(int(row["version"]), newest.get(int(row["shard"]), 0))
    return Recorded.of(lines, workers, min(newest.values(), default=0))


def recorded_exchanges(agenda: Agenda, rows: Columns, workers: int) -> Recorded:
    """Return the steps of workers that exchange replicas with a centre; PULL rows tell from which version one starts.

    What a worker computes follows from its own last exchange.
    """
    valid = {int(row["version"]): row for row in rows[rows["kind"] == Kind.APPLY]}
    made = {(Process.of(row), int(row["update"])) for row in valid.values()}
    events: list[Event] = []
    for version, row in valid.items():
        steps = [*_computes(agenda, worker := int(row["worker"]), int(row["update"])), _push(worker, row)]
        events.append((version, False, Process.of(row), steps))
    for row in rows[rows["kind"] == Kind.PULL]:
        if (Process.of(row), int(row["update"])) in made:
            base = int(row["base"])
            events.append((base, True, Process.of(row), [Step("pull", int(row["worker"]), 0, -1, base)]))
    return Recorded.of(_by_process(events), workers, _reached(sorted(valid)))


def recorded_rounds(agenda: Agenda, rows: Columns, workers: int) -> Recorded:
    """Return the steps of workers whose shard gathers: all pushes of a round were computed from the version before."""
    valid = {int(row["update"]): row for row in rows[rows["kind"] == Kind.APPLY]}
    versions: dict[int, list[Any]] = defaultdict(list)
    for _, row in sorted(valid.items()):
        versions[int(row["version"])].append(row)
    whole = {version: pushes for version, pushes in versions.items() if len(pushes) == agenda.shares}
    events: list[Event] = []
    for version, pushes in whole.items():
        for row in pushes:
            worker = int(row["worker"])
            pull, compute = (
                Step("pull", worker, 0, -1, version - 1),
                Step("compute", worker, -1, int(row["update"]), -1),
            )
            events.append((version, False, Process.of(row), [pull, compute, _push(worker, row)]))
    return Recorded.of(_by_process(events), workers, _reached(sorted(whole)))


def _by_process(events: list[Event]) -> dict[Process, list[Step]]:
    """Return each process's steps by the versions that they make, or begin from."""
    lines: dict[Process, list[Step]] = defaultdict(list)
    for _, _, process, steps in sorted(events, key=lambda event: event[:2]):
        lines[process] += steps
    return lines


def _reached(versions: list[int]) -> int:
    """Return the last version before one that is missing."""
    gaps = (before for before, after in pairwise(versions) if after > before + 1)
    return next(gaps, versions[-1] if versions else 0)


def _computes(agenda: Agenda, worker: int, batch: int) -> Iterator[Step]:
    return (Step("compute", worker, -1, task, -1) for task in agenda.tasks(batch))


def of_replicas(rows: Columns, size: int) -> Columns:
    """Return the rows as if each replica of so many workers were one: every batch computed once, then pushed."""
    found = rows[np.isin(rows["kind"], (Kind.COMPUTE, Kind.APPLY))].copy()
    found["worker"] //= size
    computed = {(int(row["worker"]), int(row["update"])) for row in found[found["kind"] == Kind.COMPUTE]}
    made: list[Any] = []
    order: dict[tuple[int, int], int] = {}
    for row in np.sort(found[found["kind"] == Kind.APPLY], order="end"):
        key = int(row["worker"]), int(row["update"])
        order.setdefault(key, len(order))
        made.append(row)
    rows = found[found["kind"] == Kind.COMPUTE]
    made += [row for row in rows if (int(row["worker"]), int(row["update"])) in order]
    for worker, update in order.keys() - computed:  # its last stage was killed before it wrote the row
        row = next(each for each in made if (int(each["worker"]), int(each["update"])) == (worker, update)).copy()
        row["kind"] = Kind.COMPUTE
        made.append(row)
    # A replica's batches follow one another; `end` is all that the replay sorts by.
    made.sort(key=lambda row: (order[int(row["worker"]), int(row["update"])], row["kind"] != Kind.COMPUTE))
    together: Columns = np.array(made, dtype=found.dtype)
    together["end"] = np.arange(len(together))
    return together


class Order:
    """Grants the steps of all lines in an order that the versions of their shards allow, whatever clocks say."""

    def __init__(self, recorded: Recorded, versions: list[int], needed: int, gathers: bool) -> None:
        """`needed` pushes make a version, from those on that shards begin with."""
        self.lines, self.versions, self.needed, self.gathers = (
            list(map(deque, recorded.lines)),
            versions,
            needed,
            gathers,
        )
        steps = [step for line in recorded.lines for step in line]
        #: How many workers have still to pull a version of a shard.
        self.pulls = Counter((step.shard, step.before) for step in steps if step.what == "pull")
        #: Pushes that the next version of each shard has so far.
        self.pushed = Counter[int]()

    def steps(self, stop: int | None = None) -> Iterator[Step]:
        """Yield each step when it is due, until all shards have version `stop`: it is done before the next is due."""
        moved = True
        while moved:
            moved = False
            for line in self.lines:
                while step := next((each for each in _due(line) if self._ready(each, stop)), None):
                    line.remove(step)
                    moved = True
                    self._count(step)
                    yield step

    def _ready(self, step: Step, stop: int | None) -> bool:
        if step.shard < 0:
            return True
        there = self.versions[step.shard] == step.before
        if step.what == "pull":
            return there
        reached = stop is not None and min(self.versions) >= stop
        # A version that gathers is not made before all that pull the one before have pushed, some of them twice.
        return there and not reached and (self.gathers or not self.pulls[step.shard, step.before])

    def _count(self, step: Step) -> None:
        if step.what == "pull":
            self.pulls[step.shard, step.before] -= 1
        elif step.what == "push":
            self.pushed[step.shard] += 1
            self.versions[step.shard] += self.pushed[step.shard] == self.needed
            self.pushed[step.shard] %= self.needed


def _due(line: Iterable[Step]) -> Iterator[Step]:
    """Yield the steps that a worker may do now: pushes to several shards, and pulls after them, wait for one another
    only at the same shard.
    """
    shards = set[int]()
    for step in line:
        if step.shard < 0:
            if not shards:
                yield step
            return
        if step.shard not in shards:
            yield step
        shards.add(step.shard)


@dataclass(frozen=True)
class ReplayedVersion:
    """One version of one shard, made again."""

    shard: int
    version: int
    #: Whether the loss and gradient that it came from, and the shard after it, are finite.
    finite: bool


@dataclass(frozen=True)
class NextUpdate:
    """The update that would come next."""

    chunks: list[Chunk]
    worker: int
    #: None if the worker had not computed it yet.
    loss: float | None


class Loss(NamedTuple):
    """The loss of a worker's last computation."""

    task: int
    value: float
    finite: bool


NO_LOSS = Loss(-1, 0.0, True)


class ServerReplayer:
    """Replays a part of a run; `apart` is whether servers were processes of their own in it."""

    def __init__(self, setup: Setup, rows: Columns, apart: bool) -> None:
        self.setup, self.agenda, record = setup, setup.agenda, recorded(setup, rows, apart)
        self.sums: ServerArithmetic | ReplicaArithmetic
        if setup.pipeline is not None:
            self.sums = ReplicaArithmetic(setup)
            self.versions = [0] * len(self.sums.memories)
        else:
            resumed = rows[rows["kind"] == Kind.RESUME]["version"]
            self.versions = [int(v) for v in resumed] if len(resumed) else [0] * len(setup.layout.shards)
            self.sums = ServerArithmetic(setup, self.versions, len(record.lines))
        self.last = self.agenda.leases // self.agenda.shares
        self.end, self.workers = record.end, record.workers
        self.needed = self.agenda.shares if setup.plan.traits.gathers else 1
        self.order = Order(record, self.versions, self.needed, setup.plan.traits.gathers)
        #: The pushes that each version of a shard is made of.
        self.pushes: dict[tuple[int, int], list[Step]] = defaultdict(list)
        for step in (step for line in record.lines for step in line if step.what == "push"):
            self.pushes[step.shard, step.before + 1].append(step)
        self.losses: dict[int, Loss] = {}
        #: By shard: whether what its next version is made of so far was finite.
        self.gathered: dict[int, list[bool]] = defaultdict(list)
        self.stop: int | None = None
        #: By shard: the loss of the push after version `stop`, where the shard had to go on.
        self.passed: dict[int, Loss] = {}

    @property
    def done(self) -> int:
        return min(self.versions)

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        """Make every version up to `until` of every shard.

        Batches reach shards in different orders, so one shard may have to go on before another one can get there. What
        it held at `until` is kept.
        """
        ends = [each for each in (until, self.end) if each is not None]
        self.stop = min(ends, default=None)
        for step in self.order.steps(self.stop):
            yield from self._perform(step)
        if self.end is not None and self.stop is not None and self.done < self.stop:
            raise ReplayDiverged(_stuck(self.versions))

    def next(self, shard: int, until: int) -> NextUpdate:
        pushes = self.pushes[shard, until + 1]
        bad = next((step for step in pushes if not self._loss_of(step).finite), pushes[0])
        chunks = [chunk for step in pushes for chunk in self.agenda.task(self.agenda.tasks(step.number)[0])]
        loss = self.passed.get(shard, self._loss_of(bad))
        computed = loss.task == self.agenda.tasks(bad.number)[-1]
        return NextUpdate(chunks, self.workers[bad.worker], loss.value if computed else None)

    def values(self) -> list[torch.Tensor]:
        return self.sums.values()

    def _perform(self, step: Step) -> Iterator[ReplayedVersion]:
        worker, shard = step.worker, step.shard
        if step.what == "begin":
            self.sums.begin(worker)  # type: ignore[union-attr]  # of servers that were processes of their own
        elif step.what == "compute":
            self._compute(worker, step.number)
        elif step.what == "pull":
            self.sums.pull(Pull(worker, shard))
        else:
            loss, gathered = self._loss_of(step), self.gathered[shard]
            if step.before == self.stop:
                self.sums.hold(shard)
                self.passed[shard] = loss
            self.sums.push(Push(worker, shard, step.number))
            gathered.append(loss.finite)
            if len(gathered) == self.needed:
                values = (bool(version.values.isfinite().all()) for version in self.sums.newest(shard))
                yield ReplayedVersion(shard, step.before + 1, all(gathered) and all(values))
                gathered.clear()

    def _compute(self, worker: int, task: int) -> None:
        computed = self.sums.compute(worker, self.agenda.task(task))
        before = self.losses.get(worker, NO_LOSS)
        good = computed.finite() and (before.finite or self.agenda.lease(before.task) != self.agenda.lease(task))
        self.losses[worker] = Loss(task, computed.loss / computed.weight if computed.weight else math.nan, good)

    def _loss_of(self, step: Step) -> Loss:
        """The loss of the last computation of the worker that makes this push."""
        return self.losses.get(step.worker, NO_LOSS)


def _stuck(versions: list[int]) -> str:
    shown = ", ".join(f"{version} of shard {shard}" for shard, version in enumerate(versions))
    return (
        f"the replay cannot go on after version {shown}: a gradient was computed from a version that was lost with its "
        "servers, and that no shard has"
    )
