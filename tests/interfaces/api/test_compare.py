"""A comparison goes on without plans that fail, ends with what was measured, and says how long it takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.errors import PlanError, RunFailed, RunStopped, UsageError
from paceline.interfaces.api.comparing import compare, progress, timing
from paceline.interfaces.api.comparing.progress import Cost, Course, duration
from paceline.interfaces.api.comparing.result import Comparison
from paceline.interfaces.api.comparing.timing import Entrant, TimingRounds
from paceline.interfaces.api.train import train
from paceline.plans.plan import Plan
from paceline.training.jobs.job import Job

X = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
PLANS = ["sequential", "ring", "downpour"]


def job() -> Job:
    data = X, X.argmax(1) % 3
    return Job(
        partial(nn.Linear, 4, 3),
        data,
        nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=20,
        test=data,
        name="small",
    )


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, BaseException, int], None]:
    """Trainings on the virtual engine and rounds of made-up speeds; returns what lets a plan's step fail."""
    steps: list[tuple[str, int]] = []
    fails: dict[tuple[str, int], BaseException] = {}

    def note(plan: Plan) -> None:
        number = sum(name == plan.name for name, _ in steps)
        steps.append((plan.name, number))
        if (plan.name, number) in fails:
            raise fails[plan.name, number]

    def by_clock(job: Job, plan: Plan, folder: Path | None = None, **options: Any) -> pl.Run:
        note(plan)
        return train(job, plan, engine="virtual", folder=folder)

    def a_round(self: Entrant, seconds: float) -> None:
        note(self.plan)
        self.speeds.append(100.0 * self.plan.workers)
        self.waited.append(0.0)

    monkeypatch.setattr(compare, "train", by_clock)
    monkeypatch.setattr(Entrant, "time_round", a_round)
    monkeypatch.setattr(timing, "thread_counts", lambda: [1])
    monkeypatch.setattr(Cost, "of", classmethod(lambda cls, job: cls(0.5, 2.0)))

    def fail(name: str, error: BaseException, step: int = 0) -> None:
        fails[name, step] = error

    return fail


@pytest.mark.parametrize("step", [0, 3], ids=["its training", "its third round"])
def test_a_plan_that_fails_is_a_row_with_its_reason_and_the_others_go_on(
    virtual: Callable[..., None], step: int, tmp_path: Path
) -> None:
    virtual("ring", RunFailed("worker 0 failed first: no such thing.\n  when  ..."), step)
    found = compare.compare(job(), PLANS, folder=tmp_path)
    assert [row.name for row in found.rows] == ["sequential", "downpour"]
    (ring,) = found.failed
    assert ring.sentence == "ring x2 failed: RunFailed: worker 0 failed first: no such thing"
    assert found.answer.plan == found.best == "downpour:workers=2"
    assert found.to_pandas().loc["downpour:workers=2", "workers"] == 2
    assert found.path is not None
    written = json.loads((found.path / "comparison.json").read_text())
    assert [each["reason"] for each in written["failed"]] == [ring.reason]
    assert "Ring x2 failed: RunFailed" in (found.path / "report.html").read_text()
    assert len(found.runs) == len(found.rows) == 2


def test_a_comparison_of_which_nothing_is_left_raises(virtual: Callable[..., None]) -> None:
    virtual("ring", RunFailed("first"))
    virtual("downpour", PlanError("second"))
    with pytest.raises(RunFailed, match="first"):
        compare.compare(job(), ["ring", "downpour"], folder=None)
    assert not compare.compare(job(), ["sequential", "tree"], folder=None).failed
    virtual("sequential", RunFailed("all are compared with it"), 6)
    with pytest.raises(RunFailed, match="all are compared"):
        compare.compare(job(), ["tree", "sequential"], folder=None)


def test_a_signal_is_no_plan_that_fails(virtual: Callable[..., None]) -> None:
    virtual("ring", RunStopped(15, 1, 2, 0.5, "runs/x"))
    with pytest.raises(RunStopped):
        compare.compare(job(), PLANS, folder=None)


