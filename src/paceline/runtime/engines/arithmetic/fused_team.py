"""Training in generated code, optimizer and all. All ranks and threads are one team; one process has the same bits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from paceline.runtime.engines.setup import Setup
from paceline.training.data.source import TensorSource
from paceline.training.gradients.fused_replica import FusedNetwork
from paceline.training.jobs.job import Job
from paceline.training.parameters.layout import trainable


class Team:
    """The network of this process, or of all ranks, which then make every call here together."""

    def __init__(self, setup: Setup, make: Callable[[Job, nn.Module], FusedNetwork]) -> None:
        assert isinstance(setup.source, TensorSource)
        self.setup, self.order = setup, setup.order()
        self.x, self.y = setup.source.tensors
        self.module = setup.fresh_module().train()
        self.fused = make(setup.job, self.module)
        optimizer, schedule = self.fused.optimizer, setup.job.lr_scheduler
        self.schedule = schedule(optimizer) if schedule is not None and optimizer is not None else None
        buffers = dict(self.module.named_buffers())
        self.tensors = [*trainable(self.module).values(), *(buffers[name] for name in setup.probe.moving)]
        self.fused.prepare(self.x[:1])

    def samples(self, first: int, last: int) -> Tensor:
        """Return the sample numbers of these updates, in their order."""
        agenda = self.setup.agenda
        chunks = [chunk for update in range(first, last) for chunk in agenda.filled(update)]
        return torch.cat([self.order.indices(chunk) for chunk in chunks])

    def train(self, first: int, last: int) -> float:
        """Train these updates, which lie within one pass over the data, and return the mean of their losses."""
        loss = self.fused.train_epoch(self.x, self.y, self.samples(first, last), self.setup.job.seed)
        if self.schedule is not None:
            self.schedule.step()
        return loss

    def loss(self, update: int) -> float:
        """Return the loss of an update without making it; only batch-norm's statistics change."""
        samples = self.samples(update, update + 1)
        return self.fused.loss_and_gradients(self.x[samples], self.y[samples])[0]

    def finite(self) -> bool:
        return all(bool(value.isfinite().all()) for value in self.tensors if value.is_floating_point())

    def values(self) -> list[Tensor]:
        return [value.detach().cpu().clone() for value in self.tensors]
