"""What every engine needs before the first update, and what it makes of the last one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paceline.core.agenda import Agenda
from paceline.core.schedules import Table
from paceline.core.schedules.passes import passes
from paceline.core.schedules.proof import prove_table
from paceline.data.order import Order
from paceline.data.source import Source, open_source
from paceline.engines.checkpoints import Checkpoint
from paceline.engines.devices import Placement, place
from paceline.engines.memory_check import check_fit, peaks_of
from paceline.engines.threads import threads
from paceline.errors import CrowdedWarning, JobWarning, PlanError, RunFailed, users_code
from paceline.gradients.evaluate import evaluate
from paceline.gradients.fused_replica import fused_if_possible
from paceline.gradients.outline import outline
from paceline.gradients.probe import Probe, probe
from paceline.jobs.job import Job
from paceline.links.store_order import require_store_order
from paceline.parameters.layout import Layout, check_trainable, lay_out, sha256, trainable
from paceline.parameters.sparse_tables import check_optimizer
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.plan import Plan
from paceline.runs.run import Run, RunFolder, machine, summarise, writing
from paceline.runs.trace import Trace
from paceline.stages.planning import agrees, blueprint
from paceline.stages.segment import Blueprint

Progress = Callable[[dict[str, Any]], None]


@dataclass
class Setup:
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
    blueprint: Blueprint | None = None  # of plans that cut the model into stages

    @property
    def snapshots_every(self) -> int:
        """Updates between two evaluations; 0 for none before the last."""
        if self.agenda.data_parts:
            return 0  # there is no model before all parts are in
        return (self.job.evaluate_every or self.agenda.updates_per_epoch) if self.test is not None else 0

    @property
    def names(self) -> tuple[str, ...]:
        """Of what training changes: trainable parameters in the module's order, then moving buffers."""
        return (*trainable(self.module), *self.probe.moving)

    def table(self, counts: Sequence[int]) -> Table:
        """What everybody does in as many updates, of so many micro-batches each; with a meeting where one is needed."""
        assert self.pipeline is not None
        table = self.pipeline.table(self.plan.workers, counts)
        return table.agreeing() if self.blueprint is not None and self.blueprint.agrees else table

    @property
    def pipeline(self) -> Pipeline | None:
        """The plan's method, where it cuts the model into stages."""
        return self.plan.method if isinstance(self.plan.method, Pipeline) else None

    def order(self) -> Order:
        return Order(len(self.source), self.job.seed, self.job.shuffle, self.agenda.cuts)

    def fresh_module(self) -> nn.Module:
        import copy

        return copy.deepcopy(self.module)


def set_up(job: Job, plan: Plan, engine: str, limit: int | None = None) -> Setup:
    """Make the model, open the data, probe the loss, prove the table: everything that can be refused before the
    start.
    """
    if engine == "local":
        require_store_order("the local engine")
    if job.compute == "fused" and job.device == "auto":
        job = job.with_(device="cpu")
    placement = place(job, plan, together=engine != "local")
    traits = plan.traits
    job = _check_loss_rules(job, plan, engine)
    source = open_source(job.data, job.seed)
    test = open_source(job.test, job.seed, "test") if job.test is not None else None
    module = job.make_model()
    check_trainable(module)
    optimizer = job.make_optimizer(module, list(trainable(module).values()))  # refuse early what cannot be shared
    if job.compute == "fused":
        job = fused_if_possible(job, module, source, not plan.traits.traced)
    with users_code("the first batch"):
        by_rows = traits.takes_sparse and traits.optimizer_at_server
        found = probe(job, module, source, plan.parts, by_rows, placement.devices[0])
    crowd = _crowd(plan) if engine == "local" else []
    found = replace(found, notes=(*found.notes, *_unused(job, plan), *_small(job, plan, len(source)), *crowd))
    if found.restless and traits.shares_parameters:
        raise PlanError(
            f"the model itself changes parameter {found.restless[0]} while it computes (an embedding with max_norm=?), "
            f"and under plan {plan.name} others read it meanwhile, or hold another; do without, or use sequential"
        )
    if found.tables:
        _refuse_sparse(plan, found.tables)
        check_optimizer(optimizer, module, found.tables, traits.optimizer_at_server)
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
    plan.method.prove(plan.workers)
    made = None
    if isinstance(plan.method, Pipeline):
        made = _cut(job, plan, plan.method, module, source, agenda, found)
        plan = plan.cut_at(made.names)
    return Setup(job, plan, source, test, module, found, agenda, layout, placement, sha256(module), engine, limit, made)


