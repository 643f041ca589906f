"""Schedules that step by epochs, and one that follows the loss; a loop of plain PyTorch is the oracle."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

import paceline as pl
from paceline.errors import JobError, PlanError
from paceline.interfaces.testing.conformance import difference

X = torch.randn(24, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.randn(24, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
SGD = partial(torch.optim.SGD, lr=0.3, momentum=0.9)
HALVING = partial(StepLR, step_size=1, gamma=0.5)
PLATEAU = partial(ReduceLROnPlateau, patience=0, factor=0.5)


def job(schedule: Any, **changes: Any) -> pl.Job:
    return pl.Job(
        lambda: nn.Linear(4, 1).double(),
        (X, Y),
        nn.MSELoss(),
        optimizer=SGD,
        batch_size=8,
        epochs=6,
        shuffle=False,
        lr_scheduler=schedule,
        **changes,
    )


def by_hand(schedule: Any, with_loss: bool) -> tuple[nn.Module, float]:
    model = job(None).make_model()
    optimizer = SGD(model.parameters())
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
