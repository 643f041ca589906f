"""A network on several GPUs, a rank of MPI for each: a share of every batch, and one all-reduce per update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from paceline.kernels.apart import Apart
from paceline.kernels.compiled import Compiled
from paceline.kernels.cuda.device import Device, nvidia
from paceline.kernels.cuda.network import OnDevice


def ranks_on_devices(
    model: nn.Module, loss: str, optimizer: Callable[..., torch.optim.Optimizer] | None, batch_size: int, world: Any,
    index: int,
) -> RanksOnDevices:  # fmt: skip
    return RanksOnDevices(model, loss, optimizer, batch_size, world, nvidia(index))


class RanksOnDevices(Apart, OnDevice):
    def __init__(
        self, model: nn.Module, loss: str, optimizer: Callable[..., torch.optim.Optimizer] | None, batch_size: int,
        world: Any, device: Device,
    ) -> None:  # fmt: skip
        OnDevice.__init__(self, model, loss, optimizer, batch_size, 0.0, device)
        self.world = self.heads = world
        self.number, self.nodes = world.rank, world.size

    def _apply(self, made: Compiled, call: Any) -> None:
        updates = self._launched(made, call)
        updates.program.launch("paceline_apply", updates.change, updates.call)
