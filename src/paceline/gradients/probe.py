"""Probing a job before it is trained: which buffers change, which gradients are sparse, and whether the loss is a mean
over samples.
"""

from __future__ import annotations

import contextlib
import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.core.agenda import Agenda, Chunk
from paceline.data.order import Order
from paceline.data.source import Source
from paceline.errors import JobError
from paceline.gradients.replica import CPU, Replica
from paceline.jobs.job import Job
from paceline.parameters.layout import trainable
from paceline.parameters.rows import numbers
from paceline.parameters.sparse_tables import advice, sparse_names

# Of the gradient's norm: rounding stays an order or two below.
TOLERANCE = {"32-true": 1e-3, "bf16-mixed": 0.1, "16-mixed": 0.05}


@dataclass(frozen=True)
class Probe:
    """The findings of `probe`."""

    moving: tuple[str, ...]  # buffers that a training step changes
    tables: tuple[str, ...]  # parameters whose gradient is sparse: some rows
    restless: tuple[str, ...]  # parameters that the model itself changes while it computes
    notes: tuple[str, ...]  # for the user


def probe(
    job: Job, module: nn.Module, source: Source, parts: int = 1, by_rows: bool = False, device: torch.device = CPU
) -> Probe:
    """Run one batch forward and backward on a copy of the module, whole and in two chunks.

    `by_rows` says that the plan would gain from sparse gradients.
    """
    agenda = Agenda(len(source), min(job.batch_size, len(source)), 1, parts=2)
    order = Order(len(source), job.seed, job.shuffle)
    whole = Chunk(0, 0, 0, 0, agenda.batch_size, 1.0)
    copied = copy.deepcopy(module)
    replica = Replica(job, copied.train(), (), device)
    before = {name: buffer.clone() for name, buffer in copied.named_buffers()}
    original = dict(copied.named_buffers())
    writes = {name: parameter._version for name, parameter in trainable(copied).items()}
    loss = replica.forward(copied, whole, source.batch(order.indices(whole), 0))
    _check_loss(loss)
    loss.backward()
    tables, notes = sparse_names(copied), advice(copied) if by_rows else []
    moving = tuple(
        name
        for name, buffer in copied.named_buffers()
        if buffer.shape == before[name].shape and not torch.equal(buffer, before[name])
    )
    for name in moving:
        if dict(copied.named_buffers())[name] is not original[name]:
            raise JobError(
                f"the model puts another tensor in the place of its buffer {name}, which other "
                "workers would not see; change the buffer in place, as by .copy_() or .mul_()"
            )
    restless = tuple(name for name, parameter in trainable(copied).items() if parameter._version != writes[name])
    replica.take()
    _smallest_chunk(job, module, source, parts, device)
    # Augmentation draws by chunk, so the loss is checked without it, where the model can do without.
    replica = Replica(job.with_(batch_transform=None), copied, (), device)
    copied.eval()  # chunks have their own dropout and batch-norm statistics on purpose; only the loss is checked
    gap = drawn = 0.0
    with contextlib.nullcontext() if job.batch_transform is None else contextlib.suppress(Exception):
        gap = _gap(
            _gradient(replica, source, order, [whole]),
            _gradient(replica, source, order, [c for c in agenda.chunks(0) if c.samples]),
        )
    if gap > TOLERANCE[job.precision]:  # also where the model draws numbers in evaluation, which tells nothing
        again = [_gradient(replica, source, order, [whole._replace(number=number)]) for number in range(2)]
        drawn = _gap(*again)
    if gap > TOLERANCE[job.precision] and drawn <= TOLERANCE[job.precision]:
        notes.append(
            f"the loss is not a mean over samples: the gradient of one batch differs from the mean over its two halves "
            f"by {gap:.1%} (class weights, ignore_index, a sum, or pairs of samples?). Plans that split a batch train "
            "something slightly different from one process. Remedy: loss_denominator=f(batch), the number that your "
            "loss divides by."
        )
    return Probe(moving, tables, restless, tuple(notes))


def _check_loss(loss: object) -> None:
    if not isinstance(loss, Tensor):
        raise JobError(f"the loss is a {type(loss).__name__}, not a tensor: nothing can be derived from it")
    if loss.numel() != 1:
        raise JobError(
            f"the loss is a tensor of shape {tuple(loss.shape)}, not one number; take its mean, as by reduction='mean'"
        )
    if not loss.requires_grad:
        raise JobError("the loss has no gradient: it depends on no parameter of the model, or was detached from them")


def _smallest_chunk(job: Job, module: nn.Module, source: Source, parts: int, device: torch.device) -> None:
    """Raise `JobError` if the last batch of an epoch leaves one sample, which batch normalisation refuses."""
    agenda = Agenda(len(source), job.batch_size, 1, job.accumulate_grad_batches, parts)
    smallest = min(agenda.filled(agenda.updates - 1), key=lambda chunk: chunk.samples)
    if smallest.samples > 1 or not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules()):
        return
    order = Order(len(source), job.seed, job.shuffle)
    try:
        with torch.no_grad():
            copied = copy.deepcopy(module)
            replica = Replica(job, copied.train(), (), device)
            replica.forward(copied, smallest, source.batch(order.indices(smallest), 0))
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
    size = _norm([a for a, _ in pairs])
    return _norm([a - b for a, b in pairs]) / size if size > 0 else 0.0


def _norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(numbers(t).square().sum()) for t in tensors))
