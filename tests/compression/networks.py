"""Random small networks of every layer that has a form in C, in odd sizes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from paceline.training.jobs.modules import Subsampling

FUNCTIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.ELU, nn.ReLU6, nn.Hardswish)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


@dataclass(frozen=True)
class Case:
    """A model in evaluation mode and some samples."""

    model: nn.Module
    x: Tensor


def drawn(seed: int) -> Case:
    """A network by number: a dense one, one along a line, or one of images."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    kind = chance.choice(("dense", "line", "image", "image", "image"))
    if kind == "dense":
        sizes = [chance.randint(1, 70) for _ in range(chance.randint(2, 4))]
        inputs: tuple[int, ...] = (sizes[0],)
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after, bias=chance.random() < 0.8), chance.choice(FUNCTIONS)()]
        model = nn.Sequential(*layers, nn.Linear(sizes[-1], chance.randint(1, 33)))
    elif kind == "line":
        channels, length = chance.randint(1, 5), chance.randint(6, 30)
        inputs, width = (channels, length), chance.randint(1, 20)
        body = nn.Sequential(nn.Conv1d(channels, width, 3, chance.randint(1, 2)), nn.ReLU(), nn.MaxPool1d(2))
        model = _with_head(body, inputs, chance)
    else:
        inputs = (chance.randint(1, 4), chance.randint(5, 13), chance.randint(5, 13))
        model = _with_head(_images(inputs, chance), inputs, chance)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = torch.randn(module.num_features)
            module.running_var = torch.rand(module.num_features) + 0.5
    x = torch.randn(40, *inputs) if chance.random() < 0.5 else torch.rand(40, *inputs)
    return Case(model.eval(), x)


def _images(inputs: tuple[int, ...], chance: random.Random) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(chance.randint(1, 4)):
        with torch.no_grad():
            channels, height, width = nn.Sequential(*layers).eval()(torch.zeros(1, *inputs)).shape[1:]
        least = min(height, width)
        kind = chance.choice(
            ("convolution", "convolution", "depthwise", "average", "highest", "trainable", "residual", "norm")
        )
        outputs = 2 * chance.randint(1, 10)
        kernel, padding = (chance.randint(1, min(4, height)), chance.randint(1, min(5, width))), chance.randint(0, 2)
        if kind == "convolution":
            groups = 2 if channels % 2 == 0 and chance.random() < 0.2 else 1
            dilation = 2 if least > 8 and chance.random() < 0.2 else 1
            layers.append(nn.Conv2d(channels, outputs, kernel, chance.randint(1, 2), padding, dilation, groups))
        elif kind == "depthwise":
            layers.append(nn.Conv2d(channels, channels, kernel, 1, padding, groups=channels))
        elif kind == "average":
            layers.append(nn.AvgPool2d(min(2, least), chance.randint(1, 2)))
        elif kind == "highest":
            layers.append(nn.MaxPool2d(min(3, least), chance.randint(1, 3), chance.randint(0, min(3, least) // 2)))
        elif kind == "trainable" and least >= 2:
            layers.append(Subsampling(2))
        elif kind == "residual":
            layers.append(Residual(channels))
        else:
            layers.append(nn.BatchNorm2d(channels))
        if chance.random() < 0.7:
            layers.append(chance.choice(FUNCTIONS)())
    return nn.Sequential(*layers)


def _with_head(body: nn.Module, inputs: tuple[int, ...], chance: random.Random) -> nn.Module:
    with torch.no_grad():
        size = body.eval()(torch.zeros(1, *inputs)).numel()
    head = [nn.Linear(size, chance.randint(1, 40))] if chance.random() < 0.8 else []
    return nn.Sequential(body, nn.Flatten(), *head)
