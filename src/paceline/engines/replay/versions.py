"""Who makes the versions of a recorded run again, one after the other.

A synchronous plan needs only its table. An asynchronous one needs the trace: it says which version of each shard a
worker held when it computed, and in which order the shards took the pushes; everything else follows. Rows are taken
worker by worker in their order, each push waiting for its shard to come to its turn, so no clock has to be trusted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from paceline.core.agenda import Chunk
from paceline.core.server.events import Pull, Push
from paceline.engines.arithmetic.fused_team import Team
from paceline.engines.arithmetic.pipeline import Done, StagedPipeline
from paceline.engines.arithmetic.servers import ServerArithmetic
from paceline.engines.arithmetic.synchronous import synchronous
from paceline.engines.setup import Setup
from paceline.gradients.fused_replica import by_one
from paceline.gradients.payload import GradientSum
from paceline.plans.methods.alone import Alone
from paceline.plans.methods.server import GatheringServer
from paceline.plans.plan import Plan
from paceline.runs.trace import Columns, Kind, Trace


@dataclass(frozen=True)
class ReplayedVersion:
    """One version of one shard, made again."""

    shard: int
    version: int
    finite: bool  # the loss and gradient it came from, and the shard after it


@dataclass(frozen=True)
class NextUpdate:
    """The update that would come next."""

    chunks: list[Chunk]
    worker: int
    loss: float | None  # None when its worker had not computed it yet


class Loss(NamedTuple):
    """Of a worker's last computation."""

    task: int
    value: float
    finite: bool


class InStep:
    """Synchronous plans, and the first worker of a plan where nobody meets."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.sums = setup, synchronous(setup)
        plan, updates = setup.plan, setup.agenda.updates
        self.alone = isinstance(plan.method, Alone)
        self.updates = list(range(0, updates, plan.workers if self.alone else 1))
        self.done, self.last = 0, len(self.updates)

    def play(self, until: int | None) -> Iterator[ReplayedVersion]:
        for update in self.updates[:until]:
            shares = self._shares(update)
            good = all(share.finite() for share in shares)
            self.sums.apply(update, shares)
            self.done += 1
            good = good and self.sums.finite()
            yield ReplayedVersion(0, self.done, good)

    def next(self, shard: int, until: int) -> NextUpdate:
        shares = self._shares(self.updates[until])
        bad = next((n for n, share in enumerate(shares) if not share.finite()), 0)
        weight = sum(s.weight for s in shares)
        loss = sum(s.loss for s in shares) / weight if weight else math.nan
        return NextUpdate(self.setup.agenda.filled(self.updates[until]), bad, loss)

    def _shares(self, update: int) -> list[GradientSum]:
        agenda = self.setup.agenda
        if self.alone:
            return [self.sums.compute(0, agenda.filled(update))]
        return [self.sums.compute(worker, agenda.mine(update, worker)) for worker in range(self.setup.plan.workers)]

    def values(self) -> list[torch.Tensor]:
        return self.sums.values()


class InTeam:
    """What ranks of MPI trained, update by update: a whole pass in one call has the same bits."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.team = setup, Team(setup, by_one)
        self.done, self.last = 0, setup.agenda.updates

    def play(self, until: int | None) -> Iterator[ReplayedVersion]:
        for update in range(self.last)[:until]:
            loss = self.team.train(update, update + 1)
            self.done += 1
            yield ReplayedVersion(0, self.done, math.isfinite(loss) and self.team.finite())

    def next(self, shard: int, until: int) -> NextUpdate:
        return NextUpdate(self.setup.agenda.filled(until), 0, self.team.loss(until))

    def values(self) -> list[torch.Tensor]:
        return self.team.values()


