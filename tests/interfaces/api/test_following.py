"""plan="auto" of `train`: when a search pays, and that the same job is trained in the same way from then on."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.errors import PlanWarning, RunFailed
from paceline.interfaces.api.planning import following
from paceline.interfaces.api.planning.measuring import measure


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
    _take(monkeypatch, 4.0, {"sequential:threads=2": threads, "ring:workers=2": ring})
    followed = following.follow(job(epochs=100))
    assert followed.plan == plan
    assert f"{threads:.1f} s, ring:workers=2 in {ring:.1f} s" in followed.why


@pytest.mark.parametrize(
    ("model", "workers"), [(nn.Linear(6, 3), 1), (nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), 2)]
)
def test_batches_are_not_divided_for_one_worker_nor_where_they_are_normed(
    monkeypatch: pytest.MonkeyPatch, model: nn.Module, workers: int
) -> None:
    _take(monkeypatch, 4.0, {"ring:workers=2": 1.0})
    assert following.follow(job(model=model, epochs=100), workers).plan == "sequential"


@pytest.mark.parametrize(
    ("seconds", "epochs", "timed"),
    [
        (0.9, 100, []),  # half of it is gone when two plans have been timed for a tenth of a second
        (1.5, 100, ["sequential", "sequential:threads=2"]),
        (4.0, 100, ["sequential", "sequential:threads=2", "ring:workers=2"]),
        (29.0, 100, ["sequential", "sequential:threads=2", "ring:workers=2", "downpour:workers=2"]),
        (29.0, 2, []),  # of 12 updates, five by each plan are too many
    ],
)
def test_plans_are_timed_in_less_time_than_they_can_save(
    monkeypatch: pytest.MonkeyPatch, seconds: float, epochs: int, timed: list[str]
) -> None:
    plans = _take(monkeypatch, seconds, {})
    following.follow(job(epochs=epochs))
    assert plans == timed


def test_what_ends_sooner_than_expected_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = _take(monkeypatch, 4.0, {"sequential": 0.5})
    followed = following.follow(job(epochs=100))
    assert (followed.plan, plans) == ("sequential", ["sequential"])
    assert "about 0.5 s" in followed.why


@pytest.mark.parametrize(("asynchronous", "said"), [(10.0, True), (19.5, False)])
def test_a_faster_plan_with_other_numbers_is_named_and_not_taken(
    monkeypatch: pytest.MonkeyPatch, asynchronous: float, said: bool
) -> None:
    _take(monkeypatch, 20.0, {"downpour:workers=2": asynchronous})
    followed = following.follow(job(epochs=100))
    assert followed.plan == "sequential"
    assert ("downpour would be about 2.0 times as fast" in followed.why) is said


def test_timing_ends_where_a_plan_is_too_slow() -> None:
    def step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        time.sleep(0.05)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    with pytest.raises(RunFailed, match=r"of 5000 updates took more than 0\.2 s"):
        measure(job(loss=None, step=step), following.ONE, 5000, most=0.2)


def _take(monkeypatch: pytest.MonkeyPatch, expected: float, seconds: dict[str, float]) -> list[str]:
    """Let plans take so many seconds for all updates, on two cores, or else what is expected; return those timed."""
    plans, updates = list[str](), list[int]()

    def update_seconds(job: pl.Job, *_: object) -> float:
        updates.append(6 * job.epochs)
        return expected / updates[-1]

    def measured(_: pl.Job, plan: pl.Plan, *__: object) -> SimpleNamespace:
        plans.append(str(plan))
        return SimpleNamespace(seconds=seconds.get(str(plan), expected) / updates[-1])

    monkeypatch.setattr(following, "update_seconds", update_seconds)
    monkeypatch.setattr(following, "measure", measured)
    monkeypatch.setattr(following.os, "sched_getaffinity", lambda _: {0, 1})
    return plans
