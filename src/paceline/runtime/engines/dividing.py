"""Dividing a model before the start: stages, parts of layers or operators, and the memory that these will take."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from paceline.algorithms.agenda import Agenda, Chunk
from paceline.algorithms.dataflow import Instances
from paceline.algorithms.schedules import Table, passes
from paceline.algorithms.schedules.proof import prove_table
from paceline.errors import PlanError
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.methods.split_layers import Dataflow, SplitLayers
from paceline.plans.plan import Plan
from paceline.runtime.engines.refusals import refuse_stages
from paceline.runtime.engines.workers.arena import NO_CHANNELS, Channels, mail_between, mail_of
from paceline.training.data.source import Order, Reader, Source
from paceline.training.gradients.probe import Probe
from paceline.training.jobs.job import Job, threads
from paceline.training.operators.planning import OperatorBlueprint, operator_blueprint
from paceline.training.parameters.layout import Layout
from paceline.training.splits.gradients import STAGES as FUSED_STAGES
from paceline.training.splits.gradients import SplitBlueprint
from paceline.training.splits.planning import check_parts, peaks_of_parts, split_blueprint
from paceline.training.splits.stages import bytes_sent, with_parts
from paceline.training.stages.cutting import Blueprint
from paceline.training.stages.memory_estimate import needed, weigh_all
from paceline.training.stages.planning import CutRequest, agrees, blueprint, examples_of

#: Updates of a table without an end that are proved: what follows repeats itself.
PROVED_UPDATES = 200
#: Instances of a dataflow whose graphs are recorded before the start.
RECORDED_INSTANCES = 16


class Draft(NamedTuple):
    """A job that is set up but for the division of its model."""

    job: Job
    plan: Plan
    module: nn.Module
    optimizer: torch.optim.Optimizer
    source: Source
    agenda: Agenda
    probe: Probe
    layout: Layout


class Divided(NamedTuple):
    """What was made of the model; nothing where every worker holds all of it."""

    blueprint: Blueprint | None = None
    split: SplitBlueprint | None = None
    operators: OperatorBlueprint | None = None
    channels: Channels = NO_CHANNELS


def divided(draft: Draft) -> Divided:
    """Divide the model as the plan says, with proof and rehearsal; raise for what cannot be divided."""
    divide = DIVIDE.get(draft.plan.traits.holds)
    return divide(draft, draft.plan.method) if divide else Divided()


def _split(draft: Draft, method: SplitLayers) -> Divided:
    """Derive, prove and rehearse what the workers of a group compute together."""
    job, plan, module, optimizer, source, agenda, probe, layout = draft
    check_parts(optimizer, module)
    if job.compute != "autograd" and method.stage not in FUSED_STAGES:
        raise PlanError(
            f"plan {plan.name} computes parts of layers by PyTorch's autograd, not by {job.compute!r}, which takes a "
            "whole network; zero:stage=1 and zero:stage=2 have it whole"
        )
    examples = examples_of(job, source, agenda)
    workers = method.mesh(plan.workers).size("inside")
    with threads(plan.threads):
        by_autograd = job.with_(compute="autograd")
        split = split_blueprint(by_autograd, module, examples, probe.moving, workers, method.recipe, method.stage)
        if method.memory:
            chunks = chunks_each(plan, agenda)
            check_fit(method.memory, peaks_of_parts(by_autograd, module, split, examples[0], chunks), PARTS)
        return Divided(split=split, channels=Channels(parts=split.bytes_sent(layout)))


def _operators(draft: Draft, method: Dataflow) -> Divided:
    """Place the operators."""
    job, plan, module, _, source, agenda, probe, _ = draft
    if job.compute != "autograd":
        raise PlanError(f"plan {plan.name} computes operators by PyTorch's autograd, not by {job.compute!r}")
    if job.lr_scheduler is not None:
        raise PlanError(
            f"plan {plan.name}: each operator counts its own updates, and lr_scheduler= those of the whole model; "
            "leave it out"
        )
    if job.evaluate_every is not None and job.evaluate_every % agenda.updates_per_epoch:
        raise PlanError(
            f"plan {plan.name}: messages are under way except at the end of an epoch, of {agenda.updates_per_epoch} "
            f"updates; evaluate_every={job.evaluate_every} is no multiple of it"
        )
    instances, order = Instances(agenda), Order(len(source), job.seed, job.shuffle, agenda.cuts)
    chunks = [instances.chunk(number) for number in range(min(RECORDED_INSTANCES, instances.passes[0]))]
    examples = [(chunk, source.batch(order.indices(chunk), chunk.epoch)) for chunk in chunks]
    with threads(plan.threads):
        placed = operator_blueprint(job, module, examples, probe.moving, plan.workers, method.on, plan.name)
    return Divided(operators=placed, channels=Channels(tuple(mail_between(placed, plan.workers)), sums=False))


def _cut(draft: Draft, pipeline: Pipeline) -> Divided:
    """Prove the tables, then cut the model for them."""
    job, plan, module, optimizer, source, agenda, probe, layout = draft
    span, replicas = pipeline.schedule.span, pipeline.together
    if pipeline.spread.inside > 1:
        check_parts(optimizer, module)
    if job.compute != "autograd":
        raise PlanError(f"plan {plan.name} computes stages by PyTorch's autograd, not by compute={job.compute!r}")
    stop = min(agenda.updates, agenda.updates_per_epoch * max(1, span))  # what follows repeats itself
    kinds = {
        passing.counts[:PROVED_UPDATES]
        for replica in range(replicas)
        for passing in passes(span, agenda, 0, stop, replica, replicas)
    }
    if any(0 in counts for counts in kinds):
        raise PlanError(
            f"the last batch of an epoch has fewer samples than plan {plan.name} has replicas, {replicas}; give a "
            "batch_size that divides the data, or less data="
        )
    for counts in kinds:
        table = pipeline.table(plan.workers, counts)
        prove_table(table.agreeing() if agrees(job) else table)
    examples = examples_of(job, source, agenda)
    cuts = CutRequest(
        tuple(pipeline.cuts.split("+") if pipeline.cuts else ()),
        table.stages,
        pipeline.balance,
        probe.moving,
        parameters=pipeline.spread.server is not None,
    )
    with threads(plan.threads):
        stages = blueprint(
            job, module, examples, table, cuts, pipeline.recomputing(plan.workers), flushes=pipeline.flushes
        )
        spread = pipeline.spread
        if spread.inside > 1:
            stages = with_parts(job, module, stages, examples, spread.recipe, spread.inside)
        refuse_stages(pipeline, module, optimizer, stages)
        if pipeline.memory:
            check_fit(pipeline.memory, peaks_of(job, module, source, stages, examples[0][0], table), STAGES)
    mail = tuple(mail_of(stages, spread.data * spread.inside))
    sent = bytes_sent(stages, layout) if spread.inside > 1 else 0
    return Divided(stages, channels=Channels(mail, sent, pipeline.together > 1))


#: What divides a model, by what workers hold of it.
DIVIDE: dict[str, Callable[[Draft, Any], Divided]] = {"stages": _cut, "parts": _split, "operators": _operators}


# The memory that workers with a part of the model will take, estimated before one is started.

MIB = 1 << 20
STAGES = "more workers or smaller micro-batches, recompute=all, or balance=memory"
PARTS = "more workers, a smaller batch_size, or another split"


def peaks_of(
    job: Job, module: nn.Module, source: Source, blueprint: Blueprint, chunk: Chunk, table: Table
) -> list[int]:
    """Estimate the peak of each worker's own memory in bytes, if all micro-batches are like this one."""
    reader = Reader(source, Order(len(source), job.seed, job.shuffle), 0, lambda _: None)
    return needed(table, weigh_all(job, module, blueprint, reader, chunk))


def chunks_each(plan: Plan, agenda: Agenda) -> int:
    """Return how many chunks of an update a worker of split layers takes part in, at most."""
    return -(-len(agenda.filled(0)) // plan.parts)


def check_fit(bound: int, peaks: Sequence[int], remedy: str) -> None:
    """Raise `PlanError` where a worker would take more memory than the plan's bound in MiB."""
    worst = max(range(len(peaks)), key=peaks.__getitem__)
    if peaks[worst] > bound * MIB:
        raise PlanError(
            f"worker {worst} would take {math.ceil(peaks[worst] / MIB)} MiB for its tensors, and "
            f"memory={bound}; all workers: {in_mib(peaks)}. Take {remedy}"
        )


def in_mib(peaks: Sequence[int]) -> str:
    """List bytes as MiB, rounded up."""
    return ", ".join(str(math.ceil(each / MIB)) for each in peaks)
