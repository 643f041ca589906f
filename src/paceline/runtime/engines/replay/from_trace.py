"""Replaying a plan with a server: the programs of its workers, answered as the trace has recorded it.

Which batch a worker was leased, which version of each shard it computed from, and which push made which version: that
is all that clocks and chance have decided. So a worker's own program runs again (`Server.program`). The trace answers
its leases, and its other commands are granted when their shards have the version that they had then.

    worker 1      pulls version 7 of shard 0 and 9 of shard 1, computes batch 12, makes version 8 of shard 0 and ...
    shard 0       makes version 8 only when every worker that pulled version 7 has done so again
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.server.messages import Ask, Compute, Finish, Join, Lease, Pull, Push
from paceline.algorithms.server.worker import Client, Program
from paceline.errors import ReplayDiverged
from paceline.plans.methods import Server
from paceline.plans.plan import server_of
from paceline.runtime.engines.arithmetic.pipeline import ReplicaArithmetic
from paceline.runtime.engines.arithmetic.servers import ServerArithmetic
from paceline.runtime.engines.setup import Setup
from paceline.runtime.runs.trace import Columns, Kind


def _due(line: Iterable[ReplayStep]) -> Iterator[ReplayStep]:
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
        self.setup, self.agenda, server = setup, setup.agenda, server_of(setup.plan)
        self.sums: ServerArithmetic | ReplicaArithmetic
        if setup.pipeline is not None:
            sums = self.sums = ReplicaArithmetic(setup)
            rows = rows.copy()
            rows["worker"] //= len(sums.memories)
            self.versions = [0] * len(sums.memories)
            recorded = Recorded.of(server, rows, sums.replicas, self.versions, apart)
        else:
            resumed: list[int] = rows[rows["kind"] == Kind.RESUME]["version"].tolist()
            self.versions = resumed or [0] * len(setup.layout.shards)
            recorded = Recorded.of(server, rows, setup.plan.workers, self.versions, apart)
            self.sums = ServerArithmetic(setup, self.versions, len(recorded.lines))
        self.last = self.agenda.leases // self.agenda.shares
        self.workers, self.end = recorded.workers, recorded.end if apart else None
        self.needed = server.gathers or 1
        self.order = Order(recorded, self.versions, self.needed, bool(server.gathers))
        self.pushes = recorded.versions
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
        bad = next((push for push in pushes if not self._loss_of(push).finite), pushes[0])
        chunks = [chunk for push in pushes for chunk in self.agenda.task(self.agenda.tasks(push.batch)[0])]
        loss = self.passed.get(shard, self._loss_of(bad))
        computed = loss.task == self.agenda.tasks(bad.batch)[-1]
        return NextUpdate(chunks, self.workers[bad.worker], loss.value if computed else None)

    def values(self) -> list[torch.Tensor]:
        return self.sums.values()

    def _perform(self, step: ReplayStep) -> Iterator[ReplayedVersion]:
        match step.command:
            case Join():
                assert isinstance(self.sums, ServerArithmetic), "replicas that are pipelines are of one machine"
                self.sums.join(step.command)
            case Compute(worker, lease):
                for task in self.agenda.tasks(lease.batch):
                    self._compute(worker, task)
            case Pull():
                self.sums.pull(step.command)
            case Push():
                yield from self._push(step.command, step.before)

    def _push(self, push: Push, before: int) -> Iterator[ReplayedVersion]:
        loss, gathered = self._loss_of(push), self.gathered[push.shard]
        if before == self.stop:
            self.sums.hold(push.shard)
            self.passed[push.shard] = loss
        self.sums.push(push)
        gathered.append(loss.finite)
        if len(gathered) == self.needed:
            values = (bool(version.values.isfinite().all()) for version in self.sums.newest(push.shard))
            yield ReplayedVersion(push.shard, before + 1, all(gathered) and all(values))
            gathered.clear()

    def _compute(self, worker: int, task: int) -> None:
        computed = self.sums.compute(worker, self.agenda.task(task))
        before = self.losses.get(worker, NO_LOSS)
        good = computed.finite() and (before.finite or self.agenda.lease(before.task) != self.agenda.lease(task))
        self.losses[worker] = Loss(task, computed.loss / computed.weight if computed.weight else math.nan, good)

    def _loss_of(self, push: Push) -> Loss:
        """The loss of the last computation of the worker that makes this push."""
        return self.losses.get(push.worker, NO_LOSS)


def _stuck(versions: list[int]) -> str:
    shown = ", ".join(f"{version} of shard {shard}" for shard, version in enumerate(versions))
    return (
        f"the replay cannot go on after version {shown}: a gradient was computed from a version that was lost with its "
        "servers, and that no shard has"
    )


# What processes have computed and pushed, by the rows of their trace.
#
# Servers that are processes of their own record pushes alone: a machine that died has taken its workers' rows with it,
# and clocks of several machines do not agree. A push tells its batch, its worker and which process of it, and the
# version of the shard that its gradient was computed from; PULL rows, which begin when it did, tell those of shards
# that did not take it. So a batch of which two processes have pushed parts, since one was killed or taken for dead, is
# two computations, also where both were started for one rank.
#
# A worker killed between writing a row and making its version leaves a row too many, and servers that had lost versions
# make them again: the later row is valid.


class WorkerProcess(NamedTuple):
    """A process of a worker."""

    worker: int
    #: How many processes the worker had before.
    life: int

    @staticmethod
    def of(row: Any) -> WorkerProcess:
        return WorkerProcess(int(row["worker"]), int(row["value"]))


@dataclass
class Computation:
    """A process's gradient of one batch."""

    batch: int
    #: Grows from one computation of a process to the next.
    place: int
    #: The versions of shards that it was computed from, where its process did not hold them already.
    bases: dict[int, int]
    #: By shard: the version that its push has made, or was a part of.
    versions: dict[int, int] = field(default_factory=dict)


