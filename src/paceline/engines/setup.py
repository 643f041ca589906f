"""What every engine needs before the first update: everything that can be refused is refused here."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from paceline.core.agenda import Agenda
from paceline.core.collectives.neighbours import Neighbours
from paceline.core.collectives.proof import prove, prove_mixing
from paceline.core.schedules import Table
from paceline.core.schedules.passes import passes
from paceline.core.schedules.proof import prove_table
from paceline.data.order import Order
from paceline.data.source import Source, open_source
from paceline.engines.devices import Placement, place
from paceline.engines.memory_check import check_fit, peaks_of
from paceline.engines.threads import threads
from paceline.errors import JobWarning, PlanError, users_code
from paceline.gradients.fused_replica import fused_if_possible
from paceline.gradients.probe import Probe, probe
from paceline.jobs.job import Job
from paceline.parameters.layout import Layout, check_trainable, lay_out, sha256, trainable
from paceline.parameters.sparse_tables import check_optimizer
from paceline.plans.plan import Plan
from paceline.stages.planning import agrees, blueprint
from paceline.stages.segment import Blueprint


@dataclass
class Setup:
    """A job that can be trained by a plan on an engine."""

    job: Job
    plan: Plan
    source: Source
    test: Source | None
    module: nn.Module
    probe: Probe
    agenda: Agenda
    layout: Layout
    placement: Placement
    initial_sha256: str
    engine: str
    limit: int | None = None
    blueprint: Blueprint | None = None  # only under plans that cut the model into stages

    @property
    def snapshots_every(self) -> int:
        """Updates between two evaluations; 0 for none before the last."""
        if self.agenda.data_parts:
            return 0  # there is no model before all parts are in
        return (self.job.evaluate_every or self.agenda.updates_per_epoch) if self.test is not None else 0

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that training changes: trainable parameters in the module's order, then moving buffers."""
        return (*trainable(self.module), *self.probe.moving)

    def table(self, counts: Sequence[int]) -> Table:
        """Make the pipeline's table for as many updates, of so many micro-batches each."""
        table = self.plan.table(counts)
        return table.agreeing() if self.blueprint is not None and self.blueprint.agrees else table

    def order(self) -> Order:
        return Order(len(self.source), self.job.seed, self.job.shuffle, self.agenda.cuts)

    def fresh_module(self) -> nn.Module:
        import copy

        return copy.deepcopy(self.module)


def set_up(job: Job, plan: Plan, engine: str, limit: int | None = None) -> Setup:
    """Make the model, open the data, probe the loss and prove the table. Raise what can be refused before the start."""
    if job.compute == "fused" and job.device == "auto":
        job = job.with_(device="cpu")
    placement = place(job, plan, together=engine != "local")
    job = _judging(job, plan, engine)
    source = open_source(job.data, job.seed)
    test = open_source(job.test, job.seed, "test") if job.test is not None else None
    module = job.make_model()
    check_trainable(module)
    optimizer = job.make_optimizer(module, list(trainable(module).values()))  # refuse early what cannot be shared
    if job.compute == "fused":
        job = fused_if_possible(job, module, source, plan.native)
    with users_code("the first batch"):
        by_rows = plan.takes_sparse and plan.steps_at_shards
        found = probe(job, module, source, plan.parts, by_rows, placement.devices[0])
    crowd = _crowd(plan) if engine == "local" else []
    found = replace(found, notes=(*found.notes, *_unused(job, plan), *_small(job, plan, len(source)), *crowd))
    if found.restless and plan.meeting is not None and plan.averaging is None and plan.exchanging is None:
        raise PlanError(
            f"the model itself changes parameter {found.restless[0]} while it computes (an embedding with max_norm=?), "
            f"and under plan {plan.name} others read it meanwhile, or hold another; do without, or use sequential"
        )
    if found.tables:
        _refuse_sparse(plan, found.tables)
        check_optimizer(optimizer, module, found.tables, plan.steps_at_shards)
    for note in found.notes:
        warnings.warn(note, JobWarning, stacklevel=3)
    agenda = plan.agenda(len(source), job.batch_size, job.epochs, job.accumulate, limit)
    if agenda.data_parts > agenda.leases:
        raise PlanError(
            f"plan {plan} wants {agenda.data_parts} parts of the data, but there are only {agenda.leases} batches to "
            "share out; give fewer parts, or a smaller batch_size"
        )
    layout = lay_out(module, plan.shards, found.moving)
    plan = plan.fitted(len(layout.shards))
    if plan.synchronous:
        check = prove_mixing if isinstance(plan.meeting, Neighbours) else prove
        check(plan.meeting, plan.workers)  # type: ignore[arg-type]
    made = None
    if plan.schedule is not None:
        made = _cut(job, plan, module, source, agenda, found)
        plan = plan.cut_at(made.names)
    return Setup(job, plan, source, test, module, found, agenda, layout, placement, sha256(module), engine, limit, made)


