"""What a plan refuses of a job before the first update, and notes on what can be trained but was hardly meant."""

from __future__ import annotations

import os
import warnings

import torch
from torch import nn
from torch.nn import Module

from paceline.algorithms.agenda import Agenda
from paceline.errors import JobError, JobWarning, PlanError
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.plan import Plan
from paceline.plans.recipe import refuse_tables
from paceline.training.data.loader_sources import SampledSource
from paceline.training.data.source import Source
from paceline.training.gradients.probe import Probe
from paceline.training.jobs.job import Job
from paceline.training.jobs.several import nested
from paceline.training.parameters.layout import trainable
from paceline.training.parameters.shard_version import state_shapes
from paceline.training.stages.cutting import Blueprint
from paceline.training.stages.weight_versions import check_momentum


def refuse_data(job: Job, plan: Plan, source: Source) -> None:
    """Raise for data that cannot be divided as the plan divides it."""
    loader, traits = source.traits.batch_size, source.traits
    if traits.whole and plan.parts > 1:
        raise PlanError(
            f"plan {plan.name} divides every batch among its workers, and this loader makes whole batches "
            "(batch_size=None, or a batch_sampler whose batches differ in size); give the DataLoader a batch_size and "
            "a sampler, or use a plan whose workers take whole batches, such as downpour or ssp"
        )
    if loader is not None and job.batch_size != loader and (traits.whole or callable(job.data)):
        raise JobError(
            f"data= makes batches of {loader}, and the job has batch_size={job.batch_size}; give batch_size={loader}"
            + (": one update sees one batch of the loader's" if traits.whole else "")
        )
    if (
        traits.redraws
        and plan.agenda(len(source), job.batch_size, job.epochs, job.accumulate_grad_batches, None).data_parts
    ):
        raise PlanError(
            f"plan {plan} gives each worker a part of the data for the whole training, and a sampler or a stream has "
            "others in every epoch; use shuffle=True instead of a sampler, or another plan"
        )
    if isinstance(source, SampledSource) and job.epochs > 1:
        source.drawn(1)  # which has as many samples as the first, or raises


def refuse_parts(plan: Plan, agenda: Agenda) -> None:
    """Raise for fewer batches than the plan has parts of the data."""
    if agenda.data_parts > agenda.leases:
        raise PlanError(
            f"plan {plan} wants {agenda.data_parts} parts of the data, but there are only {agenda.leases} batches to "
            "share out; give fewer parts, or a smaller batch_size"
        )


def refuse_nested(plan: Plan, optimizer: torch.optim.Optimizer) -> None:
    """Raise for an optimizer that steps by others, whose state it does not have, where the plan moves that state."""
    if not plan.traits.uses_optimizer or not (kinds := nested(optimizer)):
        return
    says = (
        f"{type(optimizer).__name__} steps by optimizers of its own ({', '.join(kinds)}), and their state is not in "
        "its `state`, where Paceline looks for it"
    )
    remedy = (
        "let optimizer= return a list of optimizers, each with parameters of its own, or let them share one `state`"
    )
    if not (plan.traits.synchronous and plan.traits.whole_model):
        raise PlanError(f"{says}: plan {plan.name} cannot carry it from worker to worker; {remedy}")
    warnings.warn(f"{says}: a resumed run begins without it; {remedy}", JobWarning, stacklevel=4)


