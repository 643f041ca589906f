"""A study decides the same after any number of kills, and every configuration is evaluated exactly once."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import TuningError
from paceline.planning.tuner.journal import Journal, read
from paceline.planning.tuner.result import Account
from paceline.planning.tuner.searches import SEARCHES, Search
from paceline.planning.tuner.space import Float, Int, Space
from paceline.planning.tuner.study import Study

# --- The account of a tuning has words for every case -----------------------------------------------------------------


def test_a_tuning_that_was_over_when_it_was_resumed() -> None:
    """As when it was killed between its last trial and its page."""
    assert Account(wall=0.0, inside=0.0, workers=2, legs=0, start=1.0).sentences() == ["nothing was left to train"]


def test_a_search_that_is_slower_than_one_worker_says_so() -> None:
    said = Account(wall=4.0, inside=2.0, workers=2, legs=10, start=0.0).sentences()
    assert "slower than a sequential one: 2.00 times" in said[1]


SPACE = Space({"x": Float(0, 1, count=4), "n": Int(1, 3)})
NAMES = [name for name in SEARCHES if name not in ("gp", "cmaes", "nsgaii", "qmc")]


def opened(file: Path, search: str, seed: int = 0) -> Study:
    chosen = Search.parse(search)
    budget = None if chosen.counts or chosen.sampler == "grid" else 12
    proposals, scheduler, total = chosen.open(SPACE, budget, 9, seed, True)
    return Study(proposals, scheduler, Journal(file), True, total, {"schema": 1})


def value(configuration: dict[str, Any], step: int) -> float:
    return (configuration["x"] - 0.3) ** 2 + configuration["n"] / step


class Killed(Exception):
    pass


def live(study: Study, chance: random.Random, workers: int, lifetime: int) -> None:
    """Run trials step by step, in a random order, until the search is over or so many events have come."""
    running: dict[int, int] = {}
    for _ in range(lifetime):
        while len(running) < workers and (given := study.next()) is not None:
            running[given.leg.trial] = given.leg.start
        if not running:
            return
        trial = chance.choice(sorted(running))
        given = study.running[trial]
        running[trial] += 1
        found = value(given.configuration, running[trial])
        stop = study.report(trial, running[trial], found)
        if stop or running[trial] == given.leg.stop:
            del running[trial]
            study.end(trial, found, stopped=stop)
    raise Killed


@pytest.mark.parametrize("search", NAMES)
def test_killed_at_any_moment_it_goes_on_where_it_was(search: str, tmp_path: Path) -> None:
    chance, file, lives = random.Random(search), tmp_path / "journal.jsonl", 0
    while True:
        study = opened(file, search)
        lives += 1
        try:
            live(study, chance, 3, chance.randrange(1, 40))
            study.journal.close()
            break
        except Killed:
            study.journal.close()
            if chance.random() < 0.5:  # torn in the middle of a line
                file.write_bytes(file.read_bytes() + b'{"row": "rep')
    assert lives > 1
    rows = read(file)
    reports = Counter((row["trial"], row["step"]) for row in rows if row["row"] == "report")
    assert max(reports.values()) == 1
    legs = Counter((row["trial"], row["start"]) for row in rows if row["row"] == "leg")
    assert max(legs.values()) == 1
    ends = Counter(row["trial"] for row in rows if row["row"] == "end")
    assert sum(ends.values()) == sum(legs.values())
    begun = [json.dumps(row["configuration"]) for row in rows if row["row"] == "leg" and not row["start"]]
    if search == "grid":
        assert sorted(begun) == sorted(
            {json.dumps({"x": x, "n": n}) for x in (0.0, 0.333333333333, 0.666666666667, 1.0) for n in (1, 2, 3)}
        )


@pytest.mark.parametrize("search", ["grid", "successive_halving", "hyperband", "pbt"])
def test_decisions_are_those_of_a_tuning_that_nobody_disturbed(search: str, tmp_path: Path) -> None:
    def legs(file: Path) -> set[str]:
        return {
            json.dumps([row[k] for k in ("trial", "start", "stop", "source", "configuration")])
            for row in read(file)
            if row["row"] == "leg"
        }

    calm = opened(tmp_path / "calm.jsonl", search)
    live(calm, random.Random(0), 1, 10_000)
    calm.journal.close()
    chance = random.Random(1)
    while True:
        study = opened(tmp_path / "killed.jsonl", search)
        try:
            live(study, chance, 4, chance.randrange(1, 30))
            break
        except Killed:
            pass
        finally:
            study.journal.close()
    assert legs(tmp_path / "calm.jsonl") == legs(tmp_path / "killed.jsonl")
    assert calm.best is not None
    assert study.best is not None
    assert (calm.best.number, calm.best.value) == (study.best.number, study.best.value)


def test_a_journal_with_a_changed_decision_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    study = opened(file, "median_stopping")
    live(study, random.Random(0), 2, 10_000)
    study.journal.close()
    file.write_text(file.read_text().replace('"stop": true', '"stop": false', 1))
    with pytest.raises(TuningError, match="decides otherwise"):
        opened(file, "median_stopping")


def test_a_journal_of_another_space_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    study = opened(file, "random")
    live(study, random.Random(0), 2, 10_000)
    study.journal.close()
    with pytest.raises(TuningError, match="the space now gives"):
        opened(file, "random", seed=1)


def test_a_tuning_goes_on_in_the_way_in_which_it_began(tmp_path: Path) -> None:
    study = opened(tmp_path / "journal.jsonl", "grid")
    study.runs("stacked")
    study.journal.close()
    again = opened(tmp_path / "journal.jsonl", "grid")
    assert again.way == "stacked"
    again.runs("stacked")
    again.journal.close()
    assert [row["row"] for row in read(tmp_path / "journal.jsonl")].count("way") == 1


def test_a_journal_has_one_writer(tmp_path: Path) -> None:
    study = opened(tmp_path / "journal.jsonl", "random")
    with pytest.raises(TuningError, match="is not over"):
        opened(tmp_path / "journal.jsonl", "random")
    study.journal.close()


def test_damage_is_named_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_text('{"row": "study", "schema": 1}\n{"row": }\n')
    with pytest.raises(TuningError, match="line 2"):
        read(file)


@pytest.mark.parametrize(
    ("search", "says"),
    [
        ("ahsa", "did you mean 'asha'"),
        ("asha:reduction_facter=3", "did you mean 'reduction_factor'"),
        ("asha:reduction_factor=1", "keeps all"),
        ("asha:grace_period=x", "whole number"),
        ("asha:sampler=sobl", "did you mean 'sobol'"),
    ],
)
def test_a_misspelt_search_is_corrected(search: str, says: str) -> None:
    with pytest.raises(TuningError, match=says):
        Search.parse(search)


def test_what_a_search_was_is_what_it_prints() -> None:
    text = "asha:max_t=9,grace_period=2,sampler=sobol"
    assert str(Search.parse(str(Search.parse(text)))) == text
