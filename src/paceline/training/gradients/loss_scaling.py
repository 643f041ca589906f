"""Gradients in float16: the loss is scaled up so that small gradients do not vanish, and they are scaled down again.

A scale that is too large makes gradients infinite. The chunk is then computed again with a smaller one, from the same
chance and buffers. So no update is left out, and a chunk's gradient depends on the chunk alone: a replay gives the same
bits. PyTorch's GradScaler instead leaves the update out, and remembers its scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.algorithms.agenda import Chunk
from paceline.training.data.source import Reader
from paceline.training.gradients.backward_pass import backward_from
from paceline.training.gradients.replica import Replica
from paceline.training.jobs.job import Batch
from paceline.training.parameters.optimizers import Optimizer

SCALES = (2.0**16, 2.0**12, 2.0**8, 2.0**4, 1.0)  # powers of two: scaling back is exact


class ScaledAutograd:
    """Computes gradients by PyTorch's autograd, with a scaled loss."""

    calls_modules = True

    def __init__(self) -> None:
        #: The gradients of the chunks so far; None for parameters that got none.
        self._sums: list[Tensor | None] | None = None

    def batch(self, replica: Replica, reader: Reader, chunk: Chunk) -> Batch:
        return reader.batch(chunk)

    def stepper(self, replica: Replica, optimizer: Optimizer) -> None:
        return None

    def backward(self, replica: Replica, chunk: Chunk, batch: Batch, weight: float) -> float:
        if not weight:
            return 0.0  # the loss would be divided by 0
        before = [buffer.clone() for buffer in replica.moving]
        for scale in SCALES:
            for buffer, previous in zip(replica.moving, before, strict=True):
                buffer.copy_(previous)
            loss = replica.forward(replica.module, chunk, batch)
            backward_from(loss, weight * scale)
            gradients = [_taken(parameter) for parameter in replica.parameters]
            if scale == 1.0 or not bool(loss.isfinite()) or _finite(gradients):
                break
        scaled = [None if g is None else g / scale for g in gradients]
        sums = self._sums or [None] * len(scaled)
        self._sums = [_sum(one, other) for one, other in zip(sums, scaled, strict=True)]
        return float(loss.detach())

    def take(self, replica: Replica) -> list[Tensor | None]:
        sums, self._sums = self._sums, None
        return sums or [None] * len(replica.parameters)


def _taken(parameter: Tensor) -> Tensor | None:
    gradient, parameter.grad = parameter.grad, None
    return gradient.coalesce() if gradient is not None and gradient.is_sparse else gradient


def _finite(gradients: list[Tensor | None]) -> bool:
    values = [g.values() if g.is_sparse else g for g in gradients if g is not None]
    return not values or bool(torch.stack([v.isfinite().all() for v in values]).all())


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return one if other is None else other
    return (one + other).coalesce() if other.is_sparse else one + other
