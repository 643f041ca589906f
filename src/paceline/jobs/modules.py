"""Layers of the literature that PyTorch lacks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Subsampling(nn.Module):
    """Pools by one trainable kernel, 4x4 with stride 4 by default, shared by all maps."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1, 1, size, size), 1 / size**2))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        batch, maps, height, width = x.shape
        size = self.weight.shape[2]
        pooled = F.conv2d(x.reshape(batch * maps, 1, height, width), self.weight, self.bias, stride=size)
        return pooled.view(batch, maps, *pooled.shape[2:])
