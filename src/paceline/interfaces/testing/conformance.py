"""The invariants of every plan on every engine. A new plan is added by one row in PLANS.

same_numbers        a synchronous plan of N workers is `sequential:chunks=N`, to rounding
each_sample_once    an epoch visits every sample exactly once
each_loss_recorded  the trace has the loss of every gradient
no_update_lost      every shard took every lease exactly once, its versions without a gap
staleness_identity  the staleness of all pushes sums to what their order says; where a shard gathers, it is zero
every_gradient      every call of an operator got a gradient, every operator made its versions without a gap
every_version       every stage of a pipeline made every version once, in order, from gradients as old as its table says
replays             the same bits again, in one process
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.schedules import FORWARD
from paceline.algorithms.server.shard import Taken
from paceline.interfaces.api.train import train
from paceline.plans.methods.views import Stages
from paceline.plans.plan import Plan, make
from paceline.runtime.engines.replay.replay import replay
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.trace import Kind
from paceline.training.jobs.job import Job


@dataclass(frozen=True)
class Member:
    """A plan, and the numbers of workers that the suite runs it with."""

    plan: str
    workers: tuple[int, ...]

    def plans(self) -> list[Plan]:
        return [Plan.parse(self.plan, workers) for workers in self.workers]


PLANS = (
    Member("sequential", (1,)),
    Member("sequential:chunks=3", (1,)),
    Member("ring", (2, 3, 4, 5)),
    Member("ring:sizes=3+1", (2,)),
    Member("ring:canonical=8", (3,)),
    Member("tree", (2, 5)),
    Member("halving_doubling", (2, 3, 4)),
    Member("hierarchical", (2, 4)),
    Member("central", (2, 3)),
    Member("downpour", (1, 2, 3)),
    Member("downpour:shards=3", (1, 3)),
    Member("downpour:chunks=2", (2,)),
    Member("ssp:bound=1", (3,)),
    Member("backup", (2, 4)),
    Member("backup:backups=0", (1, 3)),
    Member("dc_asgd", (1, 3)),
    Member("dc_asgd:mode=adaptive,shards=2", (2,)),
    Member("gap_aware", (1, 3)),
    Member("gap_aware:shards=2", (2,)),
    Member("hogwild", (1, 3)),
    Member("local_sgd:every=4", (2, 3)),
    Member("parallel_sgd", (2,)),
    Member("parallel_sgd:mode=map_reduce,parts=3", (1, 2)),
    Member("easgd:every=2", (3,)),
    Member("diloco:every=3", (2,)),
    Member("diloco:every=4,fragments=3", (2,)),
    Member("diloco:every=4,fragments=2,overlap=2", (3,)),
    Member("easgd:mode=asynchronous,every=2", (1, 3)),
    Member("diloco:mode=asynchronous,every=5", (2,)),
    Member("gossip", (2, 4)),
    Member("gossip:mode=asynchronous", (1, 2, 3)),
    Member("sandblaster:memory=3", (1, 3)),
    Member("layers", (1, 2)),
    Member("layers:on=1+0+1,micro_batches=2", (2,)),
    Member("gpipe", (2, 3)),
    Member("gpipe:recompute=0+1,micro_batches=3", (2,)),
    Member("one_f_one_b:micro_batches=5", (2, 3)),
    Member("interleaved:micro_batches=3", (2,)),
    Member("zero_bubble", (2, 3)),
    Member("pipedream", (2, 3)),
    Member("pipedream:mode=two_buffers,micro_batches=3", (3,)),
    Member("spectrain", (2, 3)),
    Member("mesh:data=2,inside=2,micro_batches=2", (4,)),
    Member("mesh:data=2,layers=2", (4,)),
    Member("mesh:layers=2,inside=2,schedule=gpipe", (4,)),
    Member("distbelief:data=2,layers=2,micro_batches=2", (4,)),
    Member("distbelief:data=2,inside=2", (4,)),
    Member("distbelief:data=2,layers=2,mode=synchronous", (4,)),
    Member("table", (2,)),
    Member("ampnet", (1, 2)),
    Member("ampnet:micro_batches=3,every=2,active=5", (2,)),
    Member("tensor", (2, 3)),
    Member("tensor:data=2", (4,)),
    Member("redundant", (2, 3)),
    Member("experts", (2,)),
    Member("zero:stage=1", (3,)),
    Member("zero:stage=2", (2,)),
    Member("zero", (2, 5)),
    Member("zero:data=2", (4,)),
    Member("cannon", (4,)),
    Member("one_weird_trick", (2,)),
    Member("per_layer:ways=*:whole", (3,)),
)
ENGINES = ("virtual", "local")


def difference(one: nn.Module, other: nn.Module) -> float:
    """Return the relative difference of all parameters and buffers, as one vector."""
    a = torch.cat([t.double().flatten() for t in one.state_dict().values()])
    b = torch.cat([t.double().flatten() for t in other.state_dict().values()])
    return float((a - b).norm() / a.norm())


def same_numbers(job: Job, plan: Plan, engine: str, tolerance: float = 1e-9, updates: int = 12) -> None:
    """Assert that `plan` trains as the oracle does, which computes the same chunks in one process."""
    sizes = "+".join(map(str, plan.sizes))
    oracle = train(
        job, make("sequential", chunks=plan.parts, sizes=sizes), engine="virtual", folder=None, max_updates=updates
    )
    run = train(job, plan, engine=engine, folder=None, max_updates=updates)
    gap = difference(oracle.model, run.model)
    assert gap <= tolerance, f"{plan} on {engine} differs from the oracle by {gap:.2e}"


def check_run(run: Run, plan: Plan) -> None:
    """Assert every invariant that the trace of a finished run can show."""
    each_sample_once(run)
    each_loss_recorded(run)
    server = plan.method.server
    if server is not None and plan.traits.versioned:
        no_update_lost(run)
        staleness_identity(run)
    if plan.traits.holds == "stages" and server is None:
        every_version(run)
    if plan.traits.holds == "operators":
        every_gradient(run)
    if plan.replayable:
        replays(run)


def each_sample_once(run: Run) -> None:
    """Assert that the samples of every update are computed and applied once.

    A death may add lost computations. A coordinator evaluates a batch several times, and its samples count in the
    first row only. A gradient that is too late for a round is computed again, and so is one that only some shards had
    when the run was killed. Chunks of a batch that each have a row of their own are counted together.
    """
    summary, shards = run.summary(), len(set(run.trace.of_kind(Kind.APPLY)["shard"].tolist()))
    twice = shards > 1 and len(run.trace.lives()) > 1
    counted: Counter[int] = Counter()
    applied, agenda = {int(u) for u in run.trace.of_kind(Kind.APPLY)["update"]}, _agenda(run)
    pairs: set[tuple[int, int]] = set()
    late = Counter((int(row["update"]), int(row["worker"])) for row in run.trace.of_kind(Kind.DROP))
    for row in run.trace.of_kind(Kind.COMPUTE):
        update, worker = int(row["update"]), int(row["worker"])
        within = _plan(run).traits.holds == "operators"  # an update of an operator may be of several batches
        assert within or agenda.lease(update) in applied or summary["deaths"], (
            f"update {update} was computed and never applied"
        )
        if late[update, worker]:
            late[update, worker] -= 1
        elif worker not in summary["deaths"]:
            again = (update, worker) in pairs and not twice and not within
            assert not again or not row["samples"], f"samples of update {update} were counted twice"
            pairs.add((update, worker))
            counted[update] += int(row["samples"])
    if not summary["deaths"] and not twice:
        assert sum(counted.values()) == summary["samples"], f"{sum(counted.values())} of {summary['samples']} samples"


def each_loss_recorded(run: Run) -> None:
    """Assert that the trace has the loss of every gradient.

    On the virtual engine, workers that never communicate are only timed, except the first.
    """
    rows = run.trace.of_kind(Kind.COMPUTE)
    if not _plan(run).traits.exchanges and run.record.engine == "virtual":
        rows = rows[rows["worker"] == 0]
    without = rows[(rows["samples"] > 0) & ~np.isfinite(rows["value"])]
    assert not len(without), f"updates {without['update'].tolist()} were recorded without their loss"


def no_update_lost(run: Run) -> None:
    """Assert that every shard applied every lease once, in versions without a gap."""
    plan, agenda = _plan(run), _agenda(run)
    versions = agenda.leases // agenda.shares
    for shard, rows in _pushes(run, plan).items():
        applied_versions = {int(row["version"]) for row in rows}
        leases = sorted(int(row["update"]) for row in rows)
        assert applied_versions == set(range(1, versions + 1)), (
            f"shard {shard} has versions {sorted(applied_versions)[:10]}..."
        )
        assert leases == list(range(agenda.leases)), f"shard {shard} did not take each lease once"


def staleness_identity(run: Run) -> None:
    """Assert the staleness identity of every shard."""
    plan = _plan(run)
    server = plan.method.server
    assert server is not None
    machine = server.machine(plan.workers)
    resumed = run.trace.of_kind(Kind.RESUME)
    for shard, rows in _pushes(run, plan).items():
        # The identity holds for each part of a resumed run: all workers start it from the same version.
        begins = [0, *(int(v) for v in resumed[resumed["shard"] == shard]["version"]), int(rows[-1]["version"])]
        for low, high in pairwise(begins):
            mine = [row for row in rows if low < row["version"] <= high]
            fault = machine.fault([Taken(int(row["worker"]), int(row["base"]) - low) for row in mine], high - low)
            assert fault is None, f"shard {shard}: {fault}"


def every_version(run: Run) -> None:
    """Assert that every stage made every version once, from the versions that its table says."""
    plan, updates = _plan(run), _agenda(run).updates
    stages = plan.method.picture(plan.workers)
    assert isinstance(stages, Stages)
    counts = tuple(len(_agenda(run).filled(update)) for update in range(updates))
    span = stages.span or updates
    reads: dict[tuple[int, int], int] = {}  # (stage, update): the version that its first forward reads
    for first in range(0, updates, span):
        table, ends = (
            stages.table(counts[first : first + span]),
            [sum(counts[first : u + 1]) for u in range(first, updates)],
        )
        for work in (work for line in table.lines for work in line if work.what == FORWARD):
            update = first + next(number for number, end in enumerate(ends) if work.micro < end)
            reads.setdefault((work.stage, update), first + work.version)
    rows = run.trace.of_kind(Kind.APPLY)
    for stage in range(table.stages):
        workers = np.unique(rows[rows["shard"] == stage]["worker"])
        assert len(workers) == plan.workers // table.workers, f"stage {stage} was updated by workers {workers.tolist()}"
    for stage, worker in {(int(row["shard"]), int(row["worker"])) for row in rows}:
        mine = rows[(rows["shard"] == stage) & (rows["worker"] == worker)]
        assert mine["version"].tolist() == list(range(1, updates + 1)), f"stage {stage} made {mine['version'].tolist()}"
        bases = {(stage, int(row["update"])): int(row["base"]) for row in mine}
        assert bases == {key: base for key, base in reads.items() if key[0] == stage}, f"stage {stage}: {bases}"


def every_gradient(run: Run) -> None:
    """Assert that every call was computed once each way, and that every operator's versions have no gap."""
    works = Counter((row["update"], row["base"], row["shard"], row["version"]) for row in run.trace.of_kind(Kind.STAGE))
    assert set(works.values()) == {1}, "a call was computed twice"
    assert sum(way == ord("F") for *_, way in works) * 2 == len(works), "a call has a value and no gradient"
    rows = run.trace.of_kind(Kind.APPLY)
    for operator in np.unique(rows["shard"]):
        versions = np.sort(rows[rows["shard"] == operator]["version"])
        assert versions.tolist() == list(range(1, len(versions) + 1)), f"operator {operator} made {versions.tolist()}"