def _cut(
    job: Job, plan: Plan, pipeline: Pipeline, module: nn.Module, source: Source, agenda: Agenda, found: Probe
) -> Blueprint:
    """Prove the tables, then cut the model for them."""
    span = pipeline.schedule.span
    if job.compute != "autograd":
        raise PlanError(f"plan {plan.name} computes stages by PyTorch's autograd, not by compute={job.compute!r}")
    stop = min(agenda.updates, agenda.updates_per_epoch * max(1, span))  # what follows repeats itself
    kinds = {passing.counts[:PROVED] for passing in passes(span, agenda, stop=stop)}
    for counts in kinds:
        table = pipeline.table(plan.workers, counts)
        prove_table(table.agreeing() if agrees(job) else table)
    epoch = min(agenda.updates, agenda.updates_per_epoch)
    sizes = {each.samples: each for update in (epoch - 1, 0) for each in agenda.filled(update)}
    order = Order(len(source), job.seed, job.shuffle, agenda.cuts)
    chunks = [sizes[samples] for samples in sorted(sizes, key=lambda samples: (samples < max(sizes), samples))]
    examples = [(each, source.batch(order.indices(each), each.epoch)) for each in chunks]
    cuts = pipeline.cuts.split("+") if pipeline.cuts else []
    with threads(plan.threads):
        made = blueprint(
            job, module, examples, table, found.moving, cuts, pipeline.balance,
            pipeline.recomputing(plan.workers), flushes=pipeline.flushes,
        )  # fmt: skip
        if pipeline.memory:
            check_fit(pipeline.memory, plan.workers, peaks_of(job, module, source, made, chunks[0], table))
    return made


def _small(job: Job, plan: Plan, samples: int) -> list[str]:
    """Data too few for the batch, or a batch too small for the workers."""
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
    """So many workers that starting them alone takes long."""
    cores = len(os.sched_getaffinity(0))
    if plan.workers <= CROWD * cores:
        return []
    return [
        f"{plan.workers} workers on {cores} cores: each is a process with a PyTorch of its own, and they take turns"
    ]


def _check_loss_rules(job: Job, plan: Plan, engine: str) -> Job:
    """The job, without the check for NaN where the plan does not make it; `PlanError` for what the plan cannot do."""
    traits = plan.traits
    if job.on_nan == "skip" and traits.cannot_skip:
        raise PlanError(f"plan {plan.name} cannot honour on_nan='skip': {traits.cannot_skip}")
    if job.clip_norm is not None and traits.cannot_clip:
        raise PlanError(f"plan {plan.name} cannot honour clip_norm={job.clip_norm}: {traits.cannot_clip}")
    unchecked = not traits.checks_finite or (engine == "replay" and job.on_nan == "stop")
    return job.with_(on_nan="ignore") if unchecked else job


def _unused(job: Job, plan: Plan) -> list[str]:
    """What a coordinator has no use for, in one sentence."""
    if plan.traits.uses_optimizer:
        return []
    unused = {"optimizer": True, "schedule": job.schedule is not None}
    names = ", ".join(f"{name}=" for name, given in unused.items() if given)
    return [f"plan {plan.name} makes its own steps, and evaluates a batch several times; it does not use {names}"]


def _refuse_sparse(plan: Plan, tables: tuple[str, ...]) -> None:
    if not plan.traits.takes_sparse:
        raise PlanError(
            f"parameter {tables[0]} gets a sparse gradient (an embedding with sparse=True?), and what meets under plan "
            f"{plan.name} is dense; use downpour or ssp, where only touched rows travel, or sparse=False"
        )


CROWD = 8  # workers for each core
PROVED = 200  # updates of a table that is never flushed: what follows repeats itself


class Snapshot(NamedTuple):
    """The parameters and moving buffers after so many updates."""

    updates: int
    seconds: float
    values: Callable[[], list[Tensor]]


@dataclass(frozen=True)
class CheckpointRequest:
    """What checkpoints the user asked for, and where this life of the run begins."""

    run: Path
    every: int  # updates between two checkpoints; 0: not by updates
    seconds: float  # or seconds; 0: not by time
    lives: list[dict[str, Any]]
    start: Checkpoint | None  # None: at the beginning


@dataclass
class Outcome:
    """What an engine hands back."""

    trace: Trace
    seconds: float
    values: list[Tensor]  # trainable parameters, then moving buffers
    snapshots: list[Snapshot] = field(default_factory=list)
    core_wait: float = 0.0  # seconds for which workers could have run, but had no core
    peak_memory: list[int] = field(default_factory=list)  # bytes that each worker took at most, where it is measured
    adds_up: str = ""  # a library that added gradients up, in an order that nobody knows


def load_values(setup: Setup, values: list[Tensor]) -> nn.Module:
    """A module with these trainable parameters and moving buffers."""
    module = setup.fresh_module()
    buffers = dict(module.named_buffers())
    targets = [*trainable(module).values(), *(buffers[name] for name in setup.probe.moving)]
    with torch.no_grad():
        for target, value in zip(targets, values, strict=True):
            target.copy_(value if target.is_floating_point() else value.round())
    return module