class ByTable:
    """Plans whose workers hold stages: the table says it all."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.sums = setup, StagedPipeline(setup)
        self.done, self.last = 0, setup.agenda.updates

    def play(self, until: int | None) -> Iterator[ReplayedVersion]:
        """A version of the whole is made when its last stage to come has made its own."""
        waiting: dict[int, list[Done]] = defaultdict(list)
        for made in self.sums.play(until):
            waiting[made.update].append(made)
            if len(waiting[made.update]) == len(self.sums.stage_to_worker):
                good = all(self.sums.finite(each) for each in waiting.pop(made.update))
                self.done = made.update + 1
                yield ReplayedVersion(0, self.done, good)

    def next(self, shard: int, until: int) -> NextUpdate:
        piped, chunks = StagedPipeline(self.setup), self.setup.agenda.filled(until)
        last = len(piped.stage_to_worker) - 1
        losses = [made.sums for made in piped.play(until + 1) if (made.update, made.stage) == (until, last)]
        (sums,) = losses
        return NextUpdate(chunks, piped.stage_to_worker[-1], sums.loss / sums.weight if sums.weight else math.nan)

    def values(self) -> list[torch.Tensor]:
        return self.sums.values()


class ByTrace:
    """Plans with a server: every shard takes the pushes in the recorded order."""

    def __init__(self, setup: Setup, rows: Columns) -> None:
        self.setup, self.agenda = setup, setup.agenda
        resumed = rows[rows["kind"] == Kind.RESUME]["version"]
        self.versions = [int(v) for v in resumed] if len(resumed) else [0] * len(setup.layout.shards)
        self.sums = ServerArithmetic(setup, self.versions)
        self.last = self.agenda.leases // self.agenda.shares
        self.lines = [self.line(rows, worker) for worker in range(setup.plan.workers)]
        # A worker killed between writing a row and making its version leaves a row too many: the later one is true.
        self.true_rows = {self.key(row): row for row in rows[rows["kind"] == Kind.APPLY]}
        self.losses: dict[int, Loss] = {}

    @property
    def done(self) -> int:
        return min(self.versions)

    def play(self, until: int | None) -> Iterator[ReplayedVersion]:
        """Make every version up to `until` of every shard."""
        places, moved = [0] * len(self.lines), True
        while moved:
            moved = False
            for worker, line in enumerate(self.lines):
                while places[worker] < len(line) and self._ready(line[places[worker]], until):
                    yield from self._perform(line[places[worker]])
                    places[worker], moved = places[worker] + 1, True

    def next(self, shard: int, until: int) -> NextUpdate:
        row = self.true_rows[shard, until + 1]
        return NextUpdate(
            self.agenda.task(self.agenda.tasks(int(row["update"]))[0]), int(row["worker"]), self._loss(row)
        )

    def values(self) -> list[torch.Tensor]:
        return self.sums.values()

    def line(self, rows: Columns, worker: int) -> Columns:
        """One worker's computations and pushes, in its own order."""
        return _line(rows, worker, Kind.COMPUTE, Kind.APPLY)

    def key(self, row: Any) -> tuple[int, int]:
        """What only one push can have been."""
        return int(row["shard"]), int(row["version"])

    def compute(self, row: Any) -> Loss:
        worker, task = int(row["worker"]), int(row["update"])
        computed = self.sums.compute(worker, self.agenda.task(task))
        before = self.losses.get(worker, Loss(-1, 0.0, True))
        good = computed.finite() and (before.finite or self.agenda.lease(before.task) != self.agenda.lease(task))
        return Loss(task, computed.loss / computed.weight if computed.weight else math.nan, good)

    def can_compute(self, row: Any) -> bool:
        return True

    def push(self, row: Any) -> Iterator[ReplayedVersion]:
        shard = int(row["shard"])
        self.sums.push(Push(int(row["worker"]), shard, int(row["update"])))
        yield self.made(shard, self.losses[int(row["worker"])].finite)

    def made(self, shard: int, from_finite: bool) -> ReplayedVersion:
        self.versions[shard] += 1
        finite = from_finite and all(bool(version.values.isfinite().all()) for version in self.sums.newest(shard))
        return ReplayedVersion(shard, self.versions[shard], finite)

    def _ready(self, row: Any, until: int | None) -> bool:
        if row["kind"] == Kind.COMPUTE:
            return self.can_compute(row)
        version = int(row["version"])
        return not self._is_true(row) or (
            self.versions[row["shard"]] == version - 1 and (until is None or version <= until)
        )

    def _is_true(self, row: Any) -> bool:
        return bool(self.true_rows[self.key(row)] == row)

    def _perform(self, row: Any) -> Iterator[ReplayedVersion]:
        if row["kind"] == Kind.COMPUTE:
            self.losses[int(row["worker"])] = self.compute(row)
        elif self._is_true(row):
            yield from self.push(row)

    def _loss(self, row: Any) -> float | None:
        loss = self.losses.get(int(row["worker"]))
        return loss.value if loss is not None and loss.task == self.agenda.tasks(int(row["update"]))[-1] else None


