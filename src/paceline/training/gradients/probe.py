"""Probing a job before it is trained: which buffers change, which gradients are sparse, and whether the loss is a mean
over samples.
"""

from __future__ import annotations

import contextlib
import copy
import math
import statistics
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Agenda, Chunk
from paceline.errors import JobError, users_code
from paceline.training.data.source import Order, Source
from paceline.training.gradients.loss import hint
from paceline.training.gradients.replica import CPU, Replica
from paceline.training.jobs.job import Job
from paceline.training.jobs.pickling import CALLED
from paceline.training.parameters.layout import not_trained
from paceline.training.parameters.rows import advice, numbers, sparse_names

# Of the gradient's norm, by the lowest precision in which it is computed: rounding stays an order or two below.
TOLERANCE = {torch.bfloat16: 0.1, torch.float16: 0.05, torch.float32: 1e-3}
ROUNDING = 16  # or so many machine epsilons of the parameters' type
DRAWS, FAR = 4, 2.0  # losses that are drawn, and the multiple of their range by which their means may differ


#: What a probe does not depend on.
BESIDE = ("epochs", "test", "metrics", "evaluate", "evaluate_every", "compute")


@dataclass(frozen=True)
class Probe:
    """The findings of `probe`."""

    moving: tuple[str, ...]  # buffers and frozen parameters that a training step changes
    tables: tuple[str, ...]  # parameters whose gradient is sparse: some rows
    self_modified: tuple[str, ...]  # parameters that the model itself changes while it computes
    some_unused: bool  # whether a parameter got no gradient
    notes: tuple[str, ...]  # for the user


#: What is known within `probing_once`, with the job, whose parts keep their identity as long as it lives.
_findings: ContextVar[dict[Any, tuple[Job, Any]] | None] = ContextVar("findings", default=None)
T = TypeVar("T")


@contextlib.contextmanager
def probing_once() -> Iterator[None]:
    """Probe a job once within the block, unless its batches are divided otherwise."""
    token = _findings.set(findings if (findings := _findings.get()) is not None else {})
    try:
        yield
    finally:
        _findings.reset(token)


def known(what: Hashable, job: Job, users_job: Job, find: Callable[[], T]) -> T:
    """Return what was found before of this job within `probing_once`, or find it.

    `users_job` has the functions of which `job` has copies.
    """
    findings = _findings.get()
    if findings is None:
        return find()
    called = dict.fromkeys(CALLED, users_job)
    settings = [getattr(called.get(each.name, job), each.name) for each in fields(job) if each.name not in BESIDE]
    key = what, tuple(each if isinstance(each, int | float | str | None) else id(each) for each in settings)
    if key not in findings:
        findings[key] = users_job, find()
    result: T = findings[key][1]
    return result


def probe(
    job: Job,
    module: nn.Module,
    source: Source,
    training: Agenda,
    by_rows: bool = False,
    device: torch.device = CPU,
    users_job: Job | None = None,
) -> Probe:
    """Run one batch forward and backward on a copy of the module, whole and in two chunks.

    `training` says how batches are divided later. `by_rows` says that the plan would gain from sparse gradients.
    """
    what = replace(training, epochs=1, limit=None), by_rows, device
    return known(what, job, users_job or job, lambda: _probed(job, module, source, training, by_rows, device))


def _probed(
    job: Job, module: nn.Module, source: Source, training: Agenda, by_rows: bool, device: torch.device
) -> Probe:
    agenda = Agenda(len(source), min(job.batch_size, len(source)), 1, parts=2)
    order = Order(len(source), job.seed, job.shuffle)
    full_chunk = Chunk(0, 0, 0, 0, agenda.batch_size, 1.0)
    copied = copy.deepcopy(module)
    replica = Replica(job, copied.train(), (), device)
    original = not_trained(copied)
    before = {name: tensor.clone() for name, tensor in original.items()}
    writes = {name: parameter._version for name, parameter in copied.named_parameters()}
    batch = source.batch(order.indices(full_chunk), 0)
    types = set[torch.dtype]()
    with users_code("the first batch", hint=partial(hint, batch=batch)), _types_saved(types):
        loss = replica.forward(copied, full_chunk, batch)
        _check_loss(loss)
        loss.backward()
    with users_code("loss_denominator="):
        if not (weight := replica.chunk_weight(full_chunk, batch)) > 0:
            raise JobError(f"loss_denominator= returned {weight} for the first batch; return a number above 0")
    tables, notes = sparse_names(copied), advice(copied) if by_rows else []
    written = [name for name, parameter in copied.named_parameters() if parameter._version != writes[name]]
    moving = tuple(
        name
        for name, tensor in not_trained(copied).items()
        if name in written or (tensor.shape == before[name].shape and not torch.equal(tensor, before[name]))
    )
    buffers = dict(copied.named_buffers())
    for name in moving:
        if name in buffers and buffers[name] is not original[name]:
            raise JobError(
                f"the model puts another tensor in the place of its buffer {name}, which other "
                "workers would not see; change the buffer in place, as by .copy_() or .mul_()"
            )
    self_modified = tuple(name for name in written if name not in moving)
    some_unused = None in replica.take()
    _smallest_chunk(job, module, source, training, device)
    if training.parts == 1:
        return Probe(moving, tables, self_modified, some_unused, tuple(notes))
    limit = _tolerance(replica.parameters[0].dtype, types)
    # Augmentation draws by chunk, so the loss is checked without it, where the model can do without.
    replica = Replica(job.with_(batch_transform=None), copied, (), device)
    # Chunks have their own dropout and batch-norm statistics on purpose; only the loss is checked. A model that has no
    # loss in evaluation, or another one, keeps its own modules in training mode.
    for quieten in (copied.eval, partial(_quieten, copied)):
        quieten()
        with contextlib.suppress(Exception):
            notes += _of_the_loss(replica, source, order, full_chunk, [c for c in agenda.chunks(0) if c.samples], limit)
            break
    return Probe(moving, tables, self_modified, some_unused, tuple(notes))


