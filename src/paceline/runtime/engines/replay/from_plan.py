"""Replayers: each makes the versions of a recorded run again, one after another.

A synchronous plan needs only its table. A plan with a server needs the trace (`engines.replay.from_trace`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import torch

from paceline.algorithms.cluster.shares import Epoch, Epochs
from paceline.errors import UsageError
from paceline.plans.methods import Synchronous
from paceline.plans.methods.program import Gradient, all_of, effects
from paceline.plans.plan import Plan, program_of
from paceline.runtime.engines.arithmetic.fused_team import Team
from paceline.runtime.engines.arithmetic.pipeline import StagedPipeline
from paceline.runtime.engines.arithmetic.servers import ServerArithmetic
from paceline.runtime.engines.arithmetic.splits import SplitArithmetic
from paceline.runtime.engines.arithmetic.synchronous import SynchronousArithmetic, synchronous
from paceline.runtime.engines.replay.from_messages import DataflowReplayer
from paceline.runtime.engines.replay.from_trace import NextUpdate, ReplayedVersion, ServerReplayer
from paceline.runtime.engines.setup import Setup
from paceline.runtime.runs.trace import Columns, Kind, Trace
from paceline.training.gradients.fused_replica import by_one
from paceline.training.gradients.payload import GradientSum


class Replayer(Protocol):
    """Makes the versions of a recorded run again."""

    #: Updates of the whole run.
    last: int

    @property
    def done(self) -> int:
        """The updates that have been made again so far."""

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        """Make every version up to `until`; None for all."""

    def next(self, shard: int, until: int) -> NextUpdate:
        """Describe the update that would come after version `until` of this shard."""

    def values(self) -> list[torch.Tensor]:
        """Return the trainable parameters, then the moving buffers."""


class SynchronousReplayer:
    """Replays the program of a synchronous plan, or of the first worker of those that exchange nothing.

    It is the program's `Worker`. On a cluster some workers may have died; the numbers are of those between which each
    update was made.
    """

    rank = first = 0

    def __init__(self, setup: Setup, method: Synchronous, numbers: SynchronousArithmetic | SplitArithmetic) -> None:
        self.setup, self.method, self.numbers = setup, method, numbers
        self.workers, alone = setup.plan.workers, method.collective is None
        self._updates = range(0, setup.agenda.updates, self.workers if alone else 1)
        self.done, self.last = 0, len(self._updates)
        self._until: int | None = None
        #: Versions that were made and not yet yielded, and whether everything that led to the next one was finite.
        self._made, self._finite = list[ReplayedVersion](), True

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        self._until = until
        for _ in effects(self.method.program(self), self.numbers.answers | {Gradient: self._gradient}):
            yield from self._made
            self._made.clear()
        yield from self._made

    def updates(self, *, dealt: bool = False, until: Callable[[range], range] = all_of) -> Iterator[int]:
        for update in self._updates[: self._until]:
            self._finite = True
            yield update
            self.done += 1
            self._made.append(ReplayedVersion(0, self.done, self._finite and self.numbers.finite()))

    def _gradient(self, update: int, version: int, filled: bool, again: bool) -> list[GradientSum]:
        gradients = self.numbers.gradient(update, version, filled, again)
        # A line search tries steps that are too long; what it finds there is no fault.
        self._finite = self._finite and (again or all(gradient.finite() for gradient in gradients))
        return gradients

    def next(self, shard: int, until: int) -> NextUpdate:
        update = self._updates[until]
        gradients = self.numbers.gradient(update, until, whole=self.method.collective is None)
        bad = next((n for n, gradient in enumerate(gradients) if not gradient.finite()), 0)
        weight = sum(gradient.weight for gradient in gradients)
        loss = sum(gradient.loss for gradient in gradients) / weight if weight else math.nan
        return NextUpdate(self.setup.agenda.filled(update), bad, loss)

    def values(self) -> list[torch.Tensor]:
        return self.numbers.values()


class TeamReplayer:
    """Replays what ranks of MPI trained, update by update: a whole pass in one call has the same bits."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.team = setup, Team(setup, by_one)
        self.done, self.last = 0, setup.agenda.updates

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        for update in range(self.last)[:until]:
            loss = self.team.train(update, update + 1)
            self.done += 1
            yield ReplayedVersion(0, self.done, math.isfinite(loss) and self.team.finite())

    def next(self, shard: int, until: int) -> NextUpdate:
        return NextUpdate(self.setup.agenda.filled(until), 0, self.team.loss(until))

    def values(self) -> list[torch.Tensor]:
        return self.team.values()


