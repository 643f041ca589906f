"""The setup that every engine needs before the first update: everything that can be refused is refused here."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from paceline.algorithms.agenda import Agenda
from paceline.algorithms.schedules import Table
from paceline.errors import JobError, JobWarning, PlanError, users_code
from paceline.plans.methods.pipeline import Pipeline
from paceline.plans.plan import Plan
from paceline.runtime.engines.dividing import Draft, chunks_each, divided, in_mib, peaks_of
from paceline.runtime.engines.refusals import (
    notes_of,
    refuse_changes,
    refuse_data,
    refuse_nested,
    refuse_parts,
    refuse_sparse,
    refuse_state,
)
from paceline.runtime.engines.signals import termination
from paceline.runtime.engines.workers.arena import NO_CHANNELS, Channels
from paceline.runtime.engines.workers.process import nameless_main, prepare
from paceline.runtime.links.memory import require_store_order
from paceline.training.data.opening import open_source
from paceline.training.data.source import Order, Source
from paceline.training.gradients.choice import Choice, choose
from paceline.training.gradients.device_gradients import DeviceGradients, ScaledAutograd
from paceline.training.gradients.evaluate import rehearse
from paceline.training.gradients.fused_replica import FusedGradients, fused_if_possible
from paceline.training.gradients.loss import hint
from paceline.training.gradients.probe import Probe, probe
from paceline.training.gradients.replica import AUTOGRAD, CPU, GradientMethod, Replica
from paceline.training.jobs.job import Job, threads
from paceline.training.jobs.pickling import with_state_of
from paceline.training.operators.planning import OperatorBlueprint
from paceline.training.parameters.layout import Layout, check_trainable, lay_out, sha256, trainable
from paceline.training.parameters.optimizers import EveryEpoch, follows_loss
from paceline.training.parameters.rows import check_optimizer
from paceline.training.splits.gradients import SplitBlueprint
from paceline.training.splits.planning import peaks_of_parts
from paceline.training.stages.cutting import Blueprint
from paceline.training.stages.planning import examples_of

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
    # What the probe and the rehearsals change in the user's objects must not reach the training.
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
    with threads(plan.threads):  # as workers compute: more would wait for each other on cores that others keep busy
        probed = _probed(job, users_job, plan, engine, module, optimizer, source, agenda, placement)
    for note in probed.notes:
        warnings.warn(note, JobWarning, stacklevel=3)
    refuse_parts(plan, agenda)
    job = _by_epochs(job, plan, optimizer, agenda, engine)
    with threads(plan.threads):
        figures = rehearse(job, module, test, placement.devices[0]) if test is not None and engine != "replay" else ()
    layout = lay_out(module, plan.shards, probed.moving)
    plan = plan.fitted(len(layout.shards))
    plan.check_fragments(len(trainable(module)))
    # Before the model is divided, which takes longer: a table that would deadlock is refused at once.
    plan.method.prove(plan.workers)
    parts = divided(Draft(job, plan, module, optimizer, source, agenda, probed, layout))
    if parts.blueprint is not None:
        plan = plan.cut_at(parts.blueprint.names)
    return Setup(
        job, users_job, plan, source, test, module, probed, agenda, layout, placement, sha256(module), engine, limit,
        figures, *parts, choice,
    ).anew()  # fmt: skip


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


# Placement: where each worker computes, where its parameters are stored, and what sums gradients.
#
#     device=       GPUs       parameters are stored         gradients are summed
#     cpu           any        in shared memory              by table
#     auto, cuda    one each   on the GPU                    by NCCL's all_reduce, in plans whose table adds all up
#     auto, cuda    shared     in shared memory; the module  by table, or at the server
#                              computes on the GPU
#
# Plans with a server, and plans whose workers mix with neighbours or follow a coordinator, always store parameters in
# shared memory. Workers that exchange nothing store them where they compute. Stages of a pipeline compute on the CPU.


@dataclass(frozen=True)
class Placement:
    """The devices of a plan's workers."""

    #: The device of each worker.
    devices: tuple[torch.device, ...]
    #: Whether parameters are stored on the device that computes with them.
    on_device: bool
    #: The library that sums gradients if no table does: nccl or gloo.
    library: str = ""

    def stored_on(self, worker: int) -> torch.device:
        """Return the device that a worker's parameters are stored on."""
        return self.devices[worker] if self.on_device else CPU

    def replica(self, worker: int, job: Job, module: nn.Module, moving: tuple[str, ...]) -> Replica:
        """Return a worker's replica, whose gradients are computed on its device."""
        device = self.devices[worker]
        make_deterministic(device)
        if self.on_device:
            return _replica_on(device, job, module, moving)
        host = list(trainable(module).values())
        # The module of the host keeps its parameters in shared memory, where the others read them.
        device_replica = _replica_on(device, job, copy.deepcopy(module), moving)
        return Replica(job, module, moving, gradients=DeviceGradients(host, device_replica))

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys(map(str, self.devices)))


