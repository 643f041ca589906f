"""Several copies of one network, trained at once: a copy per lane.

Where `fuse` has sixteen samples side by side, here are sixteen models, each with its own parameters, learning rate and
order of the samples. A batch of one then fills the vectors too, so that true stochastic descent of all costs little
more than of one. It is for searching and for averaging: seeds, learning rates, folds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

import paceline.kernels.machine as machine
from paceline.kernels.compiled import Compiled
from paceline.kernels.fused import REALS, Fused, loss_kind
from paceline.kernels.layers.base import CannotFuse
from paceline.kernels.memory import Target
from paceline.kernels.optimizers import numbers, rule_of
from paceline.kernels.plan import CHUNKS, Plan
from paceline.kernels.printers.cpp import weights_of


def fuse_replicas(
    models: Sequence[nn.Module],
    loss: Callable[..., Any],
    optimizers: Sequence[Callable[..., torch.optim.Optimizer]],
    batch_size: int,
    *,
    threads: int | None = None,
) -> ReplicaSlots:
    """Models of one shape, with an optimizer each (or one for all), of one kind; their settings may differ."""
    models = list(models)
    if not models:
        raise CannotFuse("there are no models to train")
    factories = list(optimizers) * (len(models) if len(optimizers) == 1 else 1)
    if len(factories) != len(models):
        raise CannotFuse(f"{len(models)} models and {len(factories)} optimizers: give one for all, or one for each")
    return ReplicaSlots(models, loss_kind(loss), factories, batch_size, threads or machine.cores())


class ReplicaSlots(Fused):
    def __init__(
        self,
        models: list[nn.Module],
        loss: str,
        factories: list[Callable[..., torch.optim.Optimizer]],
        batch_size: int,
        threads: int,
    ) -> None:
        super().__init__(models[0], loss, factories[0], batch_size, threads, 0.0)
        self.models = models
        lanes = self._target().lanes
        if len(models) > lanes:
            raise CannotFuse(f"{len(models)} models; this machine's vectors have {lanes} lanes: train them in turn")
        assert self.optimizer is not None
        others = [make(_parameters(model)) for make, model in zip(factories[1:], models[1:], strict=True)]
        self.optimizers = [self.optimizer, *others]
        rules = {rule_of(optimizer, 0.0) for optimizer in self.optimizers}
        if len(rules) > 1:
            raise CannotFuse("the optimizers are of several kinds, or use different terms; only numbers may differ")

    @torch.no_grad()
    def train_epochs(self, x: Tensor, y: Tensor, orders: Tensor, seed: int = 0) -> list[float]:
        """One pass of every model over the samples that its row of `orders` names; the mean loss of each."""
        if orders.shape[0] != len(self.models):
            raise CannotFuse(f"orders of {orders.shape[0]} rows, for {len(self.models)} models")
        rows = torch.cat([orders, orders[:1].expand(self._target().lanes - len(self.models), -1)])
        self.train_epoch(x, y, rows, seed)
        (made,) = self._compiled.values()
        lanes, updates = made.plan.target.lanes, -(-orders.shape[1] // self.batch_size)
        sums: list[float] = made.memory["losses"][CHUNKS * lanes :].tolist()
        return [total / updates for total in sums[: len(self.models)]]

    def _target(self) -> Target:
        return replace(machine.target(REALS[self.dtype]), replicas=True)

    def _copied(self, plan: Plan, memory: Tensor, tensors: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        views, mine = [], []
        by_lane = memory.view(-1, plan.target.lanes)
        for lane, model in enumerate(self.models):
            named = {**dict(model.named_buffers()), **dict(model.named_parameters())}
            for name in weights_of(plan):
                place = plan.places[name]
                views.append(by_lane[place.start : place.start + prod(place.shape), lane].view(place.shape))
                mine.append(named[name])
        return views, mine

    def _settings(self, made: Compiled) -> Tensor:
        words = rule_of(self.optimizers[0], 0.0).settings
        rows = []
        for groups in zip(*(optimizer.param_groups for optimizer in self.optimizers), strict=True):
            given = [numbers(group, words, 0.0) for group in groups]
            given += given[:1] * (made.plan.target.lanes - len(given))  # lanes without a model follow the first
            rows.append(list(zip(*given, strict=True)))
        return torch.tensor(rows, dtype=torch.float64).contiguous()

    def _count_batches(self, batches: int) -> None:
        for model in self.models:
            self._count(model, batches)


def _parameters(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]
