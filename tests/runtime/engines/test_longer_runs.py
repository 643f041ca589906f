"""A run that is done goes on with more epochs, as if it had been given them at first."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.errors import UsageError
from paceline.interfaces.testing.conformance import difference

X = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(48) % 3


def job(**changes: Any) -> pl.Job:
    given: dict[str, Any] = {"batch_size": 8, "epochs": 2, "test": (X, Y)}
    return pl.Job(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 3)),
        (X, Y),
        nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.Adam, lr=0.01),
        **{**given, **changes},
    )


@pytest.mark.parametrize("plan", ["sequential", "ring:workers=2", "downpour:workers=1", "gpipe:workers=2"])
def test_it_is_the_run_that_had_them_at_first(plan: str, tmp_path: Path) -> None:
    whole = pl.train(job(epochs=4), plan, folder=tmp_path)
    short = pl.train(job(), plan, folder=tmp_path, checkpoint_every=0)
    longer = pl.train(resume=short, epochs=4)
    assert difference(longer.model, whole.model) == 0.0
    assert [each.updates for each in longer.record.history] == [6, 12, 18, 24]
    assert [each.metrics for each in longer.record.history] == [each.metrics for each in whole.record.history]
    assert longer.record.job.epochs == 4
    assert pl.replay(longer).matches


def test_asynchronous_workers_go_on_too_and_again(tmp_path: Path) -> None:
    run = pl.train(job(), "downpour", 2, folder=tmp_path, checkpoint_every=0)
    for epochs in (3, 5):
        run = pl.train(resume=run, epochs=epochs)
        assert run.summary()["updates"] == 6 * epochs
        assert pl.replay(run).matches


@pytest.mark.parametrize(
    ("plan", "every", "more", "says"),
    [
        ("sequential", 0, {}, r"is done: .* as in --epochs 4"),
        ("sequential", 0, {"epochs": 2}, "has 2 epochs already"),
        ("sequential", None, {"epochs": 4}, "keeps no checkpoints"),
        ("local_sgd:workers=2,every=5", 0, {"epochs": 4}, "after update 12, where plan local_sgd would have gone on"),
    ],
)
def test_what_cannot_go_on_says_why(
    plan: str, every: int | None, more: dict[str, Any], says: str, tmp_path: Path
) -> None:
    run = pl.train(job(), plan, folder=tmp_path, checkpoint_every=every)
    with pytest.raises(UsageError, match=says):
        pl.train(resume=run, **more)


def test_epochs_without_a_run_belong_to_the_job() -> None:
    with pytest.raises(UsageError, match=r"Job\(epochs=\)"):
        pl.train(job(), epochs=3, folder=None)