def _quieten(module: nn.Module) -> None:
    """Put the parts of a module in evaluation that are PyTorch's own."""
    module.train()
    for part in module.modules():
        if type(part).__module__.startswith("torch.") and not list(part.children()):
            part.eval()


def _of_the_loss(
    replica: Replica, source: Source, order: Order, full_chunk: Chunk, halves: list[Chunk], limit: float
) -> list[str]:
    """Return a note if the loss of a batch is not the mean over its halves, by more than `limit` of its gradient."""
    gap = _gap(_gradient(replica, source, order, [full_chunk]), _gradient(replica, source, order, halves))
    if gap <= limit:
        return []
    how = f"the gradient of one batch differs from the mean over its two halves by {gap:.1%}"
    if _gap(*(_gradient(replica, source, order, [full_chunk._replace(number=n)]) for n in range(2))) > limit:
        # The model or the loss draws numbers, so gradients tell nothing; losses do, where they lie far apart.
        both = [[_loss(replica, source, order, chunks, n) for n in range(DRAWS)] for chunks in ([full_chunk], halves)]
        one, other = map(statistics.fmean, both)
        if abs(one - other) <= FAR * max(max(each) - min(each) for each in both):
            return []
        how = f"one batch has a loss of {one:.3g}, and its two halves of {other:.3g}"
    return [
        f"the loss is not a mean over samples: {how} (class weights, ignore_index, a sum, or pairs of samples?). Plans "
        "that split batches train something else than one process. Remedy: loss_denominator=f(batch), the number that "
        "your loss divides by, as in `lambda batch: (batch['labels'] != -100).sum()`; of a sum, the mean "
        "(reduction='mean'); for pairs, as in contrastive losses, a plan whose workers take whole batches, such as "
        "downpour."
    ]


@contextlib.contextmanager
def _types_saved(types: set[torch.dtype]) -> Iterator[None]:
    """Add the types of the tensors that are kept for a backward pass: low ones under any autocast."""

    def pack(tensor: Tensor) -> Tensor:
        types.add(tensor.dtype)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


def _tolerance(parameters: torch.dtype, saved: set[torch.dtype]) -> float:
    lowest = max(tolerance for dtype, tolerance in TOLERANCE.items() if dtype in {torch.float32, *saved})
    return max(lowest, ROUNDING * torch.finfo(parameters).eps)


def _loss(replica: Replica, source: Source, order: Order, chunks: list[Chunk], draw: int) -> float:
    """Return the mean loss of chunks, with other random numbers for each `draw`."""
    total = 0.0
    for chunk in chunks:
        with torch.no_grad():
            batch = source.batch(order.indices(chunk), 0)
            loss = replica.forward(replica.module, chunk._replace(number=DRAWS * chunk.number + draw), batch)
        total += float(loss) * chunk.weight
    return total


def _check_loss(loss: object) -> None:
    if not isinstance(loss, Tensor):
        raise JobError(
            f"the loss is of type {type(loss).__name__}; return one tensor that depends on the model's parameters, as "
            "nn.CrossEntropyLoss() does"
        )
    if loss.numel() != 1:
        raise JobError(
            f"the loss is a tensor of shape {tuple(loss.shape)}, not one number; take its mean, as by reduction='mean'"
        )
    if not loss.requires_grad:
        raise JobError(
            "the loss has no gradient: it depends on no parameter of the model, or was detached from them; compute it "
            "from what the model returns, without .detach(), .item(), argmax or torch.no_grad()"
        )


def _smallest_chunk(job: Job, module: nn.Module, source: Source, agenda: Agenda, device: torch.device) -> None:
    """Raise `JobError` if the last batch of an epoch leaves one sample, which batch normalisation refuses."""
    smallest = min(agenda.filled(agenda.updates_per_epoch - 1), key=lambda chunk: chunk.samples)
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
    """Return how far two gradients lie apart, relative to the first; a tensor at a time, since they may be large."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    size = math.hypot(*(_norm(a) for a, _ in pairs))
    return math.hypot(*(_norm(a - b) for a, b in pairs)) / size if size > 0 else 0.0


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(numbers(tensor).double()))
