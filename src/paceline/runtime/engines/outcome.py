"""What an engine is handed, a run from its start or a checkpoint on, and the outcome that becomes a `Run`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from paceline.errors import CrowdedWarning, RunFailed
from paceline.plans.plan import sizes_by
from paceline.runtime.engines.checkpoints import Checkpoint, CheckpointRequest
from paceline.runtime.engines.setup import Setup
from paceline.runtime.engines.workers.state_buffers import SnapshotFile
from paceline.runtime.runs.live import Heartbeat
from paceline.runtime.runs.progress import Follower
from paceline.runtime.runs.record import DeathRecord, Evaluation, RunFolder, RunRecord, Status, Summary, writing
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.time_accounting import idling, pace_of, summarize
from paceline.runtime.runs.trace import Kind, Trace
from paceline.training.gradients.evaluate import evaluate
from paceline.training.parameters.layout import not_trained, sha256, trainable


class Snapshot(NamedTuple):
    """The parameters and moving buffers after so many updates, for an evaluation."""

    updates: int
    #: Seconds of training until then.
    seconds: float
    values: Callable[[], list[Tensor]]


@dataclass
class Outcome:
    """The result of a training, as an engine returns it."""

    trace: Trace
    seconds: float
    #: The trainable parameters, then the moving buffers.
    values: list[Tensor]
    snapshots: list[Snapshot] = field(default_factory=list)
    #: Seconds for which workers could have run, but had no core.
    core_wait: float = 0.0
    #: Bytes that each worker took at most, if they were measured.
    peak_memory: list[int] = field(default_factory=list)
    #: The library that added gradients up, in an order that is not known; empty if none did.
    adds_up: str = ""
    #: Places for workers that no machine has taken.
    absent: frozenset[int] = frozenset()
    #: Workers that ended before the run did, where more is known of them than the trace says.
    deaths: list[DeathRecord] = field(default_factory=list)


def load_values(setup: Setup, values: list[Tensor]) -> nn.Module:
    """Make a module with these trainable parameters and moving buffers."""
    module = setup.fresh_module()
    buffers = not_trained(module)
    targets = [*trainable(module).values(), *(buffers[name] for name in setup.probe.moving)]
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value if target.is_floating_point() else value.round())
    return module


class EvaluationListener(Protocol):
    """An observer of evaluations, which may have made some of them during the run."""

    #: The evaluations that were made, by their number of updates.
    known: dict[int, Evaluation]

    def evaluated(self, evaluation: Evaluation, module: nn.Module) -> None:
        """Hear of an evaluation that was made after the training."""


def finish(
    setup: Setup,
    outcome: Outcome,
    folder: RunFolder,
    record: RunRecord,
    hearer: EvaluationListener,
    status: Status = Status.DONE,
    error: str = "",
) -> Run:
    """Save the model, evaluate the snapshots, which is not timed, write run.json and return the run."""
    module = load_values(setup, outcome.values)
    if (model_file := folder.file("model.pt")) is not None:
        with writing(folder.path):
            torch.save(module.state_dict(), model_file)
    record = record.with_(
        history=tuple(_evaluate(setup, outcome, module, hearer)),
        adds_up=outcome.adds_up or record.adds_up,
        status=status,
        error=error,
        deaths=(*record.deaths, *outcome.deaths),
    )
    last = record.history[-1].metrics if record.history else {}
    summary = replace(
        _summarize(setup, outcome),
        metrics=last,
        run=str(folder.path) if folder.path else None,
        parameters_sha256=sha256(module),
    )
    record = record.with_(summary=summary)
    folder.write(record)
    if status == Status.DONE:  # a run that goes on later still needs them
        folder.remove_snapshots()
    _warn_if_crowded(summary.workers, setup.plan.threads, summary.core_wait_fraction)
    return Run(folder.path, outcome.trace, record, module, setup.users_job)


def evaluation_of(setup: Setup, module: nn.Module, updates: int, seconds: float) -> Evaluation:
    """Evaluate a module on the test data."""
    assert setup.test is not None
    return Evaluation(updates, seconds, evaluate(setup.job, module, setup.test, setup.placement.devices[0]))


def _evaluate(setup: Setup, outcome: Outcome, module: nn.Module, hearer: EvaluationListener) -> Iterator[Evaluation]:
    """Evaluate every snapshot and the result on the test data, if there are any, and were not evaluated before."""
    if setup.test is None:
        return
    evaluations = hearer.known
    covered = {snapshot.updates for snapshot in outcome.snapshots} | {setup.agenda.updates}
    ends = [Snapshot(each.updates, each.seconds, list) for each in evaluations.values() if each.updates not in covered]
    # Workers copy them side by side: a later one may be done first. At the end of an earlier life there is none.
    points = sorted([*outcome.snapshots, *ends], key=lambda snapshot: snapshot.updates)
    points.append(Snapshot(setup.agenda.updates, outcome.seconds, lambda: outcome.values))
    for point in points:
        if point.updates in evaluations:
            yield evaluations[point.updates]
            continue
        model = module if point is points[-1] else load_values(setup, point.values())
        try:
            evaluation = evaluation_of(setup, model, point.updates, point.seconds)
        except RunFailed as error:
            raise RunFailed(f"the training is done, but {error}") from error.__cause__
        hearer.evaluated(evaluation, model)
        yield evaluation


def _summarize(setup: Setup, outcome: Outcome) -> Summary:
    """Summarize the trace, with figures that only the engine knows."""
    plan, updates = setup.plan, setup.agenda.updates
    summary = summarize(
        outcome.trace,
        plan=str(plan),
        engine=setup.engine,
        workers=plan.workers,
        updates=updates,
        samples=setup.agenda.samples_until(updates),
        seconds=outcome.seconds,
    )
    summary = replace(summary, workers=plan.workers - len(outcome.absent))
    if not plan.traits.traced:
        summary = replace(summary, bytes_sent=None, wait_fraction=None)
    if not plan.traits.synchronous:
        idle = (each for each in idling(outcome.trace.rows, plan.workers) if each not in outcome.absent)
        summary = replace(summary, idle=tuple(idle))
    if summary.stragglers and plan.traits.sums_gradients:
        summary = replace(summary, advised_sizes=sizes_by(pace_of(outcome.trace.rows, plan.workers).speed.tolist()))
    return replace(
        summary,
        compute=setup.job.compute,
        epochs=setup.job.epochs,
        peak_memory=tuple(outcome.peak_memory),
        core_wait_fraction=outcome.core_wait / max(outcome.seconds * summary.workers, 1e-9),
    )


def _warn_if_crowded(workers: int, threads: int, waited: float) -> None:
    """Warn if workers have waited for cores."""
    cores, needed = len(os.sched_getaffinity(0)), workers * threads
    if waited and needed > cores:
        team = f"{workers} workers" + (f" of {threads} threads" if threads > 1 else "")
        warnings.warn(
            f"{team} on {cores} core{'s' * (cores > 1)} took turns: for {waited:.0%} of their time they waited for one",
            CrowdedWarning,
            stacklevel=6,  # the call of `train`
        )


# A run from its start, or from a checkpoint, on: what was decided before it, handed to its engine whole.


@dataclass(frozen=True)
class Life:
    """Everything that an engine needs to train."""

    setup: Setup
    heartbeat: Heartbeat
    place: RunFolder = field(default_factory=lambda: RunFolder(None))
    #: Seconds that a worker waits for another before the run fails.
    deadline: float = 120.0
    #: What follows the run while it goes on.
    follower: Follower | None = None
    #: The checkpoints to write, and the one to begin with; None where the run keeps none.
    request: CheckpointRequest | None = None

    @property
    def begin(self) -> Checkpoint | None:
        """The checkpoint to begin with."""
        return self.request.start if self.request is not None else None


# The snapshots of a run, which workers write for evaluations: their file, and which of them the trace names.


def open_snapshots(setup: Setup, request: CheckpointRequest | None, every: int) -> SnapshotFile | None:
    """Open the file of snapshots, if there are any: in the run's folder if the run may be resumed."""
    if not every:
        return None
    tensors = {**trainable(setup.module), **not_trained(setup.module)}
    shapes = {name: tuple(tensors[name].shape) for name in setup.names}
    named = request.run / "snapshots.bin" if request else None
    return SnapshotFile(shapes, setup.layout.dtype, every, named)


def list_snapshots(trace: Trace, file: SnapshotFile | None) -> list[Snapshot]:
    """List the snapshots to evaluate, as the trace names them; each is read from its file when it is."""
    if file is None:
        return []
    return [
        Snapshot(int(row["update"]), float(row["start"]) / 1e9, partial(file.read, int(row["update"])))
        for row in trace.of_kind(Kind.SNAPSHOT)
    ]
