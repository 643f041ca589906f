"""Several copies of one network, trained at once: a copy per lane.

Where `fuse` has sixteen samples side by side, here are sixteen models, each with its own parameters, learning rate and
order of the samples. A batch of one then fills the vectors too, so that true stochastic descent of all costs little
more than that of one. It is for searching and for averaging: seeds, learning rates, folds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

import paceline.kernels.machine as machine
from paceline.kernels.cpu import Cpu, Form, replica_target
from paceline.kernels.fused import Fused
from paceline.kernels.layers.base import CannotFuse
from paceline.kernels.losses import loss_kind
from paceline.kernels.optimizers import Rule, numbers, rule_of
from paceline.kernels.plan import Plan
from paceline.kernels.runner import Runner
from paceline.kernels.weights import REALS, OneModel, tensors_by_name, weights_of


def fuse_replicas(
    models: Sequence[nn.Module],
    loss: Callable[..., Any],
    optimizers: Sequence[Callable[..., torch.optim.Optimizer]],
    batch_size: int,
    *,
    threads: int | None = None,
) -> Replicas:
    """Models of one shape, with an optimizer each (or one for all), of one kind; their settings may differ."""
    models = list(models)
    if not models:
        raise CannotFuse("there are no models to train")
    factories = list(optimizers) * (len(models) if len(optimizers) == 1 else 1)
    if len(factories) != len(models):
        raise CannotFuse(f"{len(models)} models and {len(factories)} optimizers: give one for all, or one for each")
    weights = SideBySide(models, factories)
    cpu = Cpu(threads or machine.cores(), Form(target=replica_target))
    return Replicas(weights, Fused(weights, loss_kind(loss), batch_size, Runner(cpu)))


class SideBySide:
    """The weights of several models of one shape: a lane of the padded memory for each."""

    def __init__(self, models: list[nn.Module], factories: list[Callable[..., torch.optim.Optimizer]]) -> None:
        #: Each model with its optimizer. The first stands for all where only shapes and kinds are asked for.
        self.models = [OneModel(model, make) for model, make in zip(models, factories, strict=True)]
        first = self.models[0]
        self.module, self.named, self.dtype, self.optimizer = first.module, first.named, first.dtype, first.optimizer
        #: How many models there is room for.
        self.lanes = machine.target(REALS[self.dtype]).lanes
        if len(models) > self.lanes:
            raise CannotFuse(
                f"{len(models)} models; this machine's vectors have {self.lanes} lanes: train them one after another"
            )
        if len({rule_of(optimizer, 0.0) for optimizer in self._optimizers()}) > 1:
            raise CannotFuse("the optimizers are of several kinds, or use different terms; only numbers may differ")

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [model.optimizer for model in self.models if model.optimizer is not None]

    def rule(self, plan: Plan) -> Rule:
        return self.models[0].rule(plan)

    def views(self, plan: Plan, memory: Tensor) -> list[tuple[Tensor, Tensor]]:
        found = []
        by_lane = memory.view(-1, plan.target.lanes)
        for lane, model in enumerate(self.models):
            tensors = tensors_by_name(model.module)
            for name in weights_of(plan):
                place = plan.places[name]
                view = by_lane[place.start : place.start + prod(place.shape), lane].view(place.shape)
                found.append((view, tensors[name]))
        return found

    def settings(self, lanes: int) -> Tensor:
        optimizers = self._optimizers()
        words = rule_of(optimizers[0], 0.0).settings
        rows = []
        for groups in zip(*(optimizer.param_groups for optimizer in optimizers), strict=True):
            given = [numbers(group, words, 0.0) for group in groups]
            given += given[:1] * (lanes - len(given))  # lanes without a model follow the first
            rows.append(list(zip(*given, strict=True)))
        return torch.tensor(rows, dtype=torch.float64).contiguous()

    def count_batches(self, batches: int) -> None:
        for model in self.models:
            model.count_batches(batches)


class Replicas:
    """Models that generated code trains side by side."""

    def __init__(self, weights: SideBySide, fused: Fused) -> None:
        self.weights, self.fused = weights, fused

    @torch.no_grad()
    def train_epochs(self, x: Tensor, y: Tensor, orders: Tensor, seed: int = 0) -> list[float]:
        """One pass of every model over the samples that its row of `orders` names; the mean loss of each."""
        count = len(self.weights.models)
        if orders.shape[0] != count:
            raise CannotFuse(f"orders of {orders.shape[0]} rows, for {count} models")
        rows = torch.cat([orders, orders[:1].expand(self.weights.lanes - count, -1)])
        self.fused.train_epoch(x, y, rows, seed)
        updates = -(-orders.shape[1] // self.fused.batch_size)
        sums: list[float] = self.fused.runner.losses(self.fused.compiled(x)).tolist()
        return [total / updates for total in sums[:count]]
