"""Strips of images with borders that are computed again: the numbers of one process, and nothing sent in a chain."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from paceline.algorithms.splits.placements import TRIM
from paceline.interfaces.testing.conformance import same_numbers
from paceline.interfaces.testing.jobs import JOBS, SAMPLES
from paceline.plans.plan import make
from paceline.runtime.engines.setup import set_up
from paceline.training.jobs.job import Job
from paceline.training.splits.gradients import SplitBlueprint


class Branching(nn.Module):
    """Values that several layers take, with different reach; strides, dilation, groups and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(2, 4, 3, padding=1)
        self.wide, self.drop = nn.Conv2d(4, 4, 5, padding=2), nn.Dropout(0.2)
        self.down = nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2)
        self.head = nn.Linear(4 * 6 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.enter(x))
        x = x + self.drop(self.wide(torch.relu(x)))
        y = self.down(x)
        result: Tensor = self.head((y * torch.sigmoid(self.grouped(y))).flatten(1))
        return result


def random_chain(number: int) -> tuple[nn.Module, tuple[int, ...]]:
    """Return a random chain of convolutions and pooling, and the shape of an image."""
    chance = random.Random(number)
    rows, columns, channels = chance.randint(16, 24), 8, 2
    shape = (channels, rows, columns)
    parts: list[nn.Module] = []
    for _ in range(chance.randint(2, 5)):
        if nn.Sequential(*parts)(torch.zeros(2, *shape)).shape[2] < 6:
            break  # too few rows for a further kernel
        kernel = chance.choice([1, 3, 3, 5])
        parts.append(nn.Conv2d(channels, channels, (kernel, 1), padding=(chance.randint(0, kernel // 2), 0)))
        parts.append(chance.choice([nn.ReLU(), nn.ReLU(inplace=True), nn.Tanh(), nn.Dropout(0.1), nn.BatchNorm2d(2)]))
        if chance.random() < 0.3:
            parts.append(chance.choice([nn.MaxPool2d((2, 1)), nn.AvgPool2d((3, 1), (2, 1)), nn.MaxPool2d(3, 1, 1)]))
    features = nn.Sequential(*parts)
    size = features(torch.zeros(2, *shape)).flatten(1).shape[1]
    return nn.Sequential(features, nn.Flatten(), nn.Linear(size, 5)).double(), shape


def job_of(module: nn.Module, shape: tuple[int, ...]) -> Job:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, *shape, generator=generator, dtype=torch.float64)
    return JOBS["mlp"]().with_(model=module, data=(x, torch.randint(5, (SAMPLES,), generator=generator)))


def blueprint(job: Job, workers: int) -> SplitBlueprint:
    made = set_up(job, make("redundant", workers=workers), "virtual").split
    assert made is not None
    return made


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_branches(workers: int) -> None:
    same_numbers(job_of(Branching().double(), (2, 12, 8)), make("redundant", workers=workers), "virtual", updates=6)


@pytest.mark.parametrize("number", [*range(6), *(pytest.param(n, marks=pytest.mark.soak) for n in range(6, 60))])
def test_random_chains(number: int) -> None:
    torch.manual_seed(number)
    job = job_of(*random_chain(number))
    same_numbers(job, make("redundant", workers=2 + number % 4), "virtual", updates=5)


def test_nothing_is_sent_within_a_chain() -> None:
    chain = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1), nn.MaxPool2d(2))
    module = nn.Sequential(chain, nn.Flatten(), nn.Linear(2 * 8 * 4, 5)).double()
    program = blueprint(job_of(module, (2, 16, 8)), 2).program
    sent = [step.value for step in program.forward if step.movement.travels]
    assert sent == ["_0_3"], "only what the chain ends with"
    rows = {name: program.layouts[name].gives.box(program.shapes[name], 0)[2] for name in ("_0_0", "_0_2", "_0_3")}
    assert rows == {"_0_0": (0, 9), "_0_2": (0, 8), "_0_3": (0, 4)}


def test_no_worker_computes_more_than_twice_its_rows() -> None:
    deep = nn.Sequential(*(part for _ in range(6) for part in (nn.Conv2d(2, 2, 3, padding=1), nn.Tanh())))
    module = nn.Sequential(deep, nn.Flatten(), nn.Linear(2 * 16 * 8, 5)).double()
    program = blueprint(job_of(module, (2, 16, 8)), 4).program
    for name, layout in program.layouts.items():
        for place in range(4) if layout.gives.is_split else ():
            first, stop = layout.gives.box(program.shapes[name], place)[2]
            assert stop - first <= 8
    assert any(step.movement.kind == "gather" and step.value.startswith("_0_") for step in program.forward)
    assert any(step.movement.kind == TRIM for step in program.forward) is False, "a chain without branches drops none"
