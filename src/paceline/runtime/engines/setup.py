"""The setup that every engine needs before the first update: everything that can be refused is refused here."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.schedules import Table
from paceline.errors import JobWarning, PlanError, users_code
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.plan import Plan
from paceline.runtime.engines.devices import Placement, place
from paceline.runtime.engines.dividing import Draft, divided
from paceline.runtime.engines.notes import notes_of
from paceline.runtime.engines.refusals import (
    refuse_changes,
    refuse_data,
    refuse_nested,
    refuse_parts,
    refuse_sparse,
    refuse_state,
)
from paceline.runtime.engines.signals import termination
from paceline.runtime.engines.workers.channels import NO_CHANNELS, Channels
from paceline.runtime.engines.workers.forkserver import nameless_main, prepare
from paceline.runtime.links.store_order import require_store_order
from paceline.training.data.opening import open_source
from paceline.training.data.order import Order
from paceline.training.data.source import Source
from paceline.training.gradients.choice import Choice, choose
from paceline.training.gradients.evaluate import rehearse
from paceline.training.gradients.first_batch import hint
from paceline.training.gradients.fused_replica import fused_if_possible
from paceline.training.gradients.probe import Probe, probe
from paceline.training.jobs.job import Job
from paceline.training.jobs.separate import with_state_of
from paceline.training.jobs.threads import threads
from paceline.training.operators.planning import OperatorBlueprint
from paceline.training.parameters.epoch_schedule import EveryEpoch, follows_loss
from paceline.training.parameters.layout import Layout, check_trainable, lay_out, sha256, trainable
from paceline.training.parameters.sparse_tables import check_optimizer
from paceline.training.splits.gradients import SplitBlueprint
from paceline.training.stages.blueprint import Blueprint

#: What a worker takes at least, beside the memory that all workers share.
PROCESS_BYTES = 30 << 20


@dataclass
class Setup:
    """A job that can be trained by a plan on an engine."""

    job: Job  # as the engines train it: with the device, the schedule and the rules that hold under this plan
    users_job: Job  # as it was passed in; whatever is set up again starts from it
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
    figures: tuple[str, ...] = ()  # the names that an evaluation gives, as far as a few samples show them
    blueprint: Blueprint | None = None  # only under plans that cut the model into stages
    split: SplitBlueprint | None = None  # only under plans that split layers
    operators: OperatorBlueprint | None = None  # only under plans whose workers hold operators
    channels: Channels = NO_CHANNELS
    choice: Choice | None = None  # only where compute="auto" has made one

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
        """Return the table of these updates, each of so many micro-batches, with a norm agreement if one is needed."""
        assert self.pipeline is not None
        table = self.pipeline.table(self.plan.workers, counts)
        return table.agreeing() if self.blueprint is not None and self.blueprint.agrees else table

    @property
    def pipeline(self) -> Pipeline | None:
        """The plan's method, where it cuts the model into stages."""
        # A typed view, so that what works with stages need not ask again.
        return self.plan.method if isinstance(self.plan.method, Pipeline) else None

    def order(self) -> Order:
        """The order in which samples are drawn."""
        return Order(len(self.source), self.job.seed, self.job.shuffle, self.agenda.cuts)

    def anew(self) -> Setup:
        """The set-up with the user's functions in the state that they have before the first update."""
        return replace(self, job=with_state_of(self.job, self.users_job))

    def tested(self) -> Setup:
        """The set-up of a rank that evaluates the model, of one that did not."""
        users, job = self.users_job, self.job
        if users.test is None or self.test is not None:
            return self
        job = job.with_(
            test=users.test, metrics=users.metrics, evaluate=users.evaluate, evaluate_every=users.evaluate_every
        )
        test = open_source(job.test, job.seed, "test")
        return replace(self, job=job, test=test, figures=rehearse(job, self.module, test, self.placement.devices[0]))

    def fresh_module(self) -> nn.Module:
        """A module as it is before the first update."""
        import copy

        return copy.deepcopy(self.module)