class PipelineReplayer:
    """Replays plans whose workers hold stages, by their table."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.sums = setup, StagedPipeline(setup)
        self.done, self.last = 0, setup.agenda.updates

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        """Make versions of the model; each is complete when the last of its stages is."""
        finite: dict[int, list[bool]] = defaultdict(list)
        for replayed in self.sums.replay(until):
            finite[replayed.update].append(self.sums.finite(replayed))
            if len(finite[replayed.update]) == len(self.sums.stage_to_worker):
                self.done = replayed.update + 1
                yield ReplayedVersion(0, self.done, all(finite.pop(replayed.update)))

    def next(self, shard: int, until: int) -> NextUpdate:
        pipeline, chunks = StagedPipeline(self.setup), self.setup.agenda.filled(until)
        last = (until, len(pipeline.stage_to_worker) - 1)
        (sums,) = [made.sums for made in pipeline.replay(until + 1) if (made.update, made.stage) == last]
        return NextUpdate(chunks, pipeline.stage_to_worker[-1], sums.loss / sums.weight if sums.weight else math.nan)

    def values(self) -> list[torch.Tensor]:
        return self.sums.values()


class ResumedReplayer:
    """Replays a resumed run under a plan with a server, part after part, each with its own workers."""

    def __init__(self, setups: list[Setup], parts: list[Columns], apart: list[bool]) -> None:
        self._lives = list(zip(setups, parts, apart, strict=True))
        self.now = ServerReplayer(*self._lives[0])
        self.last = setups[0].agenda.leases // setups[0].agenda.shares

    @property
    def done(self) -> int:
        return self.now.done

    def replay(self, until: int | None) -> Iterator[ReplayedVersion]:
        yield from self.now.replay(until)
        for life in self._lives[1:]:
            following, before = ServerReplayer(*life), self.now
            if before.versions != following.versions:
                return  # `until` lies in the part before
            assert isinstance(before.sums, ServerArithmetic)
            assert isinstance(following.sums, ServerArithmetic)
            following.sums.resume(before.sums)
            self.now = following
            yield from following.replay(until)

    def next(self, shard: int, until: int) -> NextUpdate:
        return self.now.next(shard, until)

    def values(self) -> list[torch.Tensor]:
        return self.now.values()


def epochs_of(trace: Trace, plan: Plan) -> Epochs:
    """Return the groups that the trace has recorded; a canonical sum has the bits of any."""
    if plan.canonical:
        return Epochs(plan.workers, collective=program_of(plan).collective)
    _refuse_replaced(trace, plan)
    rows = np.sort(trace.of_kind(Kind.REGROUP), order=("start", "worker"))
    epochs: list[Epoch] = []
    for start in np.unique(rows["start"]):
        group = rows[rows["start"] == start]
        progress = dict(zip(group["worker"].tolist(), group["base"].tolist(), strict=True))
        epochs.append(Epoch(int(group["update"][0]), progress))
    return Epochs(plan.workers, epochs)


def _refuse_replaced(trace: Trace, plan: Plan) -> None:
    """Raise if a worker of an earlier life had died, and began the next one with another one's replica."""
    resumed = np.flatnonzero(trace.rows["kind"] == Kind.RESUME)
    if plan.traits.agrees or not len(resumed):
        return
    earlier = trace.rows[: resumed[-1]]
    groups = earlier[earlier["kind"] == Kind.REGROUP]
    if len(groups) and (np.unique(groups["start"], return_counts=True)[1] < plan.workers).any():
        raise UsageError(
            f"a worker had died when this run of plan {plan.name} was resumed, and took another one's replica: "
            "the run cannot be replayed"
        )


class RunPart(NamedTuple):
    """A part of a run, between two resumptions."""

    plan: Plan
    #: Whether servers were processes of their own, as on a cluster.
    apart: bool = False


def make_replayer(setup: Setup, trace: Trace, lives: list[RunPart]) -> Replayer:
    """Make the replayer of a run.

    Where workers keep step, a run that was resumed has the bits of one that was not.
    """
    setup = setup.anew()  # an earlier pass may have called the job's functions
    if setup.engine == "mpi":
        return TeamReplayer(setup)
    if setup.pipeline is not None and setup.pipeline.spread.server is None:
        return PipelineReplayer(setup)
    plan = setup.plan
    if setup.operators is not None:
        return DataflowReplayer(setup, plan.method, trace.rows)  # type: ignore[arg-type]
    if setup.split is not None:
        return SynchronousReplayer(setup, program_of(plan), SplitArithmetic(setup, plan.method))  # type: ignore[arg-type]
    if plan.method.server is None:
        method = program_of(plan)
        return SynchronousReplayer(setup, method, synchronous(setup, method, epochs_of(trace, plan)))
    if len(lives) == 1:
        return ServerReplayer(setup, trace.rows, lives[0].apart)
    setups = [replace(setup, plan=life.plan.fitted(len(setup.layout.shards))) for life in lives]
    return ResumedReplayer(setups, trace.lives(), [life.apart for life in lives])