class ByRounds(ByTrace):
    """Where a shard gathers: a version is made of several pushes, and what came too late was computed for nothing."""

    def __init__(self, setup: Setup, rows: Columns) -> None:
        super().__init__(setup, rows)
        self.round: list[Any] = []

    def line(self, rows: Columns, worker: int) -> Columns:
        mine = _line(rows, worker, Kind.COMPUTE, Kind.APPLY, Kind.DROP)
        after = np.append(mine["kind"][1:], Kind.DEATH)
        used: Columns = mine[(mine["kind"] == Kind.APPLY) | ((mine["kind"] == Kind.COMPUTE) & (after == Kind.APPLY))]
        return used

    def key(self, row: Any) -> tuple[int, int]:
        return int(row["shard"]), int(row["update"])

    def next(self, shard: int, until: int) -> NextUpdate:
        rows = [row for row in self.true_rows.values() if row["version"] == until + 1]
        bad = next(
            (row for row in rows if not self.losses.get(int(row["worker"]), Loss(-1, 0.0, True)).finite), rows[0]
        )
        chunks = [chunk for row in rows for chunk in self.agenda.task(int(row["update"]))]
        return NextUpdate(chunks, int(bad["worker"]), self._loss(bad))

    def can_compute(self, row: Any) -> bool:
        return self.versions[0] == int(row["base"])

    def compute(self, row: Any) -> Loss:
        self.sums.pull(Pull(int(row["worker"]), 0))
        return super().compute(row)

    def push(self, row: Any) -> Iterator[ReplayedVersion]:
        self.sums.push(Push(int(row["worker"]), 0, int(row["update"])))
        self.round.append(row)
        if len(self.round) == self.agenda.shares:
            yield self.made(0, all(self.losses[int(row["worker"])].finite for row in self.round))
            self.round.clear()


class ByLives:
    """A run that was resumed: one life after the other, each with workers of its own."""

    def __init__(self, setups: list[Setup], lives: list[Columns]) -> None:
        self.setups, self.lives = setups, lives
        self.now, self.last = _by_trace(setups[0], lives[0]), setups[0].agenda.leases // setups[0].agenda.shares

    @property
    def done(self) -> int:
        return self.now.done

    def play(self, until: int | None) -> Iterator[ReplayedVersion]:
        yield from self.now.play(until)
        for setup, rows in zip(self.setups[1:], self.lives[1:], strict=True):
            following, before = _by_trace(setup, rows), self.now
            if before.versions != following.versions:
                return  # it was to stop on the way
            following.sums.resume(before.sums)
            self.now = following
            yield from following.play(until)

    def next(self, shard: int, until: int) -> NextUpdate:
        return self.now.next(shard, until)

    def values(self) -> list[torch.Tensor]:
        return self.now.values()


def make_player(setup: Setup, trace: Trace, plans: list[Plan]) -> InTeam | InStep | ByTable | ByTrace | ByLives:
    """`plans`: of each life of the run. Where workers keep step there is no difference between one life and many."""
    if setup.engine == "mpi":
        return InTeam(setup)
    if setup.blueprint is not None:
        return ByTable(setup)
    if setup.plan.traits.keeps_step:
        return InStep(setup)
    if len(plans) == 1:
        return _by_trace(setup, trace.rows)
    return ByLives([replace(setup, plan=plan.fitted(len(setup.layout.shards))) for plan in plans], trace.lives())


def _by_trace(setup: Setup, rows: Columns) -> ByTrace:
    return (ByRounds if isinstance(setup.plan.method, GatheringServer) else ByTrace)(setup, rows)


def _line(rows: Columns, worker: int, *kinds: Kind) -> Columns:
    mine = rows[(rows["worker"] == worker) & np.isin(rows["kind"], kinds)]
    ordered: Columns = mine[np.argsort(mine["end"], kind="stable")]
    return ordered
