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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from paceline.algorithms.agenda import Chunk
from paceline.algorithms.server.messages import Pull, Push
from paceline.errors import ReplayDiverged
from paceline.runtime.engines.arithmetic.replicas import ReplicaArithmetic
from paceline.runtime.engines.arithmetic.servers import ServerArithmetic
from paceline.runtime.engines.replay.recorded import Step, recorded
from paceline.runtime.engines.setup import Setup
from paceline.runtime.runs.trace import Columns, Kind


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
        self.setup, self.agenda = setup, setup.agenda
        self.sums: ServerArithmetic | ReplicaArithmetic
        if setup.pipeline is not None:
            self.sums = ReplicaArithmetic(setup)
            self.versions = [0] * len(self.sums.memories)
        else:
            resumed = rows[rows["kind"] == Kind.RESUME]["version"]
            self.versions = [int(v) for v in resumed] if len(resumed) else [0] * len(setup.layout.shards)
            self.sums = ServerArithmetic(setup, self.versions)
        self.last = self.agenda.leases // self.agenda.shares
        found = recorded(setup, rows, apart)
        self.lines, self.end = [deque(line) for line in found.lines], found.end
        #: Pushes that a version is made of.
        self.needed, self.gathers = self.agenda.shares if setup.plan.traits.gathers else 1, setup.plan.traits.gathers
        steps = [step for line in self.lines for step in line]
        #: How many workers have still to pull a version of a shard.
        self.pulls = Counter((step.shard, step.before) for step in steps if step.what == "pull")
        #: The pushes that each version of a shard is made of.
        self.pushes: dict[tuple[int, int], list[Step]] = defaultdict(list)
        for step in steps:
            if step.what == "push":
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
        moved = True
        while moved:
            moved = False
            for line in self.lines:
                while step := next(filter(self._ready, _due(line)), None):
                    line.remove(step)
                    moved = True
                    yield from self._perform(step)
        if self.end is not None and self.stop is not None and self.done < self.stop:
            raise ReplayDiverged(_stuck(self.versions))

    def next(self, shard: int, until: int) -> NextUpdate:
        pushes = self.pushes[shard, until + 1]
        bad = next((step for step in pushes if not self._loss_of(step).finite), pushes[0])
        chunks = [chunk for step in pushes for chunk in self.agenda.task(self.agenda.tasks(step.number)[0])]
        loss = self.passed.get(shard, self._loss_of(bad))
        computed = loss.task == self.agenda.tasks(bad.number)[-1]
        return NextUpdate(chunks, bad.worker, loss.value if computed else None)

    def values(self) -> list[torch.Tensor]:
        return self.sums.values()

    def _ready(self, step: Step) -> bool:
        if step.what == "compute":
            return True
        there = self.versions[step.shard] == step.before
        if step.what == "pull":
            return there
        reached = self.stop is not None and self.done >= self.stop
        # A version that gathers is not made before all that pull the one before have pushed, some of them twice.
        return there and not reached and (self.gathers or not self.pulls[step.shard, step.before])

    def _perform(self, step: Step) -> Iterator[ReplayedVersion]:
        worker, shard = step.worker, step.shard
        if step.what == "compute":
            self._compute(worker, step.number)
        elif step.what == "pull":
            self.sums.pull(Pull(worker, shard))
            self.pulls[shard, step.before] -= 1
        else:
            loss, gathered = self._loss_of(step), self.gathered[shard]
            if step.before == self.stop:
                self.sums.hold(shard)
                self.passed[shard] = loss
            self.sums.push(Push(worker, shard, step.number))
            gathered.append(loss.finite)
            if len(gathered) == self.needed:
                self.versions[shard] += 1
                values = (bool(version.values.isfinite().all()) for version in self.sums.newest(shard))
                yield ReplayedVersion(shard, self.versions[shard], all(gathered) and all(values))
                gathered.clear()

    def _compute(self, worker: int, task: int) -> None:
        computed = self.sums.compute(worker, self.agenda.task(task))
        before = self.losses.get(worker, NO_LOSS)
        good = computed.finite() and (before.finite or self.agenda.lease(before.task) != self.agenda.lease(task))
        self.losses[worker] = Loss(task, computed.loss / computed.weight if computed.weight else math.nan, good)

    def _loss_of(self, step: Step) -> Loss:
        """The loss of the last computation of the worker that makes this push."""
        return self.losses.get(step.worker, NO_LOSS)


def _due(line: Iterable[Step]) -> Iterator[Step]:
    """Yield the steps that a worker may do now: pushes to several shards, and pulls after them, wait for one another
    only at the same shard.
    """
    shards = set[int]()
    for step in line:
        if step.what == "compute":
            if not shards:
                yield step
            return
        if step.shard not in shards:
            yield step
        shards.add(step.shard)


def _stuck(versions: list[int]) -> str:
    shown = ", ".join(f"{version} of shard {shard}" for shard, version in enumerate(versions))
    return (
        f"the replay cannot go on after version {shown}: a gradient was computed from a version that was lost with its "
        "servers, and that no shard has"
    )
