"""Several models of one shape, each in memory of its own, trained by one text.

A text is made and compiled once for all models with the same rates of dropout. It has the terms of the optimizer's rule
that any of them uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from paceline.kernels.cpu import Cpu
from paceline.kernels.fused import Fused
from paceline.kernels.losses import loss_kind
from paceline.kernels.runner import Runner
from paceline.kernels.weights import OneModel


def fuse_alike(
    models: Sequence[nn.Module],
    loss: Callable[..., object],
    optimizers: Sequence[Callable[..., torch.optim.Optimizer]],
    batch_size: int,
    x: torch.Tensor,
    y: torch.Tensor,
    beside: Sequence[torch.optim.Optimizer] = (),
) -> list[Fused]:
    """Models of one shape, each trained by one thread, compiled for samples such as these.

    The text has the terms of `beside` too: the optimizers of models that will be trained by it later.
    """
    model_optimizers = [make(list(model.parameters())) for model, make in zip(models, optimizers, strict=True)]
    first: dict[tuple[float, ...], Fused] = {}
    networks = []
    for model, make in zip(models, optimizers, strict=True):
        weights, rates = OneModel(model, make, beside=[*model_optimizers, *beside]), rates_of(model)
        network = Fused(weights, loss_kind(loss), batch_size, Runner(Cpu(1)), like=first.get(rates))
        network.prepare(x, y)
        first.setdefault(rates, network)
        networks.append(network)
    return networks


def rates_of(model: nn.Module) -> tuple[float, ...]:
    """The rates of dropout, which are part of a text whose lanes hold samples."""
    return tuple(float(part.p) for part in model.modules() if isinstance(part, nn.Dropout))
