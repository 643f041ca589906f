"""Replaying a plan whose workers hold operators: every worker does its recorded work again, in its own order.

In which order a worker took up its messages is all that the clock had decided. Values and gradients follow from it: a
piece of work waits here until what it needs has been made again by the others.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

import numpy as np
import torch

from paceline.algorithms.dataflow import Work
from paceline.errors import ReplayDiverged, UsageError
from paceline.plans.methods.dataflow import Dataflow
from paceline.runtime.engines.arithmetic.dataflow import DataflowArithmetic
from paceline.runtime.engines.replay.from_trace import NextUpdate, ReplayedVersion
from paceline.runtime.engines.setup import Setup
from paceline.runtime.runs.trace import Columns, Kind
from paceline.training.operators.worker import Applied


class DataflowReplayer:
    """Replays the work of all workers. A version is that of one operator."""

    def __init__(self, setup: Setup, method: Dataflow, rows: Columns) -> None:
        self.setup, self.sums = setup, DataflowArithmetic(setup, method)
        self.last = setup.agenda.updates
        instances = self.sums.instances
        works = rows[rows["kind"] == Kind.STAGE]
        if not len(works):
            raise UsageError("this run has no trace of its messages, whose order is not known without: no replay")
        self.lines: list[deque[Work]] = []
        for worker in self.sums.workers:
            mine = np.sort(works[works["worker"] == worker.number], order="end", kind="stable")
            self.lines.append(
                deque(
                    Work(chr(row["version"]), instances.number(int(row["update"]), int(row["base"])), int(row["shard"]))
                    for row in mine
                )
            )
        #: Passes that each worker has come to the end of.
        self.passed = [0] * len(self.lines)
        self.losses: dict[int, float] = {}
        self.begun = [set[int]() for _ in self.lines]

    @property
    def done(self) -> int:
        return self.sums.instances.updates_until(min(self.passed))

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        """Make every update of every operator again; up to the pass that ends with update `until`."""
        stop = len(self.sums.instances.passes)
        if until is not None:
            ends = [self.sums.instances.updates_until(number) for number in range(stop + 1)]
            if until not in ends:
                raise UsageError(
                    f"until={until}: messages of several batches were under way; give the end of an epoch: "
                    f"{', '.join(map(str, ends))}"
                )
            stop = ends.index(until)
        moved = True
        while moved:
            moved = False
            for worker in range(len(self.lines)):
                while self.passed[worker] < stop and (applied := self._advance(worker)) is not None:
                    moved = True
                    yield from (ReplayedVersion(each.operator, each.version, self._finite(each)) for each in applied)
        if min(self.passed) < stop:
            raise ReplayDiverged("the replay cannot go on: a worker waits for a message that no other one has sent")

    def _finite(self, applied: Applied) -> bool:
        return applied.finite and math.isfinite(self.losses.get(applied.update, 0.0))

    def _advance(self, worker: int) -> list[Applied] | None:
        """Let a worker do its next recorded work; None if it has to wait for others."""
        side, line, instances = self.sums.workers[worker], self.lines[worker], self.sums.instances
        if not line or instances.pass_of(line[0].instance) > self.passed[worker]:
            if min(self.passed) < self.passed[worker]:
                return None
            self.passed[worker] += 1
            return side.drain(instances.updates_until(self.passed[worker]) - 1)
        work = line[0]
        self._begin(worker, work.instance)
        if not side.machine.ready(work):
            return None
        line.popleft()
        done = side.do(work)
        if done.loss is not None:
            self.losses[instances.chunk(work.instance).update] = done.loss
        for message, tensors in done.sends:
            self._begin(message.to, work.instance)
            self.sums.workers[message.to].receive(message, tensors)
        return [done.applied] if done.applied is not None else []

    def _begin(self, worker: int, instance: int) -> None:
        if instance not in self.begun[worker]:
            self.begun[worker].add(instance)
            self.sums.workers[worker].begin(instance)

    def next(self, shard: int, until: int) -> NextUpdate:
        work = next(line[0] for line in self.lines if line)
        return NextUpdate([self.sums.instances.chunk(work.instance)], 0, None)

    def values(self) -> list[torch.Tensor]:
        return self.sums.values()
