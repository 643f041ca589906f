"""Random networks, and random tables of ways for their layers."""

from __future__ import annotations

import random
from functools import partial

import torch
from torch import nn

from paceline.interfaces.testing.jobs import OPTIMIZERS, SAMPLES
from paceline.training.jobs.job import Job

ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, partial(nn.ReLU, inplace=True))


class _Residual(nn.Module):
    """Adds what its parts make to what they take."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.parts(x)


class _Attends(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.attention(y, y, y, need_weights=False)[0]


def dense(chance: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    width = start = chance.randint(4, 12)
    parts: list[nn.Module] = []
    for _ in range(chance.randint(1, 4)):
        wide = chance.randint(4, 12)
        if chance.random() < 0.3:
            parts.append(_Residual(nn.Linear(width, wide), chance.choice(ACTIVATIONS)(), nn.Linear(wide, width)))
            continue
        parts += [nn.Linear(width, wide, bias=chance.random() < 0.8), chance.choice(ACTIVATIONS)()]
        width = wide
        if chance.random() < 0.5:
            parts.append(chance.choice([nn.Dropout(0.2), nn.LayerNorm(width), nn.BatchNorm1d(width), nn.Softmax(1)]))
    return nn.Sequential(*parts, nn.Linear(width, 5)), (start,)


def convolutional(chance: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    channels, size = chance.randint(2, 4), 6
    parts: list[nn.Module] = []
    start = channels
    for _ in range(chance.randint(1, 3)):
        wide = chance.randint(4, 8)
        parts += [nn.Conv2d(channels, wide, 3, padding=1), chance.choice(ACTIVATIONS)()]
        channels = wide
        if chance.random() < 0.5:
            parts.append(chance.choice([nn.BatchNorm2d(channels), nn.Dropout(0.1), nn.GroupNorm(1, channels)]))
        if size > 3 and chance.random() < 0.5:
            parts.append(chance.choice([nn.MaxPool2d(2), nn.AvgPool2d(2)]))
            size //= 2
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(channels * size * size, 5)), (start, 6, 6)


def attending(chance: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    heads = chance.randint(2, 4)
    width = heads * chance.randint(2, 3)
    parts: list[nn.Module] = []
    for _ in range(chance.randint(1, 2)):
        parts.append(_Attends(width, heads, chance.choice([0.0, 0.2])))
        parts.append(_Residual(nn.LayerNorm(width), nn.Linear(width, 9), nn.GELU(), nn.Linear(9, width)))
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(4 * width, 5)), (4, width)


def random_job(number: int) -> Job:
    """Return a job with a random network and a random optimizer."""
    chance = random.Random(number)
    torch.manual_seed(number)
    module, shape = chance.choice([dense, convolutional, attending])(chance)
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(SAMPLES, *shape, generator=generator, dtype=torch.float64)
    y = torch.randint(5, (SAMPLES,), generator=generator)
    # Adagrad makes steps of the rounding noise in gradients that are truly zero: of a bias before batch normalisation.
    normalised = any(isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm) for part in module.modules())
    optimizer = OPTIMIZERS[chance.choice(["momentum", "adam", "momentum" if normalised else "adagrad"])]
    return Job(
        model=module.double(),
        data=(x, y),
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        batch_size=14,
        epochs=6,
        seed=number,
        device="cpu",
    )


WAYS = ("columns", "rows", "channels", "samples", "heads", "whole", "vocabulary")
FITS: dict[type, tuple[str, ...]] = {
    nn.Linear: ("columns", "rows", "samples", "whole", "vocabulary"),
    nn.Conv2d: ("channels", "rows", "samples", "whole"),
    nn.MultiheadAttention: ("heads", "whole"),
    nn.LayerNorm: ("samples", "whole"),
    nn.GroupNorm: ("samples", "whole"),
}


def random_plan(job: Job, number: int) -> str:
    """Return a random table for the job's layers; one way in ten is any, which may not fit."""
    chance = random.Random(-1 - number)
    assert isinstance(job.model, nn.Module)
    rows = []
    for name, part in job.model.named_modules():
        ways = FITS.get(type(part))
        if ways is not None and chance.random() < 0.8:
            rows.append(f"{name}:{chance.choice(WAYS if chance.random() < 0.1 else ways)}")
    return f"per_layer:workers={chance.choice([2, 2, 3, 4])},ways={'+'.join(rows) or '*:whole'}"