def computations(
    server: Server, rows: Columns, versions: Sequence[int], apart: bool
) -> dict[WorkerProcess, list[Computation]]:
    """Return what each process has computed, in its order, from where shards had these `versions`.

    `apart` is whether servers were processes of their own.
    """
    once = "update" if server.gathers else "version"  # tells the pushes to a shard apart
    pushes = list({(int(row["shard"]), int(row[once])): row for row in rows[rows["kind"] == Kind.APPLY]}.values())
    if server.gathers and apart:
        sizes = Counter(int(row["version"]) for row in pushes)
        pushes = [row for row in pushes if sizes[int(row["version"])] == server.gathers]
    pulled: dict[tuple[WorkerProcess, int, int], dict[int, int]] = defaultdict(dict)
    for row in rows[rows["kind"] == Kind.PULL]:
        pulled[WorkerProcess.of(row), int(row["update"]), int(row["start"])][int(row["shard"])] = int(row["base"])
    by_process: dict[WorkerProcess, dict[tuple[int, tuple[int, ...]], Computation]] = defaultdict(dict)
    for row in pushes:
        process, batch, shard = WorkerProcess.of(row), int(row["update"]), int(row["shard"])
        bases = pulled.get((process, batch, int(row["start"])), {})
        # Pushes of one computation lack the same shards.
        each = by_process[process].setdefault(
            (batch, tuple(sorted(bases))), Computation(batch, int(row["version" if apart else "end"]), dict(bases))
        )
        each.versions[shard] = int(row["version"])
        if not apart or server.exchange is None:
            each.bases[shard] = int(row["base"])
    for row in rows[rows["kind"] == Kind.DROP] if not server.gathers else ():  # a codec owes what it has not sent
        batch = int(row["update"])
        by_process[WorkerProcess.of(row)].setdefault((batch, ()), Computation(batch, int(row["end"]), {}))
    for each in (each for mine in by_process.values() for each in mine.values()):
        if server.gathers or (apart and server.exchange is None):
            each.place = sum(each.bases.values())  # what a process holds only grows, and each push adds to it
    ordered = {process: sorted(mine.values(), key=_place) for process, mine in sorted(by_process.items())}
    if not apart and not server.gathers:
        for process, mine in ordered.items():
            _leave_out(mine, {} if process.life else dict(enumerate(versions)))
    return ordered


def _leave_out(mine: Sequence[Computation], held: dict[int, int]) -> None:
    """Leave out bases that a process held already, as it began with them or has pushed what made them."""
    for each in mine:
        each.bases = {shard: base for shard, base in each.bases.items() if base != held.get(shard)}
        held |= each.bases | each.versions


def _place(each: Computation) -> tuple[int, int]:
    return each.place, each.batch


# The commands of workers, as their programs give them.


class ReplayStep(NamedTuple):
    """A command of a worker; `before` is the version that its shard has then."""

    command: Join | Pull | Compute | Push
    before: int = -1

    @property
    def shard(self) -> int:
        """The shard whose version it waits for, or -1."""
        return self.command.shard if isinstance(self.command, Pull | Push) else -1