def _replica_on(device: torch.device, job: Job, module: nn.Module, moving: tuple[str, ...]) -> Replica:
    module = module.to(device)
    gradients: GradientMethod = AUTOGRAD
    if job.compute == "fused":
        gradients = FusedGradients(job, module)
    elif job.precision == "16-mixed":
        gradients = ScaledAutograd()
    replica = Replica(job, module, moving, device, gradients)
    if job.compile_options is not None:
        replica.compile(job.compile_options)
    return replica


ON_CPU = {"stages": "stages of a pipeline", "parts": "parts of a layer"}


def place(job: Job, plan: Plan, together: bool = False) -> Placement:
    """Place the workers of a plan: `cuda` distributes the GPUs, `cuda:1` is for all workers, `auto` takes GPUs if any.

    With `together` one process computes for all workers, with the arithmetic of workers that share a GPU.
    """
    kind = plan.traits.devices
    device = _of_parts(job.device, ON_CPU[kind]) if kind in ON_CPU else _wanted(job.device)
    if device.type == "cpu":
        return Placement((CPU,) * plan.workers, on_device=True, library="gloo" if kind == "native" else "")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise JobError(f"device={job.device!r}: this machine has {count} GPU{'s' * (count > 1)}, from cuda:0")
    numbers = [0 if together else n % count for n in range(plan.workers)] if device.index is None else None
    devices = tuple(torch.device("cuda", n) for n in numbers or [device.index or 0] * plan.workers)
    one_each = len(set(devices)) == plan.workers > 1
    if kind == "native":
        return Placement(devices, True, "nccl" if one_each else "gloo")
    # NCCL sums in an order of its own and sends whole gradients, so neither a codec nor a canonical order goes with it.
    if kind == "summed" and one_each and plan.codec is None and not plan.canonical:
        return Placement(devices, True, "nccl")
    return Placement(devices, on_device=kind == "alone")


def _of_parts(name: str, what: str) -> torch.device:
    """Return the CPU, since what workers exchange goes through shared memory; raise for any other device."""
    if name not in ("auto", "cpu"):
        raise JobError(f"device={name!r}: {what} are computed on the CPU; give device='cpu', or 'auto'")
    return CPU


def _wanted(name: str) -> torch.device:
    """Return the device that the job names, if this machine has it."""
    if name == "auto":
        return torch.device("cuda") if torch.cuda.is_available() else CPU
    try:
        device = torch.device(name)
    except RuntimeError:
        raise JobError(f"device={name!r} is no device; give cpu, cuda, cuda:1 and so on, or auto") from None
    if device.type not in ("cpu", "cuda"):
        raise JobError(f"device={name!r}: Paceline trains on the CPU and on CUDA's GPUs; give cpu, cuda, or auto")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise JobError(f"device={name!r}: this PyTorch finds no GPU here; device='cpu', or 'auto'")
    return device


def make_deterministic(device: torch.device) -> None:
    """Make a GPU compute the same numbers each time, as near to the CPU's as its float32 is."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


# The sentence about the memory of workers with a part of the model that `paceline draw --job` prints.


def memory_line(setup: Setup) -> str:
    """Say how much memory the workers of a pipeline, or of split layers, take for this job."""
    return f"For {setup.job.name}, workers take at most {in_mib(_peaks(setup))} MiB for their tensors."


def _peaks(setup: Setup) -> list[int]:
    if setup.split is not None:
        example = examples_of(setup.job, setup.source, setup.agenda)[0]
        return peaks_of_parts(setup.job, setup.module, setup.split, example, chunks_each(setup.plan, setup.agenda))
    assert setup.blueprint is not None
    assert setup.pipeline is not None
    chunks = setup.agenda.filled(0)
    chunk = max(chunks, key=lambda chunk: chunk.samples)
    table = setup.table((len(chunks),) * (setup.pipeline.schedule.span or setup.plan.workers))
    return peaks_of(setup.job, setup.module, setup.source, setup.blueprint, chunk, table)
