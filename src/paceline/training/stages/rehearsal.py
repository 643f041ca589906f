"""A rehearsal before the start: micro-batches of every size go through all stages and through the model itself.

Losses, gradients and running statistics must be the same, or the stages would train another model than the user's.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from paceline.algorithms.agenda import Agenda, Chunk
from paceline.errors import JobError
from paceline.training.data.order import Order
from paceline.training.data.source import Source
from paceline.training.gradients.backward_pass import backward
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Batch, Job
from paceline.training.parameters.layout import trainable
from paceline.training.stages.cutting import Code, cut
from paceline.training.stages.exporting import check_sizes
from paceline.training.stages.refusals import in_pieces, step_alone
from paceline.training.stages.tracing import KnownResult, Traced, retrace

ROUNDING = 100  # machine epsilons by which a loss may differ
APART = 1e-4  # the share of its norm by which a gradient may differ, and a hundredth of that of all gradients

Example = tuple[Chunk, Batch]  # a micro-batch


def fresh(example: Example) -> Example:
    """Return a copy of an example, which may then be changed in place."""
    chunk, batch = example
    return chunk, tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, batch)


def examples_of(job: Job, source: Source, agenda: Agenda) -> list[Example]:
    """Return a chunk of every size that an epoch has, a full one first."""
    epoch = min(agenda.updates, agenda.updates_per_epoch)
    sizes = {each.samples: each for update in (epoch - 1, 0) for each in agenda.filled(update)}
    order = Order(len(source), job.seed, job.shuffle, agenda.cuts)
    chunks = [sizes[samples] for samples in sorted(sizes, key=lambda samples: (samples < max(sizes), samples))]
    return [(each, source.batch(order.indices(each), each.epoch)) for each in chunks]


def rehearse(
    job: Job, module: nn.Module, traced: Traced, places: Sequence[int], examples: Sequence[Example]
) -> list[list[Tensor]]:
    """Compare the stages with the model; return what each stage takes for the first example."""
    replica, twin = (Replica(job, copy.deepcopy(module).train(), ()) for _ in range(2))
    rewritten = retrace(twin.module, traced.call, traced.exported)
    rewritten.numbers = traced.numbers
    codes, travels = cut(rewritten, places), list[list[Tensor]]()
    for example in (*examples, examples[-1]):  # twice: a model that changes itself does so in the first
        loss = replica.forward(replica.module, *fresh(example))
        loss.backward()
        with in_pieces():
            stage_inputs, cut_loss = through(codes, twin, traced, example)
        travels = travels or stage_inputs
        if math.isfinite(float(loss.detach())):
            _compare(module, traced, (loss.detach(), cut_loss), (replica.take(), twin.take()))
    _compare_buffers(replica.module, twin.module)
    return [[t.detach().requires_grad_(t.requires_grad) for t in values] for values in travels]


def through(
    codes: Sequence[Code], replica: Replica, traced: Traced, example: Example
) -> tuple[list[list[Tensor]], Tensor]:
    """Run a micro-batch through all stages and back; return what each stage takes, and the loss."""
    prepared = replica.prepared(*fresh(example))
    tensors = traced.call.tensors_of(replica.loss, fresh((example[0], prepared))[1])
    if traced.exported is not None:
        check_sizes(traced.exported, tensors)
    travels, results, values, answered = list[list[Tensor]](), list[Any](), tensors, KnownResult()
    for code in codes:
        travels.append([t.detach().requires_grad_(t.requires_grad) for t in values])
        if code.last and not traced.draws:
            replica.chance.again()  # as at the worker of the last stage
        with replica.precision():
            results.append(code(*travels[-1]))
        if code.last:
            with step_alone():
                loss = answered.loss(replica, prepared, results.pop())
        values = [] if code.last else list(results[-1])
    if loss.requires_grad:
        loss.backward()
    for result, after in zip(reversed(results), reversed(travels[1:]), strict=True):
        pairs = [(one, other.grad) for one, other in zip(result, after, strict=True) if other.grad is not None]
        if pairs:
            backward(*zip(*pairs, strict=True))
    return travels, loss.detach()


def _compare(
    module: nn.Module,
    traced: Traced,
    losses: tuple[Tensor, Tensor],
    gradients: tuple[list[Tensor | None], list[Tensor | None]],
) -> None:
    expected, actual = losses
    if not torch.allclose(actual, expected, rtol=ROUNDING * torch.finfo(actual.dtype).eps, atol=0.0):
        raise _difference(module, traced, f"a loss of {float(actual)}, not {float(expected)}")
    norms = [float(g.norm()) for g in gradients[0] if g is not None]
    total = math.hypot(*norms)
    if not math.isfinite(total):
        return
    for name, one, other in zip(trainable(module), *gradients, strict=True):
        if (one is None) != (other is None) or not (one is None or _near(one, other, total)):  # type: ignore[arg-type]
            raise _difference(module, traced, f"the gradient of {name} differs")


def _near(one: Tensor, other: Tensor, total: float) -> bool:
    apart = APART if one.dtype in (torch.float32, torch.float64) else 1.0
    return float((one - other).norm()) <= apart * (float(one.norm()) + total / 100)


def _compare_buffers(original: nn.Module, cut: nn.Module) -> None:
    buffers = dict(cut.named_buffers())
    for name, one in original.named_buffers():
        if not torch.allclose(one.double(), buffers[name].double(), rtol=APART, atol=APART, equal_nan=True):
            raise JobError(
                f"cut into stages the model computes something else: its buffer {name} moves otherwise. Put the code "
                "that changes it into a module of its own, with the buffer"
            )


def _difference(module: nn.Module, traced: Traced, what: str) -> JobError:
    if traced.exported is not None:
        return JobError(
            f"torch.export, which is needed to follow {type(module).__name__}'s code, writes down something else: "
            f"{what}. Does the code have a backward of its own, or change itself? Put that part into a module of its "
            "own"
        )
    return JobError(
        f"cut into stages the model computes something else: {what}. Its code does what cannot be seen from outside "
        "(it changes itself, or draws chance of its own); put that part into a module of its own"
    )