def _plan(run: Run) -> Plan:
    return Plan.parse(run.summary()["plan"])


def _agenda(run: Run) -> Agenda:
    job = run.job
    arguments = (run.record.job.samples or 0, job.batch_size, job.epochs, job.accumulate_grad_batches)
    return _plan(run).agenda(*arguments, limit=run.record.limit)


def _pushes(run: Run, plan: Plan) -> dict[int, list[Any]]:
    """Return for each shard the pushes that it applied, in the order of the versions that they are in."""
    rows = run.trace.of_kind(Kind.APPLY)
    pushes: dict[int, list[Any]] = {}
    for shard in sorted(set(rows["shard"].tolist())):
        # A worker killed between writing a row and making its version leaves a row too many: the later one is valid.
        key = "update" if plan.traits.gathers else "version"
        valid_rows = {int(row[key]): row for row in rows[rows["shard"] == shard]}
        pushes[shard] = sorted(valid_rows.values(), key=lambda row: int(row["version"]))
    return pushes


def replays(run: Run) -> None:
    """Assert that a replay ends with the same bits."""
    replayed_run = replay(run)
    assert replayed_run.matches, "the replay gave other bits"
    with torch.no_grad():
        assert all(
            torch.equal(a, b) or bool(a.isnan().any())
            for a, b in zip(run.model.state_dict().values(), replayed_run.model.state_dict().values(), strict=True)
        )
