"""Each stacked member equals its separate training, whoever leaves the stack meanwhile."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from paceline.algorithms.agenda import Agenda
from paceline.planning.tuner.journal import Journal
from paceline.planning.tuner.searches import Search
from paceline.planning.tuner.space import Space
from paceline.planning.tuner.study import Assignment, Study
from paceline.planning.tuner.training import JobObjective, Measure
from paceline.planning.tuner.trial import Terms, Trial
from paceline.planning.tuner.trials import drive
from paceline.planning.tuner.trials.choice import Here
from paceline.planning.tuner.trials.stacked import Stacked
from paceline.runtime.engines.stepping import SteppedTraining
from paceline.training.gradients.fastest_stack import CoreStack, Forms, LaneStack
from paceline.training.gradients.vmap_stack import CannotStack, shape_of
from paceline.training.jobs.job import Job

pytestmark = pytest.mark.usefixtures("quickly_compiled")
EPOCHS = 3


def net(dtype: torch.dtype, width: int, rate: float) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Dropout(rate), nn.Linear(width, 3)
    ).to(dtype)


def make_job(trial: Trial, dtype: torch.dtype = torch.float64) -> Job:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(90, 6, generator=generator).to(dtype)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    settings = {name: trial[name] for name in ("lr", "momentum", "weight_decay") if name in trial.configuration}
    return Job(
        model=partial(net, dtype, trial.get("width", 5), trial.get("dropout", 0.0)),
        data=(x[:70], y[:70]),
        test=(x[70:], y[70:]),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, **settings),
        batch_size=16,
        epochs=EPOCHS,
        seed=trial.get("seed", 0),
        device="cpu",
        compute="fused",
    )


def members(dtype: torch.dtype, count: int) -> list[Job]:
    return [
        make_job(Trial(n, {"lr": 0.02 * (n + 1), "momentum": 0.9 * (n % 2), "weight_decay": 1e-3 * (n % 3), "seed": n,
                           "dropout": 0.1 if n % 2 else 0.3}, 0, 1), dtype)
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("kind", [LaneStack, CoreStack])
def test_a_member_equals_its_separate_training(kind: Any, dtype: torch.dtype, tolerance: float) -> None:
    jobs = members(dtype, 19 if kind is LaneStack else 4)  # more than there are lanes
    _, source = shape_of(jobs[0])
    agenda = Agenda(len(source), 16, EPOCHS)
    stack = kind(jobs, source, agenda)
    alive = list(range(len(jobs)))
    for updates in (2, 5, 9, agenda.updates):  # in the middle of a pass and at its end
        losses = stack.advance(updates)
        assert len(losses) == len(alive)
        if updates == 5:
            alive = [1, 3] if kind is CoreStack else [1, 3, 18]
            stack.keep(alive)
    for place, number in enumerate(alive):
        alone = SteppedTraining(jobs[number])
        for updates in (2, 5, 9):
            alone.advance(updates)
        assert alone.advance(agenda.updates) == pytest.approx(losses[place], rel=tolerance)
        for mine, other in zip(alone.module.parameters(), stack.module(place).parameters(), strict=True):
            assert (mine - other).abs().max() <= tolerance * mine.abs().max()


@pytest.mark.parametrize("kind", [LaneStack, CoreStack])
def test_a_member_goes_on_from_its_state(kind: Any) -> None:
    jobs = members(torch.float64, 3)
    _, source = shape_of(jobs[0])
    agenda = Agenda(len(source), 16, EPOCHS)
    whole, first, second = kind(jobs, source, agenda), kind(jobs, source, agenda), kind(jobs[1:], source, agenda)
    whole.advance(7)
    first.advance(7)
    second.restore([first.state(place) for place in (1, 2)])
    assert second.advance(12) == pytest.approx(whole.advance(12)[1:], rel=1e-12)


SPACE = {"lr": [0.02, 0.1, 0.5, 1e300], "width": [4, 5, -1], "momentum": [0.0, 0.9]}


def run(search: str, stacked: bool, tmp_path: Any) -> Study:
    objective = JobObjective(make_job, SteppedTraining, Measure("test_loss"), heeds=None)
    proposals, scheduler, total = Search.parse(search).open(Space(SPACE), None, EPOCHS, 0, True)
    study = Study(proposals, scheduler, Journal(None), True, total)
    terms = Terms(0, tmp_path if scheduler.resumes else None)

    def make(shape: str, jobs: Any, source: Any) -> LaneStack:
        return LaneStack(jobs, source, Agenda(len(source), 16, EPOCHS))

    alone = Here(objective, study.report, terms)
    drive(study, Stacked(objective, study.report, terms, make, lambda: alone) if stacked else alone)
    return study


@pytest.mark.parametrize("search", ["grid", "successive_halving:sampler=grid"])
def test_stacked_trials_end_as_they_would_alone(search: str, tmp_path: Any) -> None:
    """Two architectures, one that cannot be made, and learning rates that end in NaN."""
    alone, together = run(search, False, tmp_path), run(search, True, tmp_path)
    assert alone.best is not None
    assert together.best is not None
    assert alone.best.number == together.best.number
    for number, trial in alone.trials.items():
        other = together.trials[number]
        assert trial.status == other.status, (trial, other)
        assert trial.value == pytest.approx(other.value, rel=1e-9) if trial.value is not None else other.value is None
    assert any(t.status == "failed" for t in together.trials.values())


class Odd(nn.Module):
    """A network that fails in a way of its own, where it is only looked at."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.layer = how, nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "raises":
            raise KeyError("oh no")
        if self.how == "leaves":
            raise SystemExit(4)
        if self.how == "hangs":
            time.sleep(30)
        found: torch.Tensor = self.layer(x[:, :5] if self.how == "shape" else x)
        return found


def test_a_network_that_fails_costs_only_itself() -> None:
    def odd(trial: Trial) -> Job:
        return make_job(Trial(0, {"lr": 0.1}, 0, 1)).with_(model=lambda: Odd(trial["how"]).double(), compute="autograd")

    objective = JobObjective(odd, SteppedTraining, Measure("test_loss"), heeds=None)
    space = Space({"how": ["fine", "raises", "leaves", "shape", "hangs"], "n": [1, 2]})
    proposals, scheduler, total = Search.parse("grid").open(space, None, EPOCHS, 0, True)
    study = Study(proposals, scheduler, Journal(None), True, total)
    apart: list[str] = []

    class Noted(Here):
        def start(self, assignment: Assignment, worker: int) -> None:
            apart.append(assignment.configuration["how"])
            if apart[-1] == "hangs":  # which a process would be ended for
                assignment = Assignment(assignment.leg, {**assignment.configuration, "how": "raises"})
            super().start(assignment, worker)

    stacked = Stacked(
        objective, study.report, Terms(0), Forms().stack, lambda: Noted(objective, study.report, Terms(0)), timeout=8.0
    )
    drive(study, stacked)
    assert sorted(set(apart)) == ["hangs", "leaves", "raises", "shape"]
    for trial in study.trials.values():
        assert (trial.status == "done") == (trial.configuration["how"] == "fine"), trial
    reasons = {trial.configuration["how"]: trial.reason for trial in study.trials.values()}
    assert "oh no" in reasons["raises"]
    assert "SystemExit: 4" in reasons["leaves"]
    assert "cannot be multiplied" in reasons["shape"]


def test_what_cannot_be_stacked_says_why() -> None:
    job = make_job(Trial(0, {"lr": 0.1}, 0, 1))
    with pytest.raises(CannotStack, match="clip_norm"):
        shape_of(job.with_(gradient_clip_norm=1.0))
