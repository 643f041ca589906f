"""What a plan refuses of a job before the first update."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from paceline.algorithms.agenda import Agenda
from paceline.errors import JobError, JobWarning, PlanError
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.plan import Plan
from paceline.plans.recipe import refuse_tables
from paceline.training.data.sampled import SampledSource
from paceline.training.data.source import Source
from paceline.training.gradients.probe import Probe
from paceline.training.jobs.job import Job
from paceline.training.jobs.several import nested
from paceline.training.parameters.layout import trainable
from paceline.training.parameters.shard_version import state_shapes
from paceline.training.stages.blueprint import Blueprint
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
        least[kind] = min(least.get(kind, parameter), parameter, key=nn.Parameter.numel)
    state_shapes(list(least.values()), optimizer)


def refuse_stages(
    pipeline: Pipeline, module: nn.Module, optimizer: torch.optim.Optimizer, blueprint: Blueprint
) -> None:
    """Raise for stages, or an optimizer, with which a pipeline's versions of weights cannot be kept."""
    if blueprint.predicts:
        check_momentum(optimizer)
    holdings, names = blueprint.holdings(module), trainable(module).keys()
    if pipeline.spread.server is not None and not all(names & set(held) for held in holdings):
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