def set_up(
    job: Job, plan: Plan, engine: str, limit: int | None = None, tested: bool = True, bounded: bool = False
) -> Setup:
    """Make the model, open the data, probe the loss and prove the table. Raise what can be refused before the start.

    Without `tested`, the model is not evaluated here, but by another rank. `bounded`: of a stream without a length, the
    first epoch has at most as many samples as there are in `limit` updates, so that it may be endless.
    """
    termination.check()  # a job can lose an interrupt
    users_job, job = job, with_state_of(job if tested else job.untested(), job)
    if engine == "local":
        require_store_order("the local engine")
        _refuse_crowd(plan)
        with nameless_main():
            prepare()  # it loads its modules while the job is probed
    if job.compute == "fused" and job.device == "auto":
        job = job.with_(device="cpu")
    placement = place(job, plan, together=engine != "local")
    job = _check_loss_rules(job, plan, engine)
    most = limit * job.batch_size * job.accumulate_grad_batches if limit and bounded else None
    source = open_source(job.data, job.seed, most=most)
    refuse_data(job, plan, source)
    if source.arranged:
        job = job.with_(shuffle=False)
    test = open_source(job.test, job.seed, "test") if job.test is not None else None
    module = job.make_model()
    check_trainable(module)
    optimizer = job.make_optimizer(module, list(trainable(module).values()))  # refuse early what cannot be shared
    refuse_nested(plan, optimizer)
    agenda = plan.agenda(len(source), job.batch_size, job.epochs, job.accumulate_grad_batches, limit)
    choice = None
    if job.compute == "auto":
        with threads(plan.threads), users_code("the first batch", hint=hint), torch.random.fork_rng(devices=[]):
            batches = agenda.updates * job.accumulate_grad_batches
            choice = choose(job, module, source, batches, _refused(plan, engine, placement))
        job = job.with_(compute=choice.compute)
    elif job.compute == "fused":
        job = fused_if_possible(job, users_job, module, source, not plan.traits.traced)
    probed = _probed(job, users_job, plan, engine, module, optimizer, source, agenda, placement)
    for note in probed.notes:
        warnings.warn(note, JobWarning, stacklevel=3)
    refuse_parts(plan, agenda)
    job = _by_epochs(job, plan, optimizer, agenda, engine)
    figures = rehearse(job, module, test, placement.devices[0]) if test is not None and engine != "replay" else ()
    layout = lay_out(module, plan.shards, probed.moving)
    plan = plan.fitted(len(layout.shards))
    plan.check_fragments(len(trainable(module)))
    plan.method.prove(plan.workers)
    parts = divided(Draft(job, plan, module, optimizer, source, agenda, probed, layout))
    if parts.blueprint is not None:
        plan = plan.cut_at(parts.blueprint.names)
    setup = Setup(
        job, users_job, plan, source, test, module, probed, agenda, layout, placement, sha256(module), engine, limit,
        figures, *parts, choice,
    )  # fmt: skip
    return setup.anew()


def _refuse_crowd(plan: Plan) -> None:
    """Refuse more processes than this machine's memory can hold, however small the model is."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if plan.workers * PROCESS_BYTES > memory:
        raise PlanError(
            f"workers={plan.workers}: each is a process of at least {PROCESS_BYTES >> 20} MB, and this machine has "
            f"{memory >> 30} GB; give fewer workers, or see `paceline simulate`, which needs no processes"
        )


def _probed(
    job: Job,
    users_job: Job,
    plan: Plan,
    engine: str,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: Source,
    agenda: Agenda,
    placement: Placement,
) -> Probe:
    """Compute the first batch, and raise for what the plan cannot do with the parameters and their optimizer."""
    traits = plan.traits
    with users_code("the first batch", hint=hint):
        by_rows = traits.takes_sparse and traits.optimizer_at_server
        probed = probe(job, module, source, agenda, by_rows, placement.devices[0], users_job)
    refuse_changes(plan, module, probed)
    if probed.tables:
        refuse_sparse(plan, engine, probed.tables)
        check_optimizer(optimizer, module, probed.tables, traits.optimizer_at_server)
    refuse_state(plan, module, optimizer, probed)
    return replace(probed, notes=(*probed.notes, *notes_of(job, plan, agenda, engine)))


def _refused(plan: Plan, engine: str, placement: Placement) -> str:
    """Return why compute="auto" leaves a plan to PyTorch; empty where it depends on the job."""
    if not (plan.traits.traced and plan.traits.whole_model):
        return f"plan {plan.name} computes by PyTorch's autograd"
    if placement.devices[0].type != "cpu":
        return "it is measured on the CPU only; compute='fused' takes generated code on a GPU, too"
    if engine not in ("local", "virtual"):
        return f"nodes of engine {engine} could come to different results; compute='fused' takes it on all of them"
    return ""


def _check_loss_rules(job: Job, plan: Plan, engine: str) -> Job:
    """Return the job without the check for NaN if the plan does not make it; raise for what the plan cannot do."""
    traits = plan.traits
    if job.on_nan == "skip" and traits.cannot_skip:
        raise PlanError(f"plan {plan.name} cannot honour on_nan='skip': {traits.cannot_skip}")
    if job.gradient_clip_norm is not None and traits.cannot_clip:
        raise PlanError(
            f"plan {plan.name} cannot honour gradient_clip_norm={job.gradient_clip_norm}: {traits.cannot_clip}"
        )
    if job.precision == "16-mixed" and traits.cannot_scale:
        raise PlanError(
            f"plan {plan.name} cannot scale the loss as precision='16-mixed' needs it: {traits.cannot_scale}; use "
            "precision='bf16-mixed', or a plan such as ring or downpour"
        )
    unchecked = not traits.checks_finite or (engine == "replay" and job.on_nan == "stop")
    return job.with_(on_nan="ignore") if unchecked else job


def _by_epochs(job: Job, plan: Plan, optimizer: torch.optim.Optimizer, agenda: Agenda, engine: str) -> Job:
    """Return the job with a schedule that counts updates, where the user's steps by epochs; raise where it cannot."""
    if job.lr_scheduler is None:
        return job
    by_epoch = job.lr_scheduler_interval == "epoch"
    plateau = follows_loss(job.lr_scheduler, optimizer, job.epochs if by_epoch else agenda.updates)
    if plateau and (not plan.traits.knows_loss or engine == "mpi"):
        raise PlanError(
            f"ReduceLROnPlateau follows the loss of whole batches, which no worker of plan {plan.name} "
            f"{'on engine mpi ' * (engine == 'mpi')}knows; use a plan that sums gradients (ring, tree, "
            "central), sequential, or a schedule that counts, such as torch.optim.lr_scheduler.CosineAnnealingLR"
        )
    if plateau or by_epoch:
        return job.with_(lr_scheduler=EveryEpoch(job.lr_scheduler, agenda.updates_per_epoch))
    return job
