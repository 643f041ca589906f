"""plan="auto" of `train`: when a search pays, and that the same job is trained in the same way from then on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.errors import PlanWarning
from paceline.interfaces.api.planning import following


def job(**changes: object) -> pl.Job:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(60, 6, generator=generator), torch.randint(3, (60,), generator=generator)
    return pl.Job(
        model=lambda: nn.Sequential(nn.Linear(6, 3)),
        data=(x, y),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=10,
    ).with_(**changes)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(following, "choices", lambda: tmp_path / "choices")


def test_a_training_of_seconds_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "choose", lambda *_, **__: pytest.fail("it searched"))
    with pytest.warns(PlanWarning, match=r"plan auto: sequential. one process trains in about 0\.\d s, and a search"):
        run = pl.train(job(), "auto", folder=None)
    assert (run.record.plan, run.record.compute) == ("sequential", "autograd")
    assert "6 batches" in run.record.notes[-1], "the run says how it computes, too"


def test_a_long_training_follows_the_search_and_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "update_seconds", lambda *_: 10.0)
    best = SimpleNamespace(plan="ring:workers=2")
    found = SimpleNamespace(best=best, compute="autograd", sentences=("it is the fastest",))
    monkeypatch.setattr(following, "choose", lambda *_, **__: found)
    first = following.follow(job())
    assert first == ("ring:workers=2", "autograd", "it is the fastest")
    for name in ("update_seconds", "choose"):
        monkeypatch.setattr(following, name, lambda *_, **__: pytest.fail("it was chosen before"))
    assert following.follow(job(seed=1)) == first


@pytest.mark.parametrize("changes", [{"epochs": 2}, {"batch_size": 20}, {"compute": "autograd"}])
def test_another_length_batch_or_way_of_computing_is_another_choice(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    timed = []
    monkeypatch.setattr(following, "update_seconds", lambda *_: timed.append(1) or 1e-3)
    for each in (job(), job(**changes), job()):
        following.follow(each)
    assert len(timed) == 2


@pytest.mark.parametrize(
    ("threads", "ring", "plan"),
    [(2.0, 3.0, "sequential:threads=2"), (3.9, 2.0, "ring:workers=2"), (3.9, 3.7, "sequential")],
)
def test_a_second_core_trains_what_lasts_some_seconds_if_that_is_faster(
    monkeypatch: pytest.MonkeyPatch, threads: float, ring: float, plan: str
) -> None:
    _take(monkeypatch, {"sequential:threads=2": threads, "ring:workers=2": ring})
    followed = following.follow(job())
    assert followed.plan == plan
    assert f"{threads:.1f} s, ring:workers=2 in {ring:.1f} s" in followed.why


@pytest.mark.parametrize(
    ("model", "workers"), [(nn.Linear(6, 3), 1), (nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), 2)]
)
def test_batches_are_not_divided_for_one_worker_nor_where_they_are_normed(
    monkeypatch: pytest.MonkeyPatch, model: nn.Module, workers: int
) -> None:
    _take(monkeypatch, {"ring:workers=2": 1.0})
    assert following.follow(job(model=model), workers).plan == "sequential"


@pytest.mark.parametrize(("asynchronous", "said"), [(2.0, True), (3.9, False)])
def test_a_faster_plan_with_other_numbers_is_named_and_not_taken(
    monkeypatch: pytest.MonkeyPatch, asynchronous: float, said: bool
) -> None:
    _take(monkeypatch, {"downpour:workers=2": asynchronous})
    followed = following.follow(job())
    assert followed.plan == "sequential"
    assert ("downpour would be about 2.0 times as fast" in followed.why) is said


def _take(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> None:
    """Let plans take so many seconds, or 4, for the 6 updates of the job, on two cores, as if these were many."""
    monkeypatch.setattr(following, "MANY", 6)
    monkeypatch.setattr(following, "update_seconds", lambda *_: 4.0 / 6)
    monkeypatch.setattr(
        following, "measure", lambda _, plan, __: SimpleNamespace(seconds=seconds.get(str(plan), 4.0) / 6)
    )
    monkeypatch.setattr(following.os, "sched_getaffinity", lambda _: {0, 1})
