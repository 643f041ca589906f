"""Cards survive the way to a file and back, and say what is wrong with a damaged one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UsageError
from paceline.planning.planner.card import Card, Exchange, Overhead, of_data_sheet
from tests.planning.planner.cards import CARD


def test_a_card_is_the_same_after_a_file(tmp_path: Path) -> None:
    CARD.write(tmp_path / "card.json")
    assert Card.read(tmp_path / "card.json") == CARD


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cores": 0}, "cores=0"),
        ({"operations": []}, "no operations"),
        ({"corse": 4}, "did you mean 'cores'"),
        ({"schema": 99}, "schema 99"),
        ({"exchanges": [dataclasses.asdict(CARD.exchanges[0]) | {"bandwidth": -1.0}]}, "must be positive"),
        ({"operations": [dataclasses.asdict(CARD.operations[0]) | {"compute": {"matmul.larg": 1.0}}]}, "matmul.large"),
        ({"operations": [dataclasses.asdict(CARD.operations[0]) | {"compute": {"call": -1.0}}]}, "not a number"),
    ],
)
def test_what_is_wrong_is_said_once(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Card.of(json.loads(json.dumps(dataclasses.asdict(CARD) | change)))


def test_files_that_are_no_cards(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="paceline calibrate"):
        Card.read(tmp_path / "none.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(UsageError, match="list"):
        Card.read(tmp_path / "list.json")


def test_more_workers_than_cores_take_turns() -> None:
    assert CARD.fit(4, 1)[1] == 1.0
    assert CARD.fit(8, 1)[1] == 2.0
    assert CARD.fit(8, 1)[0].busy == 4


def test_a_data_sheet_makes_a_card_with_a_wide_interval() -> None:
    card = of_data_sheet(100.0, 20.0, 8, 16 << 30)
    assert card.level == "card"
    assert card.fit(1, 1)[0].error > 1.0


def test_seconds_of_an_exchange_lie_between_those_that_were_measured() -> None:
    found = Exchange("push", 2, 1e-5, 1e9, 0.1, points=((1e3, 1e-5), (1e6, 1e-4), (1e7, 2e-3)))
    for size, seconds in ((10, 1e-5), (1e6, 1e-4), (5.5e6, 1.05e-3), (1.9e7, 3.9e-3)):
        latency, bandwidth = found.at(size)
        assert latency + size / bandwidth == pytest.approx(seconds)
    assert dataclasses.replace(found, points=()).at(1e6) == (1e-5, 1e9)


def test_the_nearest_overhead_is_the_larger_of_two() -> None:
    known = [Overhead("push", 2, 1.1, 0.2), Overhead("push", 4, 1.5, 0.2), Overhead("ddp", 3, 2.0, 0.2)]
    assert Overhead.nearest(known, "push", 3) is known[1]
    assert Overhead.nearest(known, "push", 2) is known[0]
    assert Overhead.nearest(known, "stages", 2) is None