def steps_of(program: Program, mine: Sequence[Computation]) -> Iterator[ReplayStep]:
    """Run a worker's program over what one of its processes has computed, and yield what it does with shards."""
    pending, computation = iter(mine), Computation(-1, 0, {})
    answer: Lease | None = None
    while True:
        try:
            command = program.send(answer)
        except StopIteration:
            return
        answer = None
        match command:
            case Ask() | Finish():
                if (following := next(pending, None)) is not None:
                    computation, answer = following, Lease(following.batch, False)
            case Compute(worker, lease):
                answer = lease
                yield from (ReplayStep(Pull(worker, shard), base) for shard, base in computation.bases.items())
                yield ReplayStep(command)
            case Push() if command.shard in computation.versions:
                yield ReplayStep(command, computation.versions[command.shard] - 1)
            case Join():
                yield ReplayStep(command)


@dataclass
class Recorded:
    """The steps of every worker in its own order."""

    lines: list[list[ReplayStep]]
    #: The worker of each line. One whose processes overlapped has several.
    workers: list[int]

    @staticmethod
    def of(server: Server, rows: Columns, workers: int, versions: Sequence[int], apart: bool) -> Recorded:
        """Put what a worker's processes did one after another into its line, or into another if they overlapped."""
        recorded = Recorded([[] for _ in range(workers)], list(range(workers)))
        for (worker, life), mine in computations(server, rows, versions, apart).items():
            own = (number for number, other in enumerate(recorded.workers) if other == worker)
            number = next((number for number in own if _follows(mine, recorded.lines[number])), len(recorded.lines))
            if number == len(recorded.lines):
                recorded.lines.append([])
                recorded.workers.append(worker)
            client = Client(number, len(versions), joins=bool(life or recorded.lines[number]))
            recorded.lines[number] += steps_of(server.program(client), mine)
        return recorded

    @property
    def versions(self) -> dict[tuple[int, int], list[Push]]:
        """The pushes that each version of a shard is made of."""
        versions: dict[tuple[int, int], list[Push]] = defaultdict(list)
        for command, before in (step for line in self.lines for step in line):
            if isinstance(command, Push):
                versions[command.shard, before + 1].append(command)
        return versions

    @property
    def end(self) -> int:
        """The last version of every shard before which none is missing, where another part of the run may follow."""
        shards: dict[int, list[int]] = defaultdict(list)
        for shard, version in sorted(self.versions):
            shards[shard].append(version)
        return min(map(_reached, shards.values()), default=0)


def _follows(mine: Sequence[Computation], line: Sequence[ReplayStep]) -> bool:
    """Whether a process has pulled nothing that is older than what another one has pushed."""
    pushed = {step.shard: step.before + 1 for step in line if isinstance(step.command, Push)}
    return all(base >= pushed.get(shard, 0) for each in mine for shard, base in each.bases.items())


def _reached(versions: list[int]) -> int:
    gaps = (before for before, after in pairwise(versions) if after > before + 1)
    return next(gaps, versions[-1] if versions else 0)


class Order:
    """Grants the steps of all lines in an order that the versions of their shards allow, whatever clocks say."""

    def __init__(self, recorded: Recorded, versions: list[int], needed: int, gathers: bool) -> None:
        """`needed` pushes make a version, from those on that shards begin with."""
        self.lines, self.versions = [deque(line) for line in recorded.lines], versions
        self.needed, self.gathers = needed, gathers
        steps = [step for line in recorded.lines for step in line]
        #: How many workers have still to pull a version of a shard.
        self.pulls = Counter((step.shard, step.before) for step in steps if isinstance(step.command, Pull))
        #: Pushes that the next version of each shard has so far.
        self.pushed = Counter[int]()

    def steps(self, stop: int | None = None) -> Iterator[ReplayStep]:
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

    def _ready(self, step: ReplayStep, stop: int | None) -> bool:
        if step.shard < 0:
            return True
        current = self.versions[step.shard] == step.before
        if isinstance(step.command, Pull):
            return current
        reached = stop is not None and min(self.versions) >= stop
        # A version that gathers is not made before all that pull the one before have pushed, some of them twice.
        return current and not reached and (self.gathers or not self.pulls[step.shard, step.before])

    def _count(self, step: ReplayStep) -> None:
        if isinstance(step.command, Pull):
            self.pulls[step.shard, step.before] -= 1
        elif isinstance(step.command, Push):
            self.pushed[step.shard] += 1
            self.versions[step.shard] += self.pushed[step.shard] == self.needed
            self.pushed[step.shard] %= self.needed
