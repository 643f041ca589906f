"""Generated code under ZeRO: the numbers of one process by the same code, and refused where no network is whole."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from paceline.errors import PlanError
from paceline.interfaces.api.train import train
from paceline.interfaces.testing.conformance import replays, same_numbers
from paceline.interfaces.testing.jobs import JOBS
from paceline.plans.plan import Plan
from paceline.training.jobs.job import Job


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 5)
    ).double()


def fused_job() -> Job:
    x = torch.randn(45, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data, adam = (x, torch.arange(45) % 5), partial(torch.optim.Adam, lr=0.01)
    return JOBS["mlp"]().with_(model=model, data=data, optimizer=adam, batch_size=16, compute="fused")


@pytest.mark.parametrize(
    ("plan", "engine"),
    [
        ("zero:stage=1,workers=3", "virtual"),
        ("zero:stage=2,workers=2", "local"),
        ("zero:stage=1,workers=4,data=2", "virtual"),
    ],
)
def test_same_numbers(plan: str, engine: str) -> None:
    same_numbers(fused_job(), Plan.parse(plan), engine, updates=6)


def test_a_replay_has_the_same_bits() -> None:
    replays(train(fused_job(), "zero:stage=2,workers=2", folder=None, max_updates=4))


@pytest.mark.parametrize("plan", ["zero", "tensor", "one_weird_trick"])
def test_splits_without_a_whole_network_are_refused(plan: str) -> None:
    with pytest.raises(PlanError, match="takes a whole network; zero:stage=1 and zero:stage=2 have it whole"):
        train(fused_job(), plan, engine="virtual", folder=None)
