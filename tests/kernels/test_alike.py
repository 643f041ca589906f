"""Models of one shape are trained by one text, with the numbers of their own."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from paceline.kernels import fuse
from paceline.kernels.alike import fuse_alike
from paceline.kernels.weights import remember, remembered

SGD, ADAM = torch.optim.SGD, torch.optim.Adam


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (SGD, [{"lr": 0.1}, {"lr": 0.05, "momentum": 0.9}, {"lr": 0.2, "weight_decay": 0.01}]),
        (ADAM, [{"lr": 0.01}, {"lr": 0.02, "weight_decay": 0.1}, {"lr": 0.01, "betas": (0.8, 0.9)}]),
    ],
)
def test_each_has_the_numbers_of_its_own_text(kind: Any, settings: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(60, 6, dtype=torch.float64), torch.randint(0, 4, (60,))
    models = [nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.2), nn.Tanh(), nn.Linear(5, 4)).double() for _ in settings]
    alone, makers = copy.deepcopy(models), [partial(kind, **each) for each in settings]
    made = fuse_alike(models, nn.CrossEntropyLoss(), makers, 10, x, y)
    assert len({each.compiled(x).source for each in made}) == 1
    order = torch.randperm(60)
    for fused, model, other, maker in zip(made, models, alone, makers, strict=True):
        own = fuse(other, nn.CrossEntropyLoss(), maker, 10, threads=1)
        for seed in (3, 4):
            assert fused.train_epoch(x, y, order, seed) == pytest.approx(own.train_epoch(x, y, order, seed), rel=1e-12)
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.allclose(one, two, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("quickly_compiled")
def test_what_one_remembers_another_can_go_on_from_that_needs_less_or_more() -> None:
    x, y = torch.randn(20, 3, dtype=torch.float64), torch.randint(0, 2, (20,))
    models = [nn.Linear(3, 2).double() for _ in range(2)]
    loss, order = nn.CrossEntropyLoss(), torch.arange(20)
    (heavy,) = fuse_alike(models[:1], loss, [partial(SGD, lr=0.1, momentum=0.9)], 5, x, y)
    (plain,) = fuse_alike(models[1:], loss, [partial(SGD, lr=0.1)], 5, x, y)
    heavy.train_epoch(x, y, order)
    kept = remembered(heavy.compiled(x), heavy.weights)
    assert set(kept[0]) == {"momentum_buffer"}
    assert remembered(plain.compiled(x), plain.weights) == [{}]
    remember(plain.compiled(x), plain.weights, kept)  # has no use for it
    (other,) = fuse_alike(models[1:], loss, [partial(SGD, lr=0.1, momentum=0.5)], 5, x, y)
    remember(other.compiled(x), other.weights, kept)
    (found,) = remembered(other.compiled(x), other.weights)
    assert all(
        torch.equal(one, two) for one, two in zip(found["momentum_buffer"], kept[0]["momentum_buffer"], strict=True)
    )