def first_record(setup: Setup, kept: bool) -> dict[str, Any]:
    """run.json as it stands when the run begins; with the model's outline where it will be kept."""
    job, plan = setup.job, setup.plan
    return {
        "status": "running",
        "started": datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "plan": str(plan),
        **({"table": plan.own_table} if plan.own_table else {}),
        "engine": setup.engine,
        "compute": job.compute,
        "workers": plan.workers,
        "threads": plan.threads,
        "shards": plan.shards,
        "adds_up": setup.placement.library,
        "limit": setup.limit,
        "lives": [life(setup, 0)],
        "job": {
            "name": job.name,
            "origin": job.origin,
            "batch_size": job.batch_size,
            "epochs": job.epochs,
            "accumulate": job.accumulate,
            "seed": job.seed,
            "precision": job.precision,
            "device": str(setup.placement),
            "optimizer": _optimizer(setup),
            "clip_norm": job.clip_norm,
            "shuffle": job.shuffle,
            "evaluate_every": job.evaluate_every,
            "on_nan": job.on_nan,
            "loader_workers": job.loader_workers,
            "samples": len(setup.source),
            "test_samples": len(setup.test) if setup.test is not None else 0,
            "parameters": sum(p.numel() for p in trainable(setup.module).values()),
        },
        "moving_buffers": {
            "owner": "mean over chunks" if plan.traits.keeps_step else "shard 0, the last push wins",
            "names": setup.probe.moving,
        },
        "data_fingerprint": setup.source.fingerprint(),
        "initial_sha256": setup.initial_sha256,
        "notes": setup.probe.notes,
        "machine": machine(),
        "model": outline(job, setup.module, setup.source) if kept else [],
    }


def life(setup: Setup, updates: int) -> dict[str, Any]:
    """What run.json says of the part of a run that begins after so many updates."""
    return {"plan": str(setup.plan), "updates": updates}


def _optimizer(setup: Setup) -> str:
    """The user's optimizer as one would write it, with what it is set to; of several groups, the first's settings."""
    module = setup.fresh_module()
    made = setup.job.make_optimizer(module, list(trainable(module).values()))
    settings = {key: value for key, value in made.param_groups[0].items() if key != "params" and value is not None}
    groups = f"{len(made.param_groups)} groups, first: " if len(made.param_groups) > 1 else ""
    return f"{type(made).__name__}({groups}{', '.join(f'{key}={value}' for key, value in settings.items() if value)})"


def finish(setup: Setup, outcome: Outcome, folder: RunFolder, record: dict[str, Any]) -> Run:
    """Evaluate the snapshots, outside the timed part; save; and make the run."""
    trace, agenda, device = outcome.trace, setup.agenda, setup.placement.devices[0]
    module = load_values(setup, outcome.values)
    if (model_file := folder.file("model.pt")) is not None:
        with writing(folder.path):
            torch.save(module.state_dict(), model_file)
    history: list[dict[str, float]] = []
    if setup.test is not None:
        with users_code("the training is done, but its evaluation", RunFailed):
            for updates, seconds, values in outcome.snapshots:
                found = evaluate(setup.job, load_values(setup, values()), setup.test, device)
                history.append({"updates": updates, "seconds": seconds, **found})
            found = evaluate(setup.job, module, setup.test, device)
            history.append({"updates": agenda.updates, "seconds": outcome.seconds, **found})
    last = history[-1] if history else {}
    samples = agenda.samples_until(agenda.updates)
    record = {**record, "status": "done", "history": history, "adds_up": outcome.adds_up or record["adds_up"]}
    record["summary"] = {
        "plan": str(setup.plan),
        "engine": setup.engine,
        "compute": setup.job.compute,
        "workers": setup.plan.workers,
        "epochs": setup.job.epochs,
        **summarise(trace, outcome.seconds, samples, agenda.updates, setup.plan.workers),
        "peak_memory": outcome.peak_memory,
        "core_wait_fraction": outcome.core_wait / max(outcome.seconds * setup.plan.workers, 1e-9),
        **{key: value for key, value in last.items() if key not in ("updates", "seconds")},
        "run": str(folder.path) if folder.path else None,
        "parameters_sha256": sha256(module),
    }
    folder.write(record)
    folder.tidy()
    _tell_of_crowding(setup.plan, record["summary"]["core_wait_fraction"])
    return Run(folder.path, trace, record, module, setup.job, history)


def _tell_of_crowding(plan: Plan, waited: float) -> None:
    cores, wanted = len(os.sched_getaffinity(0)), plan.workers * plan.threads
    if waited and wanted > cores:
        who = f"{plan.workers} workers" + (f" of {plan.threads} threads" if plan.threads > 1 else "")
        warnings.warn(
            f"{who} on {cores} core{'s' * (cores > 1)} took turns: for {waited:.0%} of their time they waited for one",
            CrowdedWarning,
            stacklevel=4,
        )