def refuse_state(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer, findings: Probe) -> None:
    """Raise for optimizer state that cannot lie in the memory of a server: of the least parameter of each kind."""
    if not plan.traits.optimizer_at_server or findings.tables:
        return  # tables have a check of their own
    group_of = {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
    least: dict[tuple[int, int], nn.Parameter] = {}
    for parameter in trainable(module).values():
        kind = group_of.get(id(parameter), -1), parameter.ndim
        # State is made to see its shapes, so of the smallest parameter: a large one's would take memory and time.
        least[kind] = min(least.get(kind, parameter), parameter, key=nn.Parameter.numel)
    state_shapes(list(least.values()), optimizer)


def refuse_stages(
    pipeline: Pipeline, module: nn.Module, optimizer: torch.optim.Optimizer, blueprint: Blueprint
) -> None:
    """Raise for stages, or an optimizer, with which a pipeline's versions of weights cannot be kept."""
    if blueprint.predicts:
        check_momentum(optimizer)
    holdings, names = blueprint.holdings(module), trainable(module).keys()
    if pipeline.spread.server is not None and not all(names & set(stage) for stage in holdings):
        raise PlanError("a stage without parameters has nothing for a shard to hold; cut the model elsewhere (cuts=)")


def refuse_changes(plan: Plan, module: nn.Module, findings: Probe) -> None:
    """Raise for parameters that the model itself changes, where the plan cannot follow it."""
    if findings.self_modified and plan.traits.shares_parameters:
        raise PlanError(
            f"the model itself changes parameter {findings.self_modified[0]} while it computes, and under plan "
            f"{plan.name} "
            "others read it meanwhile, or hold another; use sequential, or: of averaged weights, say that they are not "
            "trained, as by AveragedModel(net).requires_grad_(False); of an embedding, leave max_norm= out"
        )
    frozen = [name for name in findings.moving if name not in dict(module.named_buffers())]
    if frozen and not plan.traits.whole_model:
        raise PlanError(
            f"the model itself changes parameter {frozen[0]}, which requires no gradient, while it computes, and under "
            f"plan {plan.name} no worker has the whole model; make it a buffer, or use a plan such as ring or downpour"
        )


def refuse_sparse(plan: Plan, engine: str, tables: tuple[str, ...]) -> None:
    refuse_tables(plan.name, plan.options.get("codec"), tables[0])
    if engine in ("cluster", "ray"):
        raise PlanError(
            f"parameter {tables[0]} gets a sparse gradient (an embedding with sparse=True?), and several machines "
            "exchange dense ones; use sparse=False, or downpour or ssp on one machine, where only touched rows travel"
        )
    if not plan.traits.takes_sparse:
        raise PlanError(
            f"parameter {tables[0]} gets a sparse gradient (an embedding with sparse=True?), and plan {plan.name} "
            f"exchanges dense ones; use downpour or ssp, where only touched rows travel, or sparse=False"
        )


# Notes on a job and a plan that can be trained, but not as was probably meant.

CROWD = 8  # workers for each core


def notes_of(job: Job, plan: Plan, agenda: Agenda, engine: str) -> list[str]:
    """Return the notes on a job, its plan and the division of its batches."""
    return [*_unused(job, plan), *_untrained(job), *_small(job, agenda), *(_crowd(plan) if engine == "local" else [])]


def _unused(job: Job, plan: Plan) -> list[str]:
    """Note which settings of the job a coordinator does not use."""
    if plan.traits.uses_optimizer:
        return []
    unused = {"optimizer": True, "lr_scheduler": job.lr_scheduler is not None}
    names = ", ".join(f"{name}=" for name, is_set in unused.items() if is_set)
    return [f"plan {plan.name} makes its own steps, and evaluates a batch several times; it does not use {names}"]


def _untrained(job: Job) -> list[str]:
    """Note that a loss has parameters, which would stay as they are."""
    names = [name for name, p in job.loss.named_parameters() if p.requires_grad] if isinstance(job.loss, Module) else []
    if not names:
        return []
    return [
        f"loss= has parameters ({', '.join(names[:3])}) that are not trained: optimizer= gets those of the model; let "
        "the model hold the loss, and give step=lambda model, batch: model.loss(model(batch[0]), batch[1])"
    ]


def _small(job: Job, agenda: Agenda) -> list[str]:
    """Note that there are too few samples for a batch, or that a batch is too small for the workers."""
    samples = agenda.samples
    batch = min(job.batch_size, samples)
    notes = []
    if job.batch_size > samples:
        few = f"{samples} sample{'s' * (samples > 1)}"
        notes.append(f"batch_size={job.batch_size} is more than the {few}: an update sees all of them")
    if not all(chunk.samples for chunk in agenda.chunks(0)[: agenda.parts]):
        among = f"into {agenda.parts} chunks" if agenda.canonical else f"among {agenda.parts} workers"
        notes.append(
            f"a batch of {batch} sample{'s' * (batch > 1)} cannot be divided {among}: some "
            f"{'are empty' if agenda.canonical else 'have nothing to do'}"
        )
    return notes


def _crowd(plan: Plan) -> list[str]:
    """Note that there are so many workers that it takes long to start them."""
    cores = len(os.sched_getaffinity(0))
    if plan.workers <= CROWD * cores:
        return []
    return [
        f"{plan.workers} workers on {cores} core{'s' * (cores > 1)}: each is a process with its own PyTorch, and they "
        "take turns"
    ]
