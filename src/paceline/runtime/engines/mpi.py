"""The engine under `mpiexec`: all ranks train one model as one team, in generated code.

    mpiexec -n 4 paceline train mnist-cnn --compute fused

A pass over the data, or the part between two evaluations, is one call and one row of the trace. The first rank keeps
the run's folder and evaluates.
"""

from __future__ import annotations

import math
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from paceline.algorithms.cluster.launchers import from_mpiexec
from paceline.errors import JobError, NotFinite, PacelineError, PlanError
from paceline.plans.plan import Plan
from paceline.runtime.engines import cluster
from paceline.runtime.engines.arithmetic.synchronous import Team
from paceline.runtime.engines.outcome import Outcome, Snapshot
from paceline.runtime.engines.setup import Setup
from paceline.runtime.runs.trace import Kind, Row, Trace
from paceline.training.data.source import TensorSource
from paceline.training.gradients.fused_replica import by_ranks
from paceline.training.jobs.job import Job


def rank() -> int:
    """Return the rank of this process as `mpiexec` has set it, without loading MPI."""
    started = from_mpiexec(os.environ)
    return started.rank if started else 0


def ranks() -> int:
    """Return the number of processes that `mpiexec` started; 1 without it."""
    started = from_mpiexec(os.environ)
    return started.nodes if started else 1


def check(job: Job, plan: Plan) -> None:
    """Raise the same error on every rank for what ranks of MPI do not support."""
    if plan.name != "sequential" or plan.chunks != 1:
        raise PlanError(f"under mpiexec all ranks share each batch; plan {plan} is for processes that Paceline starts")
    if job.compute != "fused":
        raise JobError("under mpiexec the ranks train in generated code: give --compute fused, or leave mpiexec out")
    unsupported = {
        "gradient_clip_norm": job.gradient_clip_norm is not None,
        "loss_denominator": job.loss_denominator is not None,
        "batch_transform": job.batch_transform is not None,
        "on_nan='skip'": job.on_nan == "skip",
    }
    if any(unsupported.values()):
        words = ", ".join(word for word, is_set in unsupported.items() if is_set)
        raise JobError(f"under mpiexec generated code makes the steps, and does not know {words}; leave mpiexec out")


def train(setup: Setup) -> Outcome:
    """Train on all ranks of MPI."""
    if not isinstance(setup.source, TensorSource) or len(setup.source.tensors) != 2:
        raise JobError("under mpiexec the data are two tensors, inputs and targets, since a whole pass is one call")
    norms = [part for part in setup.module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    if norms and setup.job.accumulate_grad_batches > 1:
        raise JobError(
            "under mpiexec the batches of accumulate_grad_batches are computed as one large batch, and batch-norm "
            "would see all of it; leave accumulate_grad_batches out, or mpiexec"
        )
    with one_for_all(NotFinite):
        return _train(setup)


@contextmanager
def one_for_all(alike: type[PacelineError]) -> Iterator[None]:
    """End all ranks when this one fails, but not by an error of this type that all of them raise."""
    refused: PacelineError | None = None
    try:
        yield
    except alike as error:
        refused = error
    except BaseException as error:
        _abort(error)
        raise
    from mpi4py import MPI

    # Where all refuse alike, all exit with the message; where only some do, the others would wait for ever.
    failed = MPI.COMM_WORLD.allgather(refused is not None)
    if refused is not None:
        if not all(failed):
            _abort(refused)
        raise refused
    if any(failed):
        MPI.COMM_WORLD.Barrier()  # until the rank that has failed ends this one


def _abort(error: BaseException) -> None:
    """End all ranks: the others wait for this one, and would hang."""
    traceback.print_exception(error, file=sys.stderr)
    sys.stderr.flush()
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(1)


def _train(setup: Setup) -> Outcome:
    """Train stretch by stretch, each in one call."""
    agenda, team, rows, snapshots = setup.agenda, Team(setup, by_ranks), list[Row](), list[Snapshot]()
    world = team.fused.runner.nodes.world
    world.Barrier()
    begin = time.perf_counter_ns()
    stretches = list(_stretches(setup, each=team.schedule is not None))
    for first, last in world.bcast(stretches):  # only the first rank knows when it will evaluate
        start = time.perf_counter_ns()
        loss = team.train(first, last)
        end = time.perf_counter_ns()
        when, samples = (start - begin, end - begin), agenda.samples_until(last) - agenda.samples_until(first)
        rows.append(Row(Kind.COMPUTE, 0, last - 1, -1, last - 1, -1, *when, 0, samples, 0, loss))
        rows.append(Row(Kind.APPLY, 0, last - 1, 0, last - 1, last, when[1], when[1]))
        if setup.job.on_nan == "stop" and not math.isfinite(loss):
            raise NotFinite(loss, last - 1, team.samples(first, last).tolist())
        if agenda.reaches(last, setup.snapshots_every):
            values = team.values()
            snapshots.append(Snapshot(last, (end - begin) / 1e9, lambda kept=values: kept))  # type: ignore[misc]
    seconds = (time.perf_counter_ns() - begin) / 1e9
    adds_up = "MPI" if team.fused.runner.nodes.count > 1 else ""
    team.fused.close()
    return Outcome(Trace.of(rows), seconds, team.values(), snapshots, adds_up=adds_up)


def _stretches(setup: Setup, each: bool) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of each call: up to the end of a pass or the next evaluation; with `each`, one update."""
    agenda, first = setup.agenda, 0
    while first < agenda.updates:
        stops = [agenda.updates, (first // agenda.updates_per_epoch + 1) * agenda.updates_per_epoch]
        if setup.snapshots_every:
            stops.append((first // setup.snapshots_every + 1) * setup.snapshots_every)
        last = first + 1 if each else min(stops)
        yield first, last
        first = last


# Which engine a launcher's processes use when the user names none, and which of them this one is.


def engine_of(job: Job | None) -> str:
    """Return the engine for this process: that of one machine, unless a launcher started several nodes."""
    if cluster.nodes() < 2:
        return "local"
    by_mpi = ranks() > 1 and job is not None and job.compute == "fused"
    return "mpi" if by_mpi else "cluster"


def rank_of(engine: str) -> int:
    """Return this process's rank under an engine; only rank 0 reports."""
    if engine == "mpi":
        return rank()
    return cluster.roster().rank if engine == "cluster" else 0
