"""Trials that are parallel runs go on from each other's checkpoints, with settings of their own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.errors import TuningError
from paceline.interfaces.api.tuning.setup import objective_of
from paceline.interfaces.api.tuning.trial_plans import PlannedObjective
from paceline.planning.tuner.searches import Search
from paceline.planning.tuner.training import JobObjective, Measure
from paceline.planning.tuner.trial import Trial
from paceline.runtime.engines.stepping import SteppedTraining
from paceline.training.jobs.job import Job


def make_job(trial: Trial) -> Job:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    y = x.sum(1, keepdim=True)
    return Job(
        model=lambda: nn.Linear(3, 1),
        data=(x, y),
        test=(x, y),
        loss=nn.MSELoss(),
        batch_size=10,
        optimizer=partial(torch.optim.SGD, lr=trial["lr"], momentum=0.5),
        epochs=2,
        shuffle=False,
    )


def leg(states: Path, number: int, rate: float, start: int, source: int | None = None) -> Trial:
    return Trial(number, {"lr": rate}, start, start + 1, states=states, source=source)


@pytest.mark.parametrize("plan", ["ring:workers=2", "ssp:workers=1"])
def test_a_member_goes_on_from_what_another_one_has_learned(plan: str, tmp_path: Path) -> None:
    jobs = JobObjective(make_job, SteppedTraining, Measure("test_loss"), heeds=frozenset())
    planned = PlannedObjective(jobs, plan, None)
    planned(leg(tmp_path, 0, 0.02, 0))
    exploited = planned(leg(tmp_path, 1, 0.08, 1, source=0))
    alone = SteppedTraining(make_job(leg(tmp_path, 0, 0.02, 0)).with_(epochs=2))
    alone.advance(4)
    changed = SteppedTraining(make_job(leg(tmp_path, 1, 0.08, 1)).with_(epochs=2))
    changed.restore(alone.state(), settings=False)
    changed.advance(8)
    assert exploited == pytest.approx(changed.evaluate()["test_loss"], rel=1e-5)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0-1", "1-2"]


def test_plans_without_checkpoints_are_refused_under_pbt() -> None:
    with pytest.raises(TuningError, match="keeps no checkpoints"):
        objective_of(make_job, Measure("train_loss"), Search.parse("pbt"), frozenset(), "pipedream:workers=2", None)