@pytest.mark.parametrize(
    ("plan", "step", "rounds", "names"),
    [
        ("downpour", 0, 0, ["sequential", "ring"]),  # in its training
        ("sequential", 1, 0, PLANS),  # in the first round
        ("downpour", 3, 2, PLANS),  # in the third round
    ],
)
def test_ctrl_c_ends_with_the_table_of_what_was_measured(
    virtual: Callable[..., None], plan: str, step: int, rounds: int, names: list[str], tmp_path: Path
) -> None:
    virtual(plan, KeyboardInterrupt(), step)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        compare.compare(job(), PLANS, folder=tmp_path)
    (found,) = interrupt.value.args
    assert isinstance(found, Comparison)
    assert [row.name for row in found.rows] == names
    assert found.rounds == rounds
    assert {len(row.rounds) for row in found.rows} == {max(1, rounds)}, "a round that was not whole counts for none"
    assert found.answer.kind == "undecided"
    assert f"it was interrupted after {rounds} whole rounds" in str(found)
    assert found.path is not None
    assert json.loads((found.path / "comparison.json").read_text())["interrupted"]


def test_ctrl_c_before_anything_was_measured_has_no_table(virtual: Callable[..., None]) -> None:
    virtual("sequential", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as interrupt:
        compare.compare(job(), PLANS, folder=None)
    assert interrupt.value.args == ()


def test_the_first_line_says_how_long_it_takes_and_a_bar_how_far_it_is(virtual: Callable[..., None]) -> None:
    lines: list[str] = []
    shares: list[float] = []
    compare.compare(
        job(), PLANS, seconds=10, folder=None, say=lines.append, progress=lambda share, what: shares.append(share)
    )
    # Three trainings of 2.5 s; five rounds of one process, two plans, two ceilings, each of which takes 2.5 s.
    assert lines[0] == "about 70 s: 3 plans x 5 rounds, after a whole training by each"
    assert lines[1].startswith("in the whole trainings, times as fast as one process: ")
    assert lines[2].startswith("after 2 rounds, times as fast as one process: ring:workers=2 2.00")
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert 0.9 < shares[-1] < 1
    lines.clear()
    compare.compare(job(), PLANS, folder=None, say=lines.append)
    assert (
        lines[0] == "about 30 s, up to 66 s while rounds disagree: 3 plans x 5 rounds, after a whole training by each"
    )
    assert lines[1] == "training small by sequential ..."
    assert len(lines) == 1 + 3 + 1 + 5 + 1, "a line for each training and round, for all trainings, and for two rounds"


def test_an_estimate_is_that_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "train", partial(train, engine="virtual"))
    cost = Cost.of(job().with_(epochs=7))
    assert cost.start >= 0
    assert cost.updates == pytest.approx(70 * Cost.of(job().with_(epochs=1)).updates / 10, rel=0.01)
    assert [duration(each) for each in (0.2, 61, 130, 9000)] == ["1 s", "61 s", "2 min", "2.5 h"]


def test_a_course_without_a_bar_says_each_step_once() -> None:
    lines: list[str] = []
    course = Course(Cost(1.0, 1.0), lines.append, None)
    course.announce(1, 2, TimingRounds(2, 1.0))
    for what in ("round 1", "round 1", "round 2"):
        course.begin(what, 2.0, "ring")
    assert lines == ["about 10 s: 1 plan x 2 rounds, after a whole training by each", "round 1 ...", "round 2 ..."]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workers": 1}, "workers=1: a comparison is of plans with several workers"),
        ({"quality_limit": 0}, "quality_limit=0: give the share that may be lost"),
        ({"quality_limit": float("inf")}, "quality_limit=inf"),
    ],
)
def test_what_cannot_be_compared_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        compare.compare(job(), **options)
