"""The page of a tuning is well-formed, complete without a network, and survives every kind of trial."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from paceline.planning.tuner.journal import Journal
from paceline.planning.tuner.page import Axis, page, parallel
from paceline.planning.tuner.result import Account
from paceline.planning.tuner.searches import Search
from paceline.planning.tuner.space import Choice, Float, Int, Space
from paceline.planning.tuner.study import Study
from paceline.planning.tuner.trial import Terms, Trial
from paceline.planning.tuner.trials import drive
from paceline.planning.tuner.trials.choice import Here


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open, self.text = list[str](), ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def written(space: Space, search: str, objective: Any, budget: int | None) -> str:
    proposals, scheduler, total = Search.parse(search).open(space, budget, 4, 0, True, continues=False)
    study = Study(proposals, scheduler, Journal(None), True, total)
    spent = drive(study, Here(objective, study.report, Terms()))
    header = {"metric": "loss", "name": "<job>", "search": search, "space": space.describe()}
    return page(study, header, Account(spent.wall, spent.inside, spent.workers, spent.legs, 0.0))


def objective(trial: Trial) -> float:
    if trial["n"] == 2:
        raise ValueError("<wrong> shape")
    for step in range(1, trial.stop + 1):
        trial.report(trial["lr"] * trial.get("m", 0.5) / step, step)
        trial.raise_if_stopped()
    return trial.value


def test_a_page_of_stopped_failed_and_conditional_trials() -> None:
    space = Space(
        {
            "lr": Float(1e-4, 1.0, log=True),
            "n": Int(1, 3),
            "kind": ["a", "<b>"],
            "m": Float(0, 1, when={"kind": "a"}),
            "flag": Choice([True, False, None]),
        }
    )
    html = written(space, "asha:reduction_factor=2", objective, 24)
    read = Balanced()
    read.feed(html.partition("<body>")[2].partition("<script>")[0])
    assert read.open == []
    for words in ("Best so far", "Learning curves", "Importance", "worker 0", "stopped", "failed: ValueError: <wrong>"):
        assert words in read.text, words
    assert "http" not in html.partition("<body>")[2].partition("<script>")[0]


@pytest.mark.parametrize("budget", [1, 2])
def test_a_page_of_hardly_any_trials(budget: int) -> None:
    assert "trial" in written(Space({"lr": Float(0.1, 1), "n": Int(1, 1)}), "random", objective, budget)


def test_a_page_without_any_value() -> None:
    assert "No trial has a value" in written(Space({"lr": Float(0.1, 1), "n": Int(2, 2)}), "random", objective, 2)


@pytest.mark.parametrize(("values", "shown"), [([0.0, 0.01, 0.5, 0.52, 1.0], 3), ([0.0, 0.5, 1.0], 3)])
def test_marks_whose_texts_would_overlap_are_left_out(values: list[float], shown: int) -> None:
    axis = Axis("width", float, [(at, str(at)) for at in values])
    drawn = parallel([axis, Axis("loss", float, [])], [([0.5, 0.5], 1.0, 0)])
    assert sum(f">{at}</i>" in drawn for at in values) == shown