def _cut(job: Job, plan: Plan, module: nn.Module, source: Source, agenda: Agenda, found: Probe) -> Blueprint:
    """Prove the tables, then cut the model for them."""
    assert plan.schedule is not None
    if job.compute != "autograd":
        raise PlanError(f"plan {plan.name} computes stages by PyTorch's autograd, not by compute={job.compute!r}")
    if agrees(job) and plan.schedule.span != 1:
        what = "on_nan='skip'" if job.clip_norm is None else f"clip_norm={job.clip_norm}"
        raise PlanError(
            f"plan {plan.name} cannot honour {what}: it never has the gradient of the whole model at one time. The "
            "last stage makes its update before the first has a gradient of the same batch, so nobody knows the norm "
            "of all yet; to wait for it would be a flush. Leave it out (with a smaller learning rate), or use a "
            "pipeline that flushes, such as one_f_one_b"
        )
    stop = min(agenda.updates, agenda.updates_per_epoch * max(1, plan.schedule.span))  # what follows repeats itself
    kinds = {passing.counts[:PROVED] for passing in passes(plan.schedule.span, agenda, stop=stop)}
    for counts in kinds:
        table = plan.table(counts)
        prove_table(table.agreeing() if agrees(job) else table)
    epoch = min(agenda.updates, agenda.updates_per_epoch)
    sizes = {each.samples: each for update in (epoch - 1, 0) for each in agenda.filled(update)}
    order = Order(len(source), job.seed, job.shuffle, agenda.cuts)
    chunks = [sizes[samples] for samples in sorted(sizes, key=lambda samples: (samples < max(sizes), samples))]
    examples = [(each, source.batch(order.indices(each), each.epoch)) for each in chunks]
    cuts = plan.cuts.split("+") if plan.cuts else []
    with threads(plan.threads):
        made = blueprint(
            job, module, examples, table, found.moving, cuts, plan.balance,
            plan.recomputing, flushes=plan.schedule.span == 1,
        )  # fmt: skip
        if plan.memory:
            check_fit(plan, peaks_of(job, module, source, made, chunks[0], table))
    return made


def _small(job: Job, plan: Plan, samples: int) -> list[str]:
    """Note that there are too few samples for a batch, or that a batch is too small for the workers."""
    batch = min(job.batch_size, samples)
    notes = []
    if job.batch_size > samples:
        notes.append(f"batch_size={job.batch_size} is more than the {samples} samples: an update sees all of them")
    if plan.parts > batch:
        notes.append(
            f"a batch of {batch} sample{'s' * (batch > 1)} cannot be divided among {plan.parts} workers: some have "
            "nothing to do"
        )
    return notes


def _crowd(plan: Plan) -> list[str]:
    """Note that there are so many workers that starting them takes long."""
    cores = len(os.sched_getaffinity(0))
    if plan.workers <= CROWD * cores:
        return []
    return [
        f"{plan.workers} workers on {cores} cores: each is a process with a PyTorch of its own, and they take turns"
    ]


def _judging(job: Job, plan: Plan, engine: str) -> Job:
    """Set `on_nan` to "ignore" where another part looks for losses that are not finite."""
    if plan.native and job.on_nan == "skip":
        raise PlanError("plan ddp cannot honour on_nan='skip': PyTorch adds gradients up while they are computed")
    # A line search tries steps that are too long, and a replay goes exactly as far as the run.
    judged_elsewhere = plan.coordinator is not None or (engine == "replay" and job.on_nan == "stop")
    return job.with_(on_nan="ignore") if judged_elsewhere else job


def _unused(job: Job, plan: Plan) -> list[str]:
    """Note which settings a coordinated plan does not use; raise for what it cannot honour."""
    if plan.coordinator is None:
        return []
    if job.clip_norm is not None:
        raise PlanError(
            f"plan {plan.name} cannot honour clip_norm={job.clip_norm}: its line search compares the loss with the "
            "gradient as it is; leave clip_norm out"
        )
    unused = {"optimizer": True, "schedule": job.schedule is not None, "loader_workers": job.loader_workers > 0}
    names = ", ".join(f"{name}=" for name, given in unused.items() if given)
    return [f"plan {plan.name} makes its steps by itself, and evaluates a batch several times; it does not use {names}"]


def _refuse_sparse(plan: Plan, tables: tuple[str, ...]) -> None:
    if not plan.takes_sparse:
        raise PlanError(
            f"parameter {tables[0]} gets a sparse gradient (an embedding with sparse=True?), and what meets under plan "
            f"{plan.name} is dense; use downpour or ssp, where only touched rows travel, or sparse=False"
        )


CROWD = 8  # workers for each core
PROVED = 200  # updates of a table that is never flushed: what follows repeats itself
