"""A recorded run again, in one process, bit for bit.

A synchronous plan needs only its table, an asynchronous one the trace (`engines.players`).

    replay(run)                 the same bits, or ReplayDiverged
    replay(run, until=120)      the model as it was after update 120, and the batch of the next update
    replay(run, until="nan")    the model just before the first update that was not finite, and the guilty batch
    replay(run, until="failure")  the model as a worker had it when it failed, and the batch it failed on
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.engines.job_file import load_job_file
from paceline.engines.outcome import load_values
from paceline.engines.replay.versions import ReplayedVersion, make_player
from paceline.engines.setup import Setup, set_up
from paceline.engines.threads import threads
from paceline.errors import JobWarning, ReplayDiverged, UsageError
from paceline.jobs.job import Batch, Job
from paceline.parameters.layout import sha256
from paceline.plans.plan import Plan
from paceline.runs.record import RunRecord, read_record
from paceline.runs.run import Run
from paceline.runs.trace import Trace


@dataclass
class Replay:
    """Where a replay stopped."""

    model: nn.Module
    updates: int  # done
    parameters_sha256: str
    matches: bool | None  # the recorded bits; None when stopped on the way
    guilty_update: int | None = None  # the update (asynchronous: batch) that would come next
    guilty_batch: Batch | None = None
    guilty_samples: torch.Tensor | None = None  # its sample numbers
    guilty_worker: int | None = None
    loss: float | None = None  # of the guilty batch, as computed then


def replay(
    run: Run | str | Path, until: str | int | None = None, *, data: Any = None, job: Job | None = None
) -> Replay:
    """Run a recorded run again. `data` (or `job`) is needed only where the folder could not keep it."""
    if isinstance(until, str) and until not in ("nan", "failure") and not until.isdigit():
        raise UsageError(f"until={until!r} is neither an update number nor 'nan' nor 'failure'")
    opened, record, trace = _open(run, data, job)
    plan = Plan.recorded(record.plan, record.table)
    if not plan.replayable:
        raise UsageError(f"a run of plan {plan.name} cannot be replayed: {plan.traits.not_replayable}")
    if record.adds_up:
        raise UsageError(f"{record.adds_up} added up in this run, and nobody wrote down in which order: no replay")
    opened = opened.with_(device="cuda" if "cuda" in record.job.device else "cpu")
    with threads(record.threads):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JobWarning)  # it was said when the run was made
            engine = "mpi" if record.engine == "mpi" else "replay"  # steps in generated code, or PyTorch's
            setup = set_up(opened.with_(compute=record.compute), plan, engine, record.limit)
        _check_same_start(setup, record)
        plans = [Plan.recorded(life.plan, record.table) for life in record.lives]
        shard, stop = 0, None if until in (None, "nan", "failure") else int(until)
        if until == "failure":
            stop = _before_failure(record)
        elif until == "nan":
            bad = _first_bad(setup, trace, plans)
            if bad is None:
                raise UsageError("nothing in this run was not finite: there is no NaN to stop before")
            shard, stop = bad.shard, bad.version - 1
        if stop is not None and not 0 <= stop <= setup.agenda.updates:
            raise UsageError(f"until={stop}, but the run had updates 0 to {setup.agenda.updates}")
        return _run(setup, trace, plans, stop, shard, record)


def _open(run: Run | str | Path, data: Any, job: Job | None) -> tuple[Job, RunRecord, Trace]:
    if isinstance(run, Run):
        return job or run.job, run.record, run.trace
    path = Path(run)
    record = read_record(path)
    file = path / "trace.arrow"
    if not file.exists() and not Plan.recorded(record.plan, record.table).traits.keeps_step:
        raise UsageError(f"{path} has no trace, so nobody knows in which order its updates were made: no replay")
    return job or load_job_file(path, data), record, Trace.open(file) if file.exists() else Trace.of([])


def _check_same_start(setup: Setup, record: RunRecord) -> None:
    if setup.source.fingerprint() != record.data_fingerprint:
        raise ReplayDiverged("the data are not those of the recorded run: their fingerprints differ")
    if setup.initial_sha256 != record.initial_sha256:
        raise ReplayDiverged("the model does not start from the recorded parameters: model= draws other numbers now")
    if torch.__version__ != record.machine.torch:
        warnings.warn(
            f"recorded with torch {record.machine.torch}, replayed with {torch.__version__}: bits may differ",
            JobWarning,
            stacklevel=3,
        )


def _run(setup: Setup, trace: Trace, plans: list[Plan], until: int | None, shard: int, record: RunRecord) -> Replay:
    playing = make_player(setup, trace, plans)
    for _ in playing.play(until):
        pass
    module = load_values(setup, playing.values())
    found = Replay(module, playing.done, sha256(module), None)
    failure = record.failure
    if until is not None and failure is not None and until == failure.parameters_version and failure.samples:
        found.guilty_update, found.guilty_worker = failure.update, failure.worker
        found.guilty_samples = torch.tensor(failure.samples)
        epoch, _, _ = setup.agenda.span(failure.update)
        found.guilty_batch = setup.source.batch(found.guilty_samples, epoch)
    elif until is not None and until < playing.last:
        guilty = playing.next(shard, until)
        order = setup.order()
        found.guilty_update, found.guilty_worker, found.loss = guilty.chunks[0].update, guilty.worker, guilty.loss
        found.guilty_samples = torch.cat([order.indices(chunk) for chunk in guilty.chunks])
        found.guilty_batch = setup.source.batch(found.guilty_samples, guilty.chunks[0].epoch)
    elif record.summary is not None:
        recorded = record.summary.parameters_sha256
        found.matches = found.parameters_sha256 == recorded
        if not found.matches:
            raise ReplayDiverged(
                f"replayed {playing.done} updates, but the parameters are {found.parameters_sha256[:16]}, "
                f"not the recorded {recorded[:16]}. "
                "Does the job draw chance that the seed does not reach?"
            )
    return found


def _before_failure(record: RunRecord) -> int:
    failure = record.failure
    if failure is None:
        raise UsageError(f"no worker of this run has failed (it is {record.status}): there is nothing to stop before")
    version = failure.parameters_version
    if version < 0:
        raise UsageError(f"worker {failure.worker} failed before its first update: there is nothing to replay")
    return version


def _first_bad(setup: Setup, trace: Trace, plans: list[Plan]) -> ReplayedVersion | None:
    """The lowest version of any shard that is not finite, or came from something that was not."""
    bad: ReplayedVersion | None = None
    playing = make_player(setup, trace, plans)
    for played in playing.play(None):
        if not played.finite and (bad is None or played.version < bad.version):
            bad = played
        if bad is not None and playing.done >= bad.version:
            break
    return bad
