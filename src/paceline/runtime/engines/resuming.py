"""The checks before a run is resumed, and a checkpoint of one plan as the start of another."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.errors import JobWarning, PlanError, RunFolderError, UsageError
from paceline.instruction_sets import VARIABLE, max_cpu_isa
from paceline.plans.plan import Plan, make, make_again
from paceline.runtime.engines.checkpoints import Checkpoint
from paceline.runtime.engines.job_file import load_job_file, warn_of_changes
from paceline.runtime.engines.record import pieces, stored_in
from paceline.runtime.engines.setup import Setup, set_up
from paceline.runtime.runs.record import RunRecord, Status, read_record
from paceline.training.jobs.job import Job
from paceline.training.parameters.worker_state import WorkerState
from paceline.training.splits.slicing import assembled, stored_part


def open_run(
    path: Path,
    job: Job | None,
    requested: str | Plan | None,
    workers: int | None,
    limit: int | None,
    epochs: int | None = None,
) -> tuple[Job, Plan, RunRecord]:
    """Return the job, the plan to resume with, and the record of the run so far; with `epochs` it goes on to these."""
    record = read_record(path)
    had = record.job.epochs
    if record.status == Status.DONE and epochs is None:
        raise UsageError(
            f"{path} is done: there is nothing to resume; to continue it, say how many epochs it is to have in all, "
            f"more than its {had}, as in --epochs {2 * (had or 1)}"
        )
    if epochs is not None and (had is None or epochs <= had or record.limit is not None):
        why = f"was to end after {record.limit} updates" if record.limit is not None else f"has {had} epochs already"
        raise UsageError(f"{path} {why}; epochs={epochs} would not make it longer")
    if record.engine not in ("local", "cluster", "ray"):
        raise UsageError(f"{path} is a run of engine {record.engine!r}, which keeps no checkpoints; train it again")
    if record.checkpoint_every is None:
        raise UsageError(f"{path} keeps no checkpoints: it was begun without --checkpoint-every; train it again")
    if limit is not None and limit != record.limit:
        raise UsageError(
            f"the run was begun with max_updates={record.limit}; it cannot be resumed with max_updates={limit}"
        )
    plan = next_plan(Plan.recorded(record.plan, record.table), requested, workers)
    if job is None:
        job = load_job_file(path, resumable=True)
    else:
        warn_of_changes(record)
    if job.compute == "auto":
        job = job.with_(compute=record.compute)
    return job if epochs is None else job.with_(epochs=epochs), plan, record


def next_plan(before: Plan, requested: str | Plan | None, workers: int | None) -> Plan:
    """Return the plan that the run had, with another number of workers if the algorithm allows that."""
    following = before if requested is None else Plan.parse(requested)
    count = workers or (following.workers if requested is not None else before.workers)
    # A cut that was balanced at first stays: another one would give stages other parameters.
    if before.method.cuts and "cuts" not in following.options:
        following = following.cut_at(before.method.cuts.split("+"))
    if (following.name, _rest(following)) != (before.name, _rest(before)):
        return _other(before, following if workers is None else make_again(following, workers))
    if count == before.workers:
        return before
    if before.canonical:
        return make_again(before, count)
    if before.traits.synchronous:
        raise PlanError(
            f"the run was begun by {before.workers} workers and cannot be resumed with {count}: {_why(before)}"
        )
    if before.traits.gathers:
        return _backup(before, count)
    return make_again(before, count)


def _other(before: Plan, after: Plan) -> Plan:
    """Return another plan to resume with, if either holds one model between its workers."""
    for plan in (before, after):
        if not holds_one_model(plan):
            raise PlanError(
                f"the run was begun by plan {before}; it cannot be resumed by plan {after}: under {plan.name} workers "
                "have replicas, older versions or shards of their own, which the other would not know"
            )
    if (before.parts, before.sizes) != (after.parts, after.sizes):
        warnings.warn(
            f"plan {after} cuts a batch into {after.parts} chunks, and {before} had {before.parts}"
            f"{' of other sizes' * (before.parts == after.parts)}: dropout and batch normalisation see other chunks "
            "from here on",
            JobWarning,
            stacklevel=5,
        )
    return after


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


def check_end(setup: Setup, updates: int, had: int) -> None:
    """Raise if a run that was done after so many updates cannot go on, as its end was no point within a longer run.

    `had` are the epochs that it had.
    """
    method, agenda = setup.plan.method, setup.agenda
    if updates != agenda.updates_per_epoch * had:
        return
    every = method.exchange_every
    if agenda.data_parts or method.unflushed or not every or updates % every:
        raise UsageError(
            f"the run ended after update {updates}, where plan {setup.plan.name} would have gone on with replicas or "
            "stages that were not brought together yet; train it again with more epochs"
        )


def check_same(setup: Setup, record: RunRecord, epochs: int | None = None) -> None:
    """Raise if the job, its data or the model are not those that the run was begun with; with `epochs` it gets more."""
    job, before = setup.job, record.job
    words = ("batch_size", "accumulate_grad_batches", "seed", "precision", *(("epochs",) if epochs is None else ()))
    for word in words:
        if getattr(job, word) != getattr(before, word):
            raise UsageError(
                f"the run was begun with {word}={getattr(before, word)}; it cannot be resumed with {getattr(job, word)}"
            )
    if job.compute != record.compute:
        raise UsageError(f"the run was begun with compute={record.compute}; it cannot be resumed with {job.compute}")
    if (limited := record.machine.max_cpu_isa) != max_cpu_isa():
        raise UsageError(
            f"the run was begun with {VARIABLE}={limited!r}; it cannot be resumed with {max_cpu_isa()!r}: set it anew"
        )
    if setup.source.fingerprint() != record.data_fingerprint:
        raise RunFolderError("the data are not those that the run was begun with: their fingerprints differ")
    if setup.initial_sha256 != record.initial_sha256:
        raise RunFolderError("the model does not start from the parameters that the run was begun with")


def for_plan(begin: Checkpoint | None, before: RunRecord, job: Job, setup: Setup) -> Checkpoint | None:
    """Return the checkpoint of a run as one of the plan that it is resumed by."""
    had = Plan.recorded(before.plan, before.table)
    if begin is None or not setup.plan.traits.synchronous or str(had) == str(setup.plan):
        return begin
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JobWarning)  # the new plan's notes are enough
        return translated(begin, set_up(job, had, setup.engine, before.limit, bounded=True), setup)


# A checkpoint of one plan as the start of another: its state put together by the names of parameters, and dealt again.
# Plans whose workers make every update together hold one model between them: each worker all of it, or parts of its
# layers, or stages. What the optimizer keeps of each number of a parameter lies as the parameter does.


def holds_one_model(plan: Plan) -> bool:
    """Whether a plan's workers hold one model and one optimizer's state between them, after every update."""
    return plan.traits.one_model and plan.codec is None and (plan.traits.exchanges or plan.workers == 1)


@dataclass
class WholeState:
    """The state of a run after an update, by the names of parameters and buffers."""

    values: dict[str, Tensor] = field(default_factory=dict)
    #: By parameter: what the optimizer keeps of it, tensors and numbers.
    optimizer: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    numbers: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: What is the same for all parameters: the optimizer's settings, the schedule.
    common: WorkerState = field(default_factory=WorkerState)


def translated(checkpoint: Checkpoint, before: Setup, after: Setup) -> Checkpoint:
    """Return the checkpoint of the plan `before` as one of the plan `after`."""
    return replace(checkpoint, holders=_dealt(_gathered(checkpoint, before), after))


def _gathered(checkpoint: Checkpoint, setup: Setup) -> WholeState:
    """Put the parts of all workers together."""
    workers, model = checkpoint.workers(), WholeState()
    shapes = {name: tuple(t.shape) for name, t in (*setup.module.named_parameters(), *setup.module.named_buffers())}
    values: dict[str, dict[int, Tensor]] = {}
    by_place: dict[str, dict[str, dict[int, Tensor]]] = {}
    for piece in pieces(setup):
        state = workers[piece.worker]
        facts = state.facts if piece.stage < 0 else state.facts[str(piece.stage)]
        for number, name in enumerate((*piece.parameters, *piece.moving)):
            values.setdefault(name, {}).setdefault(piece.place, state.tensors[piece.key(number)])
        of_stage = {k.removeprefix(piece.start): t for k, t in state.tensors.items() if k.startswith(piece.start)}
        memories = WorkerState(of_stage).remembered("optimizer", len(piece.parameters))
        for number, (name, memory) in enumerate(zip(piece.parameters, memories, strict=True)):
            for key, tensor in memory.items():
                by_place.setdefault(name, {}).setdefault(key, {}).setdefault(piece.place, tensor)
            if numbers := facts["optimizer"].get(str(number)):
                model.numbers[name] = numbers
        if not model.common.facts:
            model.common = WorkerState({k: t for k, t in of_stage.items() if k.startswith("setting.")}, facts)
    for name, parts in values.items():
        stored, shape = stored_in(setup, name), shapes[name]
        model.values[name] = assembled([parts[place] for place in sorted(parts)], stored, shape)
        for key, mine in by_place.get(name, {}).items():
            each = [mine[place] for place in sorted(mine)]
            # State of another shape, as a count of steps, is not divided, but the same in each part.
            lies_so = all(mine[place].shape == parts[place].shape for place in mine)
            model.optimizer.setdefault(name, {})[key] = assembled(each, stored, shape) if lies_so else each[0].clone()
    return model


def _dealt(whole_state: WholeState, setup: Setup) -> dict[str, WorkerState]:
    """Give each worker its parts."""
    holders = {f"worker.{number}": WorkerState() for number in range(setup.plan.workers)}
    for piece in pieces(setup):
        tensors: dict[str, Tensor] = {}
        for number, name in enumerate((*piece.parameters, *piece.moving)):
            value, stored = whole_state.values[name], stored_in(setup, name)
            tensors[piece.key(number)] = stored_part(value, stored, piece.place).contiguous()
            for key, tensor in whole_state.optimizer.get(name, {}).items():
                mine = stored_part(tensor, stored, piece.place) if tensor.shape == value.shape else tensor
                tensors[f"{piece.start}optimizer.{number}.{key}"] = mine.contiguous()
        tensors |= {f"{piece.start}{key}": tensor for key, tensor in whole_state.common.tensors.items()}
        numbers = {
            str(n): whole_state.numbers[name] for n, name in enumerate(piece.parameters) if name in whole_state.numbers
        }
        facts = {**whole_state.common.facts, "optimizer": numbers, "elsewhere": []}
        holders[f"worker.{piece.worker}"] |= WorkerState(
            tensors, facts if piece.stage < 0 else {str(piece.stage): facts}
        )
    return holders
