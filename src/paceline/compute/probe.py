"""What must be known of a job before it is trained: which buffers move, and whether its loss is a mean over samples."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.compute.autograd import Replica
from paceline.compute.layout import trainable
from paceline.core.agenda import Agenda, Chunk
from paceline.data.order import Order
from paceline.data.source import Source
from paceline.errors import JobError
from paceline.job import Job

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}  # of the gradient's norm: rounding stays an order or two below


@dataclass(frozen=True)
class Probe:
    moving: tuple[str, ...]  # buffers that a training step changes
    notes: tuple[str, ...]  # for the user


def probe(job: Job, module: nn.Module, source: Source, parts: int = 1) -> Probe:
    """One batch forward and backward on a copy of the module, whole and in two chunks."""
    agenda = Agenda(len(source), min(job.batch_size, len(source)), 1, parts=2)
    order = Order(len(source), job.seed, job.shuffle)
    whole = Chunk(0, 0, 0, 0, agenda.batch_size, 1.0)
    twin = copy.deepcopy(module)
    replica = Replica(job, twin, ())
    before = {name: buffer.clone() for name, buffer in twin.named_buffers()}
    replica.backward(whole, source.batch(order.indices(whole), 0), 1.0)
    _refuse_sparse(replica)
    moving = tuple(
        name
        for name, buffer in twin.named_buffers()
        if buffer.shape == before[name].shape and not torch.equal(buffer, before[name])
    )
    replica.take()
    _smallest_chunk(job, module, source, parts)
    # Augmentation has its own chance in each chunk: the loss is asked about without it, where the model can do without.
    replica = Replica(job.with_(transform=None), twin, ())
    twin.eval()  # chunks have their own dropout and batch-norm statistics on purpose; the loss is what is asked about
    gap = 0.0
    with contextlib.nullcontext() if job.transform is None else contextlib.suppress(Exception):
        gap = _gap(
            _gradient(replica, source, order, [whole]),
            _gradient(replica, source, order, [c for c in agenda.chunks(0) if c.samples]),
        )
    notes = []
    if gap > TOLERANCE[job.precision]:
        notes.append(
            f"the loss is not a mean over samples: the gradient of one batch differs from the mean over its two halves "
            f"by {gap:.1%} (class weights, ignore_index, a sum, or pairs of samples?). Plans that split a batch train "
            "something slightly different from one process. Remedy: weight=f(batch), the number your loss divides by."
        )
    return Probe(moving, tuple(notes))


def _refuse_sparse(replica: Replica) -> None:
    for name, parameter in trainable(replica.module).items():
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise JobError(
                f"parameter {name} gets a sparse gradient (an embedding with sparse=True?), which no plan sends yet; "
                "make it dense: sparse=False, and a dense optimizer"
            )


def _smallest_chunk(job: Job, module: nn.Module, source: Source, parts: int) -> None:
    """The last batch of an epoch may leave a chunk of one sample, which batch normalisation refuses."""
    agenda = Agenda(len(source), job.batch_size, 1, job.accumulate, parts)
    smallest = min(agenda.filled(agenda.updates - 1), key=lambda chunk: chunk.samples)
    if smallest.samples > 1 or not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules()):
        return
    order = Order(len(source), job.seed, job.shuffle)
    try:
        with torch.no_grad():
            twin = copy.deepcopy(module)
            Replica(job, twin, ()).forward(twin, smallest, source.batch(order.indices(smallest), 0))
    except ValueError as error:
        raise JobError(
            f"the last batch of an epoch leaves a chunk of one sample, and the model refuses it ({error}); choose a "
            f"batch_size that divides the {len(source)} samples, or leaves a larger rest"
        ) from error


def _gradient(replica: Replica, source: Source, order: Order, chunks: list[Chunk]) -> list[Tensor | None]:
    total = 0.0
    for chunk in chunks:
        batch = source.batch(order.indices(chunk), 0)
        weight = replica.chunk_weight(chunk, batch)
        total += weight
        replica.backward(chunk, batch, weight)
    gradients = replica.take()
    return [None if g is None else g / total for g in gradients]


def _gap(one: list[Tensor | None], other: list[Tensor | None]) -> float:
    pairs = [(a.double(), b.double()) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    size = sum(float(a.square().sum()) for a, _ in pairs) ** 0.5
    gap = sum(float((a - b).square().sum()) for a, b in pairs) ** 0.5
    return gap / size if size > 0 else 0.0
