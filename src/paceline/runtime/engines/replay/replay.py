"""`replay` runs a recorded run again, in one process, bit for bit.

A synchronous plan needs only its table, an asynchronous one the trace (`engines.replay.from_plan`).

    replay(run)                 the same bits, or ReplayDiverged
    replay(run, until=120)      the model as it was after update 120, and the batch of the next update
    replay(run, until="nan")    the model just before the first update that was not finite, and the guilty batch
    replay(run, until="failure")  the model as a worker had it when it failed, and the batch it failed on
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from paceline.errors import JobWarning, ReplayDiverged, UsageError
from paceline.errors.arguments import check_arguments
from paceline.instruction_sets import VARIABLE, max_cpu_isa
from paceline.plans.plan import Plan
from paceline.runtime.engines import checkpoints
from paceline.runtime.engines.job_file import load_job_file, why_bits_differ
from paceline.runtime.engines.outcome import load_values
from paceline.runtime.engines.replay.from_plan import RunPart, make_replayer
from paceline.runtime.engines.replay.from_trace import ReplayedVersion
from paceline.runtime.engines.setup import Setup, set_up
from paceline.runtime.runs.live import read_events
from paceline.runtime.runs.record import AttemptRecord, RunRecord, Status, read_record
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.trace import Kind, Trace
from paceline.text_table import Listed, TextList
from paceline.training.jobs.job import Batch, Job, threads
from paceline.training.jobs.loading import own_arguments
from paceline.training.parameters.layout import sha256

SHOWN = 8  # samples of the batch that comes next
#: Hears how many updates were made again, and how many there are.
ReplayProgress = Callable[[int, int], object]


@dataclass
class Replay(Listed):
    """The model where a replay stopped, and the update that would come next."""

    model: nn.Module = field(repr=False)
    #: Updates that were made.
    updates: int
    parameters_sha256: str
    #: Whether the parameters have the recorded bits; None if the replay stopped before the end.
    matches: bool | None
    #: The update (under a plan with a server: the batch) that would come next.
    guilty_update: int | None = None
    guilty_batch: Batch | None = field(default=None, repr=False)
    #: The numbers of the samples in the guilty batch.
    guilty_samples: torch.Tensor | None = field(default=None, repr=False)
    guilty_worker: int | None = None
    #: The loss of the guilty batch, as computed at that point.
    loss: float | None = None

    def _listed(self) -> TextList:
        bits = {True: "as recorded, bit for bit", False: "not as recorded", None: "stopped before the end"}
        lines = {
            "updates": f"{self.updates:,}",
            "parameters": f"{self.parameters_sha256[:16]}, {bits[self.matches]}",
        }
        if self.guilty_update is not None:
            lines["next"] = f"batch {self.guilty_update} of worker {self.guilty_worker}"
        if self.guilty_samples is not None:
            few, more = self.guilty_samples[:SHOWN].tolist(), ", ..." * (len(self.guilty_samples) > SHOWN)
            lines["samples"] = ", ".join(map(str, few)) + more
        if self.loss is not None:
            lines["loss"] = f"{self.loss:.6g}"
        return TextList("Replay", lines)


@own_arguments()
def replay(
    run: Run | str | Path,
    until: str | int | None = None,
    *,
    data: Any = None,
    job: Job | None = None,
    progress: ReplayProgress = lambda updates, last: None,
) -> Replay:
    """Run a recorded run again in one process, and compare it with the record.

    Args:
        run: The run or its folder.
        until: Where the replay stops: an update number, `"nan"` for the first loss that is not finite, or `"failure"`.
            Default: the end of the run, or of what is recorded of one that did not finish.
        data: The data, where the folder could not keep it.
        job: The job, where the folder could not keep it.
        progress: A function that is called after each update, with the number of updates so far and that of all.
    """
    check_arguments(replay, locals())
    if isinstance(until, str) and until not in ("nan", "failure") and not until.isdigit():
        raise UsageError(f"until={until!r} is neither an update number nor 'nan' nor 'failure'")
    setup, trace, lives, record = prepare(run, data, job)
    plan = setup.plan
    with threads(record.threads):
        shard, stop = 0, None if until in (None, "nan", "failure") else int(until)
        if until == "failure":
            stop = _before_failure(record)
        elif until == "nan":
            bad = _first_bad(setup, trace, lives)
            if bad is None:
                raise UsageError("nothing in this run was not finite: there is no NaN to stop before")
            shard, stop = bad.shard, bad.version - 1
        elif stop is None and record.summary is None and _follows_plan(plan):
            stop = _recorded(trace)
        if stop is not None and not 0 <= stop <= setup.agenda.updates:
            raise UsageError(f"until={stop}, but the run had updates 0 to {setup.agenda.updates}")
        try:
            return _run(setup, trace, lives, stop, shard, record, progress)
        except ReplayDiverged as error:
            lost = shards_lost(run.path if isinstance(run, Run) else Path(run))
            if not lost or (record.shards == 1 and plan.codec is None):
                raise
            raise ReplayDiverged(
                f"acknowledged pushes were lost with servers of shard {' and '.join(map(str, lost))}, and other "
                "shards, or what a codec owes, may come from what was lost: this run cannot be replayed to its end "
                f"({error})"
            ) from None


class Prepared(NamedTuple):
    """A recorded run that can be replayed."""

    setup: Setup
    trace: Trace
    lives: list[RunPart]
    record: RunRecord


def prepare(run: Run | str | Path, data: Any = None, job: Job | None = None) -> Prepared:
    """Open a recorded run and set its job up as it was; raise for one that cannot be replayed."""
    opened, record, trace = _open(run, data, job)
    plan = Plan.recorded(record.plan, record.table)
    if not plan.replayable:
        raise UsageError(f"a run of plan {plan.name} cannot be replayed: {plan.traits.not_replayable}")
    if record.adds_up:
        raise UsageError(
            f"{record.adds_up} summed in this run in an order that was not recorded: it cannot be replayed"
        )
    opened = opened.with_(device="cuda" if "cuda" in record.job.device else "cpu")
    with threads(record.threads):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JobWarning)  # the recorded run has issued it
            engine = "mpi" if record.engine == "mpi" else "replay"  # steps in generated code, or PyTorch's
            setup = set_up(opened.with_(compute=record.compute), plan, engine, _last_update(record), bounded=True)
        if isinstance(run, str | Path):
            trace = _until_stopped(Path(run), record, setup, trace)
        _check_same_start(setup, record)
        _refuse_other_plans(record, plan)
    lives = [RunPart(Plan.recorded(each.plan, record.table), servers_apart(each, record)) for each in record.lives]
    return Prepared(setup, trace, lives, record)


def shards_lost(path: Path | None) -> list[int]:
    """Return the shards that were continued by servers without all acknowledged pushes."""
    return sorted({event.shard for event in (read_events(path) if path else []) if event.lossy})


def _open(run: Run | str | Path, data: Any, job: Job | None) -> tuple[Job, RunRecord, Trace]:
    """Read the job, the record and the trace of a run."""
    if isinstance(run, Run):
        return job or run.job, run.record, run.trace
    path = Path(run)
    record = read_record(path)
    file = path / "trace.arrow"
    if not file.exists() and not Plan.recorded(record.plan, record.table).traits.synchronous:
        raise UsageError(f"{path} has no trace, so the order of its updates is not known: no replay")
    return job or load_job_file(path, data), record, Trace.open(file) if file.exists() else Trace.of([])


def _refuse_other_plans(record: RunRecord, plan: Plan) -> None:
    """Raise if the run was resumed by another plan, whose workers held the model otherwise."""
    names = list(dict.fromkeys(each.plan for each in record.lives))
    if plan.canonical and {Plan.recorded(name, record.table).canonical for name in names} <= {plan.canonical}:
        return  # whose bits are those of any workers
    if plan.traits.synchronous and len(names) > 1:
        raise UsageError(f"this run was resumed by other plans ({', then '.join(names)}): it cannot be replayed as one")


def servers_apart(life: AttemptRecord, record: RunRecord) -> bool:
    """Whether servers were processes of their own in this life of a run."""
    return (life.engine or record.engine) in ("cluster", "ray")


def _last_update(record: RunRecord) -> int | None:
    """Return the updates after which the run ended before all of its epochs; None where it did not.

    A batch that was being computed when a callback stopped servers is in no update, so numbers of batches go further.
    """
    stopped = record.summary if record.status == Status.STOPPED else None
    if stopped is not None and Plan.recorded(record.plan, record.table).traits.synchronous:
        return stopped.updates
    return record.limit


def _until_stopped(path: Path, record: RunRecord, setup: Setup, trace: Trace) -> Trace:
    """Leave out what workers did after the checkpoint at which a callback has stopped the run."""
    if record.status != Status.STOPPED or record.summary is None:
        return trace
    reached = checkpoints.newest(path)
    if reached is None or reached.updates != record.summary.updates:
        raise UsageError(f"{path} was stopped, and the checkpoint of its end is gone: it cannot be replayed")
    return Trace(checkpoints.led_to(trace, reached, setup.agenda))


def _check_same_start(setup: Setup, record: RunRecord) -> None:
    """Raise if the data or the initial model differ from the recorded ones."""
    if setup.source.fingerprint() != record.data_fingerprint:
        raise ReplayDiverged("the data are not those of the recorded run: their fingerprints differ")
    if setup.initial_sha256 != record.initial_sha256:
        raise ReplayDiverged(
            "the model does not start from the recorded parameters: model= draws other numbers now, or another PyTorch "
            "rounds otherwise"
        )
    if (recorded := record.machine.max_cpu_isa) != max_cpu_isa():
        warnings.warn(
            f"recorded with {VARIABLE}={recorded!r}, replayed with {max_cpu_isa()!r}: bits may differ",
            JobWarning,
            stacklevel=3,
        )
    if torch.__version__ != record.machine.torch:
        warnings.warn(
            f"recorded with torch {record.machine.torch}, replayed with {torch.__version__}: bits may differ",
            JobWarning,
            stacklevel=3,
        )


def _run(
    setup: Setup,
    trace: Trace,
    lives: list[RunPart],
    until: int | None,
    shard: int,
    record: RunRecord,
    progress: ReplayProgress,
) -> Replay:
    """Replay up to version `until`, and describe the update that would come next."""
    replayer = make_replayer(setup, trace, lives)
    until = None if until is None else min(until, replayer.last)
    for _ in replayer.replay(until):
        progress(replayer.done, replayer.last if until is None else until)
    module = load_values(setup, replayer.values())
    result = Replay(module, replayer.done, sha256(module), None)
    failure = record.failure
    if until is not None and failure is not None and until == failure.parameters_version and failure.samples:
        result.guilty_update, result.guilty_worker = failure.update, failure.worker
        result.guilty_samples = torch.tensor(failure.samples)
        epoch, _, _ = setup.agenda.span(failure.update)
        result.guilty_batch = setup.source.batch(result.guilty_samples, epoch)
    elif until is not None and until < replayer.last:
        guilty = replayer.next(shard, until)
        order = setup.order()
        result.guilty_update, result.guilty_worker, result.loss = guilty.chunks[0].update, guilty.worker, guilty.loss
        result.guilty_samples = torch.cat([order.indices(chunk) for chunk in guilty.chunks])
        result.guilty_batch = setup.source.batch(result.guilty_samples, guilty.chunks[0].epoch)
    elif record.summary is not None:
        recorded = record.summary.parameters_sha256
        result.matches = result.parameters_sha256 == recorded
        if not result.matches:
            raise ReplayDiverged(
                f"replayed {replayer.done} updates, but the parameters are {result.parameters_sha256[:16]}, "
                f"not the recorded {recorded[:16]}. {why_bits_differ(record, lives[-1].plan)}"
            )
    return result


def _follows_plan(plan: Plan) -> bool:
    """Whether a replay takes the updates from the plan, which has those that a run did not come to as well."""
    return plan.traits.synchronous and plan.traits.holds != "operators"


def _recorded(trace: Trace) -> int:
    """Return the updates that every worker is known to have made of a run that did not finish."""
    steps = trace.of_kind(Kind.APPLY)
    if not len(steps):
        raise UsageError("this run ended before its first update: there is nothing to replay")
    return min(int(steps["version"][steps["worker"] == worker].max()) for worker in set(steps["worker"].tolist()))


def _before_failure(record: RunRecord) -> int:
    failure = record.failure
    if failure is None:
        raise UsageError(f"no worker of this run has failed (it is {record.status}): there is nothing to stop before")
    version = failure.parameters_version
    if version < 0:
        raise UsageError(f"worker {failure.worker} failed before its first update: there is nothing to replay")
    return version


def _first_bad(setup: Setup, trace: Trace, lives: list[RunPart]) -> ReplayedVersion | None:
    """Find the lowest version of any shard that is not finite, or was made of a loss or gradient that is not."""
    bad: ReplayedVersion | None = None
    replayer = make_replayer(setup, trace, lives)
    for replayed in replayer.replay(None):
        if not replayed.finite and (bad is None or replayed.version < bad.version):
            bad = replayed
        if bad is not None and replayer.done >= bad.version:
            break
    return bad
