"""Runs and comparisons have a text and an HTML form for notebooks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from paceline.interfaces.api.comparing.result import Comparison
from paceline.interfaces.api.simulate import Simulation
from paceline.interfaces.api.tuning.tune import tune
from paceline.planning.tuner.space import Float
from paceline.plans.plan import Plan
from paceline.runtime.engines.replay.replay import Replay
from paceline.runtime.runs.comparison import ComparisonAnswer, ComparisonKind, ComparisonRecord, FailedPlan, Row
from paceline.runtime.runs.run import comparison_table, summary_lines
from paceline.training.jobs.job import Job

ROWS = (Row("sequential", 1, 1000.0, (1000.0,), 1.0, 1.0), Row("ring:workers=2", 2, 1500.0, (1500.0,), 1.5, 0.75))
RECORD = ComparisonRecord(
    "<job>", "1 thread", 1000.0, 5, ROWS, answer=ComparisonAnswer(ComparisonKind.RECOMMENDED, "Recommended: ring x2")
)


def test_a_comparison_is_a_table_with_the_answer_below() -> None:
    lines = str(Comparison(RECORD)).splitlines()
    assert lines[0] == "<job>: plans side by side"
    assert lines[1].split() == ["plan", "samples/s", "speed-up"]
    assert lines[3].split() == ["ring", "x2", "1,500", "1.50"]
    assert lines[-1] == "Recommended: ring x2"
    assert len({len(line) for line in lines[1:4]}) == 1, "the columns are aligned"


def test_a_plan_that_failed_is_a_row_with_its_reason_below() -> None:
    found = Comparison(replace(RECORD, failed=(FailedPlan("ddp:workers=2", 2, "WorkerFailed: worker 0 ..."),)))
    lines = str(found).splitlines()
    assert lines[4].split() == ["ddp", "x2", "failed", "-"]
    assert lines[-2:] == ["ddp x2 failed: WorkerFailed: worker 0 ...", "Recommended: ring x2"]
    assert "<td>failed</td>" in found._repr_html_()
    assert found.as_dict()["failed"] == [
        {"plan": "ddp:workers=2", "workers": 2, "reason": "WorkerFailed: worker 0 ...", "run": None}
    ]


def test_reprs_are_one_line_that_says_what_came_of_it() -> None:
    assert repr(Comparison(RECORD)) == "Comparison('<job>': sequential, ring x2; Recommended: ring x2)"
    replay = Replay(nn.Linear(2, 2), 20, "ab", True, guilty_batch=(torch.ones(2),))
    assert repr(replay).startswith("Replay(updates=20, parameters_sha256='ab', matches=True")
    assert "tensor" not in repr(replay)


def test_a_tuning_is_shown_as_what_it_found() -> None:
    space = {"lr": Float(0.25, 0.5)}
    found = tune(
        objective=lambda trial: trial["lr"], space=space, search="random", n_trials=2, executor="here", folder=None
    )
    assert "\n" not in repr(found)
    assert str(found).splitlines()[0].startswith("     trials  2 by random, run as here: 2 done")
    assert "<td>value 0." in found._repr_html_()


def test_jobs_plans_replays_and_simulations_are_tables_in_a_notebook() -> None:
    x = torch.zeros(20, 3)
    optimizer = partial(torch.optim.SGD, lr=0.1)
    job = Job(lambda: nn.Linear(3, 1), (x, x[:, :1]), nn.MSELoss(), optimizer=optimizer, on_nan="skip", name="<own>")
    page = job._repr_html_()
    assert "<caption>Job &lt;own&gt;</caption>" in page
    for subject, line in {
        "model": "a lambda",
        "data": "(float32 20 x 3, float32 20 x 1)",
        "loss": "MSELoss",
        "optimizer": "SGD(lr=0.1)",
        "on_nan": "skip",
        "batch_size": "100",
    }.items():
        assert f'<tr><th scope="row">{subject}</th><td>{line}</td></tr>' in page
    assert "seed" not in page, "what is as usual is left out"
    plan = Plan.parse("ssp:bound=2")._repr_html_()
    assert "<caption>Plan ssp:bound=2</caption>" in plan
    assert "<td>bound</td><td>2</td>" in plan
    replay = Replay(nn.Linear(2, 2), 20, "ab" * 32, None, 21, None, torch.arange(9), 1, 0.5)
    assert "<td>0, 1, 2, 3, 4, 5, 6, 7, ...</td>" in replay._repr_html_()
    assert str(replay).splitlines()[2] == "       next  batch 21 of worker 1"
    simulated = Simulation("own", "ring:workers=2", 2, 100, 2.0, 500.0, (0.0, 0, 0), 0.25, 0, 10**6)
    assert '<th scope="row">waiting</th><td>25.0% of the workers&#x27; time</td>' in simulated._repr_html_()


def test_names_are_escaped_in_html() -> None:
    page = Comparison(RECORD)._repr_html_()
    assert "<caption>&lt;job&gt;: plans side by side</caption>" in page
    assert page.count("<tr>") == 3
    assert page.endswith("<p>Recommended: ring x2</p>")


def test_columns_without_figures_are_left_out() -> None:
    assert comparison_table(RECORD).heads == ("plan", "samples/s", "speed-up")


def test_a_summary_names_what_went_wrong() -> None:
    summary = {
        "plan": "ring", "workers": 2, "engine": "local", "updates": 10, "seconds": 1.0, "samples_per_second": 100.0,
        "train_loss": None, "staleness": {"mean": 0.0, "p95": 0.0, "max": 0}, "wait_fraction": None, "bytes_sent": 0,
        "parameters_sha256": "ab" * 32, "run": None, "compute": "autograd", "stragglers": {1: 0.4}, "not_finite": 0,
        "deaths": [], "advised_sizes": "", "idle": [],
    }  # fmt: skip
    lines = summary_lines(summary)
    assert lines["straggler"] == "worker 1 computes at 40% of the others' speed"
    assert "died" not in lines
    assert "idle" not in lines
    assert summary_lines({**summary, "idle": [0]})["idle"].startswith("worker 0: the others had done everything before")
    advised = summary_lines({**summary, "advised_sizes": "5+2"})
    assert advised["straggler"].endswith("; sizes=5+2 divides batches by speed")
