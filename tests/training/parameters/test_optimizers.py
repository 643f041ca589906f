"""Optimizers are made without importing the compiler of PyTorch, and kept out of compiled code where it is there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

import paceline as pl
from paceline.errors import JobError, PlanError
from paceline.interfaces.testing.conformance import difference
from paceline.training.parameters import optimizers
from paceline.training.parameters.layout import Layout, lay_out
from paceline.training.parameters.store import WholeStep

# --- Schedules that step by epochs, and one that follows the loss; a loop of plain PyTorch is the oracle --------------

X = torch.randn(24, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.randn(24, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
EPOCH_SCHEDULE_SGD = partial(torch.optim.SGD, lr=0.3, momentum=0.9)
HALVING = partial(StepLR, step_size=1, gamma=0.5)
PLATEAU = partial(ReduceLROnPlateau, patience=0, factor=0.5)


def job(schedule: Any, **changes: Any) -> pl.Job:
    return pl.Job(
        lambda: nn.Linear(4, 1).double(),
        (X, Y),
        nn.MSELoss(),
        optimizer=EPOCH_SCHEDULE_SGD,
        batch_size=8,
        epochs=6,
        shuffle=False,
        lr_scheduler=schedule,
        **changes,
    )


def by_hand(schedule: Any, with_loss: bool) -> tuple[nn.Module, float]:
    model = job(None).make_model()
    optimizer = EPOCH_SCHEDULE_SGD(model.parameters())
    scheduler = schedule(optimizer)
    for _ in range(6):
        losses = []
        for start in range(0, 24, 8):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(X[start : start + 8]), Y[start : start + 8])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        scheduler.step(*[sum(losses) / 3] * with_loss)
    return model, optimizer.param_groups[0]["lr"]


def test_a_schedule_by_epochs_is_that_of_a_loop_by_hand() -> None:
    oracle, _ = by_hand(HALVING, with_loss=False)
    for plan in ("sequential", "downpour:workers=1", "gpipe:workers=1"):
        run = pl.train(job(HALVING, lr_scheduler_interval="epoch"), plan, engine="virtual", folder=None)
        assert difference(run.model, oracle) < 1e-12


@pytest.mark.parametrize("plan", ["sequential", "ring:workers=2"])
def test_a_schedule_on_a_plateau_follows_the_loss_of_the_epoch(plan: str) -> None:
    oracle, rate = by_hand(PLATEAU, with_loss=True)
    assert rate < 0.3  # or nothing would be tested
    assert difference(pl.train(job(PLATEAU), plan, engine="virtual", folder=None).model, oracle) < 1e-12


def test_a_plateau_is_resumed_and_replayed(tmp_path: Any) -> None:
    class Stop:
        def on_update_end(self, training: Any, progress: Any) -> None:
            if progress.updates:
                training.stop("enough")

    whole = pl.train(job(PLATEAU), "ring:workers=2", folder=tmp_path)
    assert pl.replay(whole).matches
    begun = pl.train(job(PLATEAU), "ring:workers=2", folder=tmp_path, checkpoint_every=1, callbacks=[Stop()])
    if begun.record.status == "stopped":
        assert difference(pl.train(resume=begun).model, whole.model) == 0.0


@pytest.mark.parametrize("plan", ["downpour:workers=2", "local_sgd:workers=2", "gpipe:workers=1"])
def test_a_plateau_is_refused_where_nobody_knows_the_loss(plan: str) -> None:
    with pytest.raises(PlanError, match="ReduceLROnPlateau follows the loss of whole batches"):
        pl.train(job(PLATEAU), plan, folder=None)


def test_another_interval_is_refused_by_its_name() -> None:
    with pytest.raises(JobError, match="lr_scheduler_interval='epochs'; did you mean 'epoch'"):
        job(HALVING, lr_scheduler_interval="epochs")


# --- A shard that is stepped as one tensor has the bits that its parameters have when they are stepped one by one -----

SGD = torch.optim.SGD


def _network(widths: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(*(nn.Linear(before, after) for before, after in pairwise(widths)))


def _flat(layout: Layout, seed: int) -> torch.Tensor:
    return torch.randn(layout.shards[0].length, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("decay", [0.0, 1e-5])
@pytest.mark.parametrize("widths", [(1, 1), (3, 5, 2), (17, 33, 10), (129, 65, 31, 3)])
def test_a_step_of_the_whole_has_the_bits_of_steps_of_its_parts(widths: tuple[int, ...], decay: float) -> None:
    module = _network(widths)
    (shard,) = (layout := lay_out(module, 1, ())).shards
    apart, together = _flat(layout, 0), _flat(layout, 0)
    parameters = [nn.Parameter(view) for view in shard.parameter_views(apart)]
    one_by_one, own = (SGD(parameters, lr=0.05, weight_decay=decay) for _ in range(2))
    schedule = [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in (one_by_one, own)]
    whole = WholeStep.of(own)
    assert whole is not None
    for update in range(5):
        gradients = _flat(layout, 1 + update)
        for parameter, gradient in zip(parameters, shard.parameter_views(gradients), strict=True):
            parameter.grad = gradient
        one_by_one.step()
        whole.step(shard.flat_views(together).flat, shard.flat_views(gradients).flat)
        own._opt_called = True  # type: ignore[attr-defined]
        for each in schedule:
            each.step()
    for one, other in zip(shard.parameter_views(apart), shard.parameter_views(together), strict=True):
        assert torch.equal(one, other)


class _OwnSgd(SGD):
    """What a user may have changed."""


@pytest.mark.parametrize(
    "make",
    [
        partial(SGD, lr=0.1, momentum=0.9),
        partial(torch.optim.Adam, lr=0.1),
        partial(_OwnSgd, lr=0.1),
        lambda parameters: SGD([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.2}], lr=0.1),
    ],
    ids=["momentum", "adam", "own class", "two groups"],
)
def test_other_optimizers_step_their_parameters_one_by_one(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> None:
    assert WholeStep.of(make(list(_network((3, 2)).parameters()))) is None


def test_an_optimizer_with_hooks_steps_its_parameters_one_by_one() -> None:
    optimizer = SGD(_network((3, 2)).parameters(), lr=0.1)

    def hook(optimizer: Any, *rest: Any) -> None: ...

    optimizer.register_step_pre_hook(hook)
    assert WholeStep.of(optimizer) is None


class Counter:
    """Has a method that PyTorch keeps out of compiled code, as the methods of its optimizers."""

    @torch._disable_dynamo
    def add(self, number: int, more: int = 0) -> int:
        return 1 + number + more


def test_the_compiler_is_not_imported_to_switch_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    method: Any = Counter.add
    optimizers.without_the_compiler(method)
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch._dynamo")
        assert Counter().add(2, more=3) == 6
        assert "torch._dynamo" not in sys.modules
    passing = method.__wrapped__.__dynamo_disable
    assert Counter().add(2, more=3) == 6
    assert method.__wrapped__.__dynamo_disable is not passing  # but what PyTorch has put there


@pytest.mark.parametrize("name", ["add_param_group", "zero_grad", "state_dict", "load_state_dict"])
def test_the_methods_of_optimizers_are_those_that_import_the_compiler(name: str) -> None:
    """So that a version of PyTorch that does it otherwise is noticed."""
    method: Any = vars(torch.optim.Optimizer)[name]
    assert method.__code__.co_filename == torch._compile.__file__
    assert callable(method.__wrapped__.__dynamo_disable)
