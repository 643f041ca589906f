"""How plans are timed: in which order, how long, and without what a worker does once."""

from __future__ import annotations

import multiprocessing
import time
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import paceline as pl
from paceline.interfaces.api.comparing.progress import Cost, Course
from paceline.interfaces.api.comparing.timing import LEAST, MOST, Entrant, TimingRounds, time_plans
from paceline.plans.plan import Plan
from paceline.training.gradients import probe

X = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
COURSE = Course(Cost(0.1, 1.0), lambda line: None, None)
COMPILE = 1.5  # seconds that a model's first batch takes in each worker


class Compiled(nn.Linear):
    """A model whose first batch takes long, as after torch.compile."""

    compiled = False

    def forward(self, x: Tensor) -> Tensor:
        if multiprocessing.parent_process() is not None and not self.compiled:
            time.sleep(COMPILE)
            self.compiled = True
        return super().forward(x)


def job(model: type[nn.Module] = nn.Linear) -> pl.Job:
    return pl.Job(
        partial(model, 4, 3),
        (X, X.argmax(1) % 3),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=20,
    )


def test_compiling_is_not_part_of_a_speed() -> None:
    entrant = Entrant("sequential", Plan.parse("sequential"), job(Compiled), updates=60)
    entrant.time_round(0.0)
    with_compiling = 60 * 20 / COMPILE
    assert entrant.speed > 2 * with_compiling


def test_rounds_of_a_plan_probe_the_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    probed, find = [], probe._probed
    monkeypatch.setattr(probe, "_probed", lambda *rest: probed.append(1) or find(*rest))
    entrant = Entrant("sequential", Plan.parse("sequential"), job().with_(compute="autograd"), updates=5)
    with probe.probing_once():
        for _ in range(2):
            entrant.time_round(0.0)
    assert len(probed) == 1


def test_more_time_is_more_rounds() -> None:
    assert TimingRounds.of(None).rounds == LEAST
    assert TimingRounds.of(0.05) == (LEAST, 0.01, 0)
    assert TimingRounds.of(60.0) == (20, 3.0, 0)
    assert TimingRounds.of(600.0) == (MOST, 24.0, 0)


def test_all_are_timed_in_every_round_and_to_and_fro(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def note(self: Entrant, seconds: float) -> None:
        order.append(f"{self.name}/{self.plan.threads}")
        self.speeds.append(1.0)

    monkeypatch.setattr(Entrant, "time_round", note)
    monkeypatch.setattr(Entrant, "learn_from", lambda self, run, seconds: None)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    plans = [Plan.parse(plan, 2) for plan in ("sequential", "ring", "downpour")]
    run = pl.train(job(), "sequential", engine="virtual", folder=None)
    said: list[str] = []
    timed = time_plans(job(), plans, [run] * 3, TimingRounds(2, 0.1), Course(Cost(0.1, 1.0), said.append, None))
    assert said[0].startswith("in the whole trainings, times as fast as one process: ring:workers=2 1.00, downpour")
    so_far = "ring:workers=2 1.00 (1.00 to 1.00), downpour:workers=2 1.00 (1.00 to 1.00)"
    assert said[-1] == f"after 2 rounds, times as fast as one process: {so_far}"
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    # One process with one thread is a plan and a single process at once, and timed once.
    assert first == [
        "sequential/1",
        "ring:workers=2/1",
        "downpour:workers=2/1",
        "sequential/2",
        "ceiling of 2 x 10/1",
        "ceiling of 2 x 20/1",
    ]
    assert second == first[::-1]
    assert timed.singles[0] is timed.plans[0]


def test_a_speed_up_is_made_of_rounds_not_of_medians() -> None:
    """Where the machine slows down for some rounds, it slows down both: their ratio stays."""
    mine, other = (Entrant(name, Plan.parse("sequential"), job()) for name in ("a", "b"))
    mine.speeds, other.speeds = [150.0, 75.0, 15.0, 150.0, 30.0], [100.0, 50.0, 10.0, 100.0, 20.0]
    assert mine.over(other) == (1.5, (1.5, 1.5))


@pytest.mark.parametrize(
    ("speeds", "rounds"),
    [
        ([150, 151, 149, 150, 150], 5),  # agree
        ([150, 151, 149, 150, 60, 150, 151, 150], 8),  # eight leave out the one that disagrees
        ([80, 81, 79, 80, 80], 5),  # agree too: one process is faster
        ([104, 106, 99, 103, 105] * 3, 11),  # leave open whether it pays until two at each end are left out
        ([50, 300, 100, 200, 20] * 3, 13),  # never agree
    ],
)
def test_rounds_are_added_while_they_disagree(
    speeds: list[float], rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(self: Entrant, seconds: float) -> None:
        self.speeds.append(
            speeds[len(self.speeds)] if self.plan.name == "ring" else 100.0 + 50 * (self.plan.workers - 1)
        )

    monkeypatch.setattr(Entrant, "time_round", note)
    monkeypatch.setattr(Entrant, "learn_from", lambda self, run, seconds: None)
    plans = [Plan.parse(plan, 2) for plan in ("sequential", "ring")]
    run = pl.train(job(), "sequential", engine="virtual", folder=None)
    timed = time_plans(job(), plans, [run] * 2, TimingRounds.of(None), COURSE)
    assert len(timed.plans[1].speeds) == rounds
