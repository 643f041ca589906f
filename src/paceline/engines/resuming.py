"""The checks before a run is resumed."""

from __future__ import annotations

from pathlib import Path

from paceline.engines.job_file import load_job_file
from paceline.engines.setup import Setup
from paceline.errors import PlanError, RunFolderError, UsageError
from paceline.jobs.job import Job
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.plan import Plan, make, make_again
from paceline.runs.record import RunRecord, Status, read_record


def open_run(
    path: Path, job: Job | None, given: str | Plan | None, workers: int | None, limit: int | None
) -> tuple[Job, Plan, RunRecord]:
    """Return the job, the plan to resume with, and the record of the run so far."""
    record = read_record(path)
    if record.status == Status.DONE:
        raise UsageError(f"{path} is done: there is nothing to resume")
    if record.engine not in ("local", "cluster"):
        raise UsageError(f"{path} is a run of engine {record.engine!r}, which keeps no checkpoints; train it again")
    if record.checkpoint_every is None:
        raise UsageError(f"{path} keeps no checkpoints: it was begun without --checkpoint-every; train it again")
    if limit is not None and limit != record.limit:
        raise UsageError(f"the run was begun with updates={record.limit}; it cannot be resumed with updates={limit}")
    plan = next_plan(Plan.recorded(record.plan, record.table), given, workers)
    job = job or load_job_file(path, resumable=True)
    return job.with_(compute=record.compute) if job.compute == "auto" else job, plan, record


def next_plan(before: Plan, given: str | Plan | None, workers: int | None) -> Plan:
    """Return the plan that the run had, with another number of workers if the algorithm allows that."""
    wanted = before if given is None else Plan.parse(given)
    count = workers or (wanted.workers if given is not None else before.workers)
    if isinstance(before.method, Pipeline) and before.method.cuts and "cuts" not in wanted.options:
        wanted = wanted.cut_at(before.method.cuts.split("+"))
    if (wanted.name, _rest(wanted)) != (before.name, _rest(before)):
        raise PlanError(f"the run was begun by plan {before}; it cannot be resumed by plan {wanted}")
    if count == before.workers:
        return before
    if before.traits.keeps_step:
        raise PlanError(
            f"the run was begun by {before.workers} workers and cannot be resumed with {count}: {_why(before)}"
        )
    if before.traits.gathers:
        return _backup(before, count)
    return make_again(before, count)


def _rest(plan: Plan) -> dict[str, object]:
    return {key: value for key, value in plan.options.items() if key != "workers"}


def _why(plan: Plan) -> str:
    if plan.traits.agrees:
        return (
            f"plan {plan.name} cuts each batch into as many chunks as it has workers, so it would be another training"
        )
    return f"under plan {plan.name} each worker holds something of its own, which would be lost or missing"


def _backup(before: Plan, workers: int) -> Plan:
    """Keep the number of gradients in an update, and change the number of backups."""
    gathered = before.division.shares
    backups = workers - gathered
    if backups < 0:
        raise PlanError(f"plan {before} makes each update of {gathered} gradients; it cannot be resumed with {workers}")
    return make(before.name, **{**before.options, "workers": workers, "backups": backups})


def check_same(setup: Setup, record: RunRecord) -> None:
    """Raise if the job, its data or the model are not those that the run was begun with."""
    job, kept = setup.job, record.job
    for word in ("batch_size", "epochs", "accumulate", "seed", "precision"):
        if getattr(job, word) != getattr(kept, word):
            raise UsageError(
                f"the run was begun with {word}={getattr(kept, word)}; it cannot be resumed with {getattr(job, word)}"
            )
    if job.compute != record.compute:
        raise UsageError(f"the run was begun with compute={record.compute}; it cannot be resumed with {job.compute}")
    if setup.source.fingerprint() != record.data_fingerprint:
        raise RunFolderError("the data are not those that the run was begun with: their fingerprints differ")
    if setup.initial_sha256 != record.initial_sha256:
        raise RunFolderError("the model does not start from the parameters that the run was begun with")
