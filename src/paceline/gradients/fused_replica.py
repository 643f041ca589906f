"""Gradients from generated machine code: compute="fused", under any plan."""

from __future__ import annotations

import warnings
from functools import partial

import torch
from torch import Tensor, nn

from paceline.core.agenda import Chunk
from paceline.core.chance import mix
from paceline.data.source import Source
from paceline.errors import JobError, JobWarning, users_code
from paceline.gradients.loss import split_batch
from paceline.gradients.replica import Replica, take_gradients
from paceline.jobs.job import Batch, Job
from paceline.kernels import Fused, NoCompiler, fuse, fuse_ranks
from paceline.kernels.graph import describe
from paceline.kernels.losses import loss_kind
from paceline.kernels.ranks import own_rank

FusedNetwork = Fused  # a network with its optimizer, of this process or of all ranks of an MPI program


class FusedGradients:
    """Computes gradients by code that was generated for the module, on the device where the module is."""

    def __init__(self, job: Job, module: nn.Module) -> None:
        assert job.loss is not None
        self.fused = fuse(module, job.loss, None, job.batch_size, threads=torch.get_num_threads())
        self.names = {id(p): name for name, p in module.named_parameters()}

    def backward(self, replica: Replica, chunk: Chunk, batch: Batch, weight: float) -> float:
        (x,), y = split_batch(replica.prepared(chunk, batch))
        seed = mix(replica.job.seed, chunk.update, chunk.number) & (2**63 - 1)
        loss, gradients = self.fused.loss_and_gradients(x, y, seed)
        for parameter in replica.parameters:
            gradient = gradients.get(self.names[id(parameter)])
            if gradient is None:
                continue
            if parameter.grad is None:
                parameter.grad = torch.mul(gradient, weight)
            else:
                parameter.grad.add_(gradient, alpha=weight)
        return loss

    def take(self, replica: Replica) -> list[Tensor | None]:
        return take_gradients(replica.parameters)


def by_one(job: Job, module: nn.Module) -> FusedNetwork:
    """Return the network with its optimizer, as this process trains it alone."""
    assert job.loss is not None
    return fuse(module, job.loss, partial(job.make_optimizer, module), job.batch_size * job.accumulate)


def by_ranks(job: Job, module: nn.Module) -> FusedNetwork:
    """Return the network as all ranks of an MPI program train it: on the CPU, or each on a GPU."""
    assert job.loss is not None
    where = torch.device(job.device)
    if where.type == "cuda":
        module.to(where if where.index is not None else torch.device("cuda", own_rank() % torch.cuda.device_count()))
    return fuse_ranks(module, job.loss, partial(job.make_optimizer, module), job.batch_size * job.accumulate)


def fused_if_possible(job: Job, module: nn.Module, source: Source, native: bool) -> Job:
    """Return the job where its network has kernels; without a compiler, a job whose gradients PyTorch computes.

    Raise `JobError` for a network without kernels, before anything is started. The kernels are compiled here, so that
    workers find them in the cache.
    """
    if native:
        raise JobError("plan ddp is PyTorch's own, autograd included; compute='fused' goes with every other plan")
    if job.loss is None:
        raise JobError(
            "compute='fused' needs loss=, since it reads it instead of running it; step= is compute='autograd'"
        )
    if job.precision != "float32":
        raise JobError(f"compute='fused' computes in the model's own precision, not in {job.precision}")
    with users_code("the first batch"):
        batch = source.batch(torch.arange(min(len(source), 2)), 0)
        if job.transform is not None:
            batch = job.transform(batch)
        inputs, _ = split_batch(batch)
    if len(inputs) != 1 or not isinstance(inputs[0], torch.Tensor):
        raise JobError("compute='fused' takes one tensor as the network's input; compute='autograd' takes any")
    if job.device != "cpu":  # whose kernels the workers make, since this process keeps away from the GPU
        loss_kind(job.loss)
        describe(module, tuple(inputs[0].shape[1:]), not inputs[0].is_floating_point())
        return job
    try:
        fuse(module, job.loss, None, job.batch_size).prepare(inputs[0])
    except NoCompiler as error:
        warnings.warn(f"{error}; this run does", JobWarning, stacklevel=4)
        return job.with_(compute="autograd")
    return job
