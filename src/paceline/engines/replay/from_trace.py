"""Replaying a plan with a server: every shard takes the pushes in the order that the trace recorded.

The trace says which version of each shard a worker held when it computed, and in which order the shards took the
pushes; everything else follows. Rows are replayed worker by worker in their order, and each push waits until its shard
has the version before, so that no clock has to be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from paceline.core.agenda import Chunk
from paceline.core.server.events import Pull, Push
from paceline.engines.arithmetic.replicas import ReplicaArithmetic
from paceline.engines.arithmetic.servers import ServerArithmetic
from paceline.engines.setup import Setup
from paceline.runs.trace import Columns, Kind


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


class Pushes(Protocol):
    """The way in which the recorded pushes of a plan make versions."""

    #: Workers pull before they compute.
    pulls: bool

    def used(self, rows: Columns, worker: int) -> Columns:
        """Select one worker's computations and pushes that a version was made of, in its own order."""

    def key(self, row: Any) -> tuple[int, int]:
        """Identify a push: two rows with one key are of the same push, and the later one is valid."""

    def complete(self, row: Any) -> list[Any]:
        """Take this push; return the rows of all pushes of the version if it is complete, else nothing."""


class EachPush:
    """Every push makes a version."""

    pulls = False

    def used(self, rows: Columns, worker: int) -> Columns:
        return _of_worker(rows, worker, Kind.COMPUTE, Kind.APPLY)

    def key(self, row: Any) -> tuple[int, int]:
        return int(row["shard"]), int(row["version"])

    def complete(self, row: Any) -> list[Any]:
        return [row]


class Rounds:
    """A shard gathers several pushes for a version. A gradient that arrived too late is in no version."""

    pulls = True

    def __init__(self, pushes: int) -> None:
        self.pushes = pushes
        self.round: list[Any] = []

    def used(self, rows: Columns, worker: int) -> Columns:
        mine = _of_worker(rows, worker, Kind.COMPUTE, Kind.APPLY, Kind.DROP)
        after = np.append(mine["kind"][1:], Kind.DEATH)
        used: Columns = mine[(mine["kind"] == Kind.APPLY) | ((mine["kind"] == Kind.COMPUTE) & (after == Kind.APPLY))]
        return used

    def key(self, row: Any) -> tuple[int, int]:
        return int(row["shard"]), int(row["update"])

    def complete(self, row: Any) -> list[Any]:
        self.round.append(row)
        if len(self.round) < self.pushes:
            return []
        full, self.round = self.round, []
        return full


class ServerReplayer:
    """Replays a plan with a server from the rows of its trace."""

    def __init__(self, setup: Setup, rows: Columns) -> None:
        self.setup, self.agenda = setup, setup.agenda
        served, workers = setup.pipeline is not None, setup.plan.workers
        if setup.pipeline is not None:
            rows, workers = of_replicas(rows, setup.pipeline.shards(workers)), setup.pipeline.spread.data
        self.pushes: Pushes = Rounds(self.agenda.shares) if setup.plan.traits.gathers else EachPush()
        resumed = rows[rows["kind"] == Kind.RESUME]["version"]
        self.sums: ServerArithmetic | ReplicaArithmetic
        if served:
            self.sums = ReplicaArithmetic(setup)
            self.versions = [0] * len(self.sums.memories)
        else:
            self.versions = [int(v) for v in resumed] if len(resumed) else [0] * len(setup.layout.shards)
            self.sums = ServerArithmetic(setup, self.versions)
        self.last = self.agenda.leases // self.agenda.shares
        self.lines = [self.pushes.used(rows, worker) for worker in range(workers)]
        # A worker killed between writing a row and making its version leaves a row too many: the later one is valid.
        self.valid_rows = {self.pushes.key(row): row for row in rows[rows["kind"] == Kind.APPLY]}
        self.losses: dict[int, Loss] = {}
        self.until: int | None = None
        #: By shard: the loss of the push after version `until`, where the shard had to go on.
        self.passed: dict[int, Loss] = {}

    @property
    def done(self) -> int:
        return min(self.versions)

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        """Make every version up to `until` of every shard.

        Batches reach shards in different orders, so one shard may have to go on before another one can get there. What
        it held at `until` is kept.
        """
        self.until = until
        positions, moved = [0] * len(self.lines), True
        while moved:
            moved = False
            for worker, line in enumerate(self.lines):
                while positions[worker] < len(line) and self._ready(line[positions[worker]]):
                    yield from self._perform(line[positions[worker]])
                    positions[worker], moved = positions[worker] + 1, True

    def next(self, shard: int, until: int) -> NextUpdate:
        rows = [row for row in self.valid_rows.values() if (row["shard"], row["version"]) == (shard, until + 1)]
        bad = next((row for row in rows if not self._loss_of(row).finite), rows[0])
        chunks = [chunk for row in rows for chunk in self.agenda.task(self.agenda.tasks(int(row["update"]))[0])]
        loss = self.passed.get(shard, self._loss_of(bad))
        computed = loss.task == self.agenda.tasks(int(bad["update"]))[-1]
        return NextUpdate(chunks, int(bad["worker"]), loss.value if computed else None)

    def values(self) -> list[torch.Tensor]:
        return self.sums.values()

    def _ready(self, row: Any) -> bool:
        if row["kind"] == Kind.COMPUTE:
            return not self.pushes.pulls or self.versions[0] == int(row["base"])
        if not self._valid(row):
            return True
        reached = self.until is not None and self.done >= self.until
        return not reached and bool(self.versions[row["shard"]] == int(row["version"]) - 1)

    def _valid(self, row: Any) -> bool:
        return bool(self.valid_rows[self.pushes.key(row)] == row)

    def _perform(self, row: Any) -> Iterator[ReplayedVersion]:
        if row["kind"] == Kind.COMPUTE:
            self._compute(int(row["worker"]), int(row["update"]))
        elif self._valid(row):
            shard = int(row["shard"])
            if self.versions[shard] == self.until:
                self.sums.hold(shard)
                self.passed[shard] = self._loss_of(row)
            self.sums.push(Push(int(row["worker"]), shard, int(row["update"])))
            if rows := self.pushes.complete(row):
                yield self._made(shard, all(self._loss_of(each).finite for each in rows))

    def _compute(self, worker: int, task: int) -> None:
        if self.pushes.pulls:
            self.sums.pull(Pull(worker, 0))
        computed = self.sums.compute(worker, self.agenda.task(task))
        before = self.losses.get(worker, NO_LOSS)
        good = computed.finite() and (before.finite or self.agenda.lease(before.task) != self.agenda.lease(task))
        self.losses[worker] = Loss(task, computed.loss / computed.weight if computed.weight else math.nan, good)

    def _made(self, shard: int, from_finite: bool) -> ReplayedVersion:
        self.versions[shard] += 1
        finite = from_finite and all(bool(version.values.isfinite().all()) for version in self.sums.newest(shard))
        return ReplayedVersion(shard, self.versions[shard], finite)

    def _loss_of(self, row: Any) -> Loss:
        """The loss of the last computation of the worker that pushed this row."""
        return self.losses.get(int(row["worker"]), NO_LOSS)


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


NO_LOSS = Loss(-1, 0.0, True)


def _of_worker(rows: Columns, worker: int, *kinds: Kind) -> Columns:
    """Select one worker's rows of these kinds, in the order in which they ended."""
    mine = rows[(rows["worker"] == worker) & np.isin(rows["kind"], kinds)]
    ordered: Columns = mine[np.argsort(mine["end"], kind="stable")]
    return ordered
