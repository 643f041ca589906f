"""Models side by side in lanes train as each would alone."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from paceline.kernels import CannotFuse, fuse, fuse_replicas, machine
from paceline.kernels.replicas import fuse_alike
from paceline.kernels.weights import remember, remembered
from tests.kernels.test_fused import data, small_cnn

# --- Models of one shape are trained by one text, with the numbers of their own ---------------------------------------

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


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize(("batch", "count"), [(1, 8), (20, 5)])
def test_each_is_the_model_it_would_be_alone(batch: int, count: int) -> None:
    """Seeds and learning rates, as many as there are lanes; in float64, where rounding cannot hide a lane that took
    another's number.
    """
    count = min(count, machine.target("double").lanes)
    x, y = data(60)
    x = x.double()
    models = []
    for seed in range(count):
        torch.manual_seed(seed)
        models.append(
            nn.Sequential(
                small_cnn()[0],
                nn.Conv2d(1, 2, 5),
                nn.BatchNorm2d(2),
                nn.ReLU(),
                nn.MaxPool2d(4),
                nn.Flatten(),
                nn.Linear(8, 5),
            ).double()
        )
    alone = copy.deepcopy(models)
    makers = [partial(torch.optim.SGD, lr=0.01 * (seed + 1), momentum=0.5) for seed in range(count)]
    orders = torch.stack([torch.randperm(60, generator=torch.Generator().manual_seed(s)) for s in range(count)])
    losses = fuse_replicas(models, nn.CrossEntropyLoss(), makers, batch).train_epochs(x, y, orders)
    for model, maker, order, loss, together in zip(alone, makers, orders, losses, models, strict=True):
        mine = fuse(model, nn.CrossEntropyLoss(), maker, batch).train_epoch(x, y, order)
        assert loss == pytest.approx(mine, rel=1e-9)
        for one, other in zip(model.state_dict().values(), together.state_dict().values(), strict=True):
            assert torch.allclose(one.double(), other.double(), rtol=1e-8, atol=1e-10)


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (torch.optim.SGD, [{"lr": 0.1}, {"lr": 0.05, "momentum": 0.9}, {"lr": 0.2, "weight_decay": 0.01}]),
        (torch.optim.Adam, [{"lr": 0.01}, {"lr": 0.02, "weight_decay": 0.1}, {"lr": 0.01, "betas": (0.8, 0.9)}]),
    ],
)
def test_rates_and_seeds_of_dropout_decay_and_momentum_are_each_models_own(
    optimizer: type[torch.optim.Optimizer], settings: list[dict[str, Any]]
) -> None:
    x, y = torch.randn(60, 6, dtype=torch.float64), torch.randint(0, 4, (60,))
    rates, seeds = [(0.1, 0.4), (0.0, 0.0), (0.5, 0.2)], [5, 6, 2**40]
    models = [
        nn.Sequential(
            nn.Linear(6, 5), nn.Tanh(), nn.Dropout(p), nn.Linear(5, 5), nn.Dropout(q), nn.Linear(5, 4)
        ).double()
        for p, q in rates
    ]
    alone, makers = copy.deepcopy(models), [partial(optimizer, **given) for given in settings]
    orders = [torch.stack([torch.randperm(60) for _ in models]) for _ in range(2)]
    together = fuse_replicas(models, nn.CrossEntropyLoss(), makers, 10)
    apart = [fuse(model, nn.CrossEntropyLoss(), maker, 10) for model, maker in zip(alone, makers, strict=True)]
    for order in orders:
        losses = together.train_epochs(x, y, order, seeds)
        mine = [f.train_epoch(x, y, o, s) for f, o, s in zip(apart, order, seeds, strict=True)]
        assert losses == pytest.approx(mine, rel=1e-12)
    for one, other in zip(models, alone, strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)


def test_models_that_drop_in_different_layers_are_refused() -> None:
    models = [nn.Sequential(nn.Dropout(p), nn.Linear(2, 2), nn.Dropout(0.1)) for p in (0.0, 0.1)]
    with pytest.raises(CannotFuse, match="in which others do not"):
        fuse_replicas(models, nn.MSELoss(), [partial(torch.optim.SGD, lr=0.1)], 1)


def test_what_cannot_stand_side_by_side_is_refused() -> None:
    models = [nn.Linear(2, 2) for _ in range(17)]
    sgd = partial(torch.optim.SGD, lr=0.1)
    with pytest.raises(CannotFuse, match="17 models"):
        fuse_replicas(models, nn.MSELoss(), [sgd], 1)
    with pytest.raises(CannotFuse, match="several kinds"):
        fuse_replicas(models[:2], nn.MSELoss(), [sgd, torch.optim.Adam], 1)
    with pytest.raises(CannotFuse, match="2 models and 3 optimizers"):
        fuse_replicas(models[:2], nn.MSELoss(), [sgd] * 3, 1)
