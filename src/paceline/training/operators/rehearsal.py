"""Computing one instance by its operators, in one process, to compare it with the model itself."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from paceline.algorithms.agenda import Chunk
from paceline.errors import JobError
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Batch, Job
from paceline.training.operators.held import Gradients, HeldOperators
from paceline.training.operators.recording import Instance, Recorder
from paceline.training.parameters.layout import trainable

TOLERANCE = 1e-3  # of the gradient's norm, in single precision and with the sums of another order


def rehearse(job: Job, module: nn.Module, chunk: Chunk, batch: Batch, recorder: Recorder) -> int:
    """Compute an instance call after call; return the bytes of its largest value.

    Raise `JobError` where its gradient is not the model's own.
    """
    operators = HeldOperators(job, copy.deepcopy(module), list(recorder.holders), ())
    instance = recorder.record(operators.replica.prepared(chunk, batch))
    values = _forward(operators, instance, chunk)
    mine = _backward(operators, instance, values)
    replica = Replica(job, copy.deepcopy(module).train(), ())
    replica.backward(chunk, batch, 1.0)
    theirs = dict(zip(trainable(replica.module), replica.take(), strict=True))
    if (gap := _gap(theirs, mine)) > TOLERANCE:
        raise JobError(
            f"computed operator by operator, the gradient of the first instance differs from the model's own by "
            f"{gap:.1%}: something in forward() depends on more than its input and its operators"
        )
    return max(sum(tensor.nbytes for tensor in made) for made in values)


def _forward(operators: HeldOperators, instance: Instance, chunk: Chunk) -> list[list[Tensor]]:
    """Compute all calls; return their values."""
    values: list[list[Tensor]] = []
    for number, call in enumerate(instance.calls):
        where = chunk.update, chunk.number
        values.append(operators.forward(0, number, call, where, lambda other, place: values[other][place]))
    return values


def _backward(operators: HeldOperators, instance: Instance, values: list[list[Tensor]]) -> dict[str, Tensor | None]:
    """Compute the gradients of all calls; return those of the parameters by name."""
    back: list[dict[int, Gradients]] = [{} for _ in values]
    for number in range(len(values) - 1, -1, -1):
        users = instance.graph.users[number]
        loss: list[Gradients] = [[torch.ones_like(values[number][0])]]
        arrived = [back[number][user] for user in users] or loss
        for other, places in operators.backward(0, number, instance.graph.calls[number].operator, arrived).items():
            back[other][number] = [places.get(place) for place in range(max(places, default=-1) + 1)]
    return {
        name: gradient
        for (_, operator), found in operators.sums.items()
        for (name, _), gradient in zip(operators.own[operator], found, strict=True)
    }


def _gap(one: Mapping[str, Tensor | None], other: Mapping[str, Tensor | None]) -> float:
    """Return the relative difference of two gradients."""
    apart = total = 0.0
    for name, gradient in one.items():
        mine = other.get(name)
        a = torch.zeros(()) if gradient is None else gradient
        b = torch.zeros_like(a) if mine is None else mine
        apart += float((a - b).double().square().sum())
        total += float(a.double().square().sum())
    return float((apart / total) ** 0.5) if total else 0.0
