"""Cards survive the way to a file and back, and say what is wrong with a damaged one."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from paceline.algorithms.collectives.rings import Ring
from paceline.errors import UsageError
from paceline.planning.planner import fitting
from paceline.planning.planner.card import Card, ExchangeSeconds, Overhead, of_data_sheet
from tests.planning.planner.cards import CARD

# --- Fits find the coefficients that measurements were made of --------------------------------------------------------


def test_coefficients_are_found_again() -> None:
    draw = random.Random(1)
    true = {"call": 1e-5, "matmul.large": 2e-11, "far": 1e-10}
    rows = [
        {"call": draw.randint(5, 50), "matmul.large": 10 ** draw.uniform(5, 9), "far": 10 ** draw.uniform(3, 8)}
        for _ in range(40)
    ]
    found = fitting.fit(rows, [sum(true[k] * v for k, v in row.items()) for row in rows])
    assert found.coefficients == pytest.approx(true, rel=1e-3)
    assert found.error < 1e-3


def test_a_few_disturbed_steps_do_not_spoil_a_fit() -> None:
    draw = random.Random(2)
    rows = [{"call": draw.randint(5, 50), "far": 10 ** draw.uniform(3, 8)} for _ in range(40)]
    times = [1e-5 * row["call"] + 1e-10 * row["far"] for row in rows]
    times = [3 * t if number % 10 == 0 else t for number, t in enumerate(times)]
    found = fitting.fit(rows, times)
    assert found.coefficients == pytest.approx({"call": 1e-5, "far": 1e-10}, rel=0.05)


def test_figures_that_measurements_do_not_tell_apart_keep_their_usual_ratio() -> None:
    rows = [{"call": float(n), "view": float(n)} for n in range(1, 30)]
    times = [3e-5 * n for n in range(1, 30)]
    found = fitting.fit(rows, times, {"call": 1e-5, "view": 0.5e-5}, 0.1).coefficients
    assert found["call"] == pytest.approx(2 * found["view"], rel=0.01)
    assert found["call"] + found["view"] == pytest.approx(3e-5, rel=0.01)


def test_no_coefficient_is_negative() -> None:
    found = fitting.fit([{"call": 1.0, "far": float(n)} for n in range(1, 20)], [1.0 / n for n in range(1, 20)])
    assert all(value >= 0 for value in found.coefficients.values())


def test_an_exchange_is_fitted_by_the_closed_form_backwards() -> None:
    ring, sizes = Ring(), [4e3, 4e4, 4e5, 4e6]
    seconds = [ring.seconds(4, size, 2e-5, 3e9) for size in sizes]
    found = fitting.exchange("meeting", 4, sizes, seconds, ring)
    assert (found.latency, found.bandwidth) == pytest.approx((2e-5, 3e9), rel=1e-3)
    assert [ring.seconds(4, size, found.latency, found.bandwidth) for size in sizes] == pytest.approx(seconds, rel=1e-3)


def test_the_mean_of_the_largest_is_that_of_order_statistics() -> None:
    quantiles = fitting.quantiles([0.5 + n / 10_000 for n in range(10_001)])  # uniform from 0.5 to 1.5
    assert fitting.mean_of_largest(quantiles, 1) == pytest.approx(1.0, abs=0.01)
    for count in (2, 3, 4):
        assert fitting.mean_of_largest(quantiles, count) == pytest.approx(0.5 + count / (count + 1), abs=0.01)


def test_the_spread_covers_the_share() -> None:
    ratios = [math.exp((n - 500) / 1000) for n in range(1001)]
    width = math.exp(fitting.spread(ratios, 0.9))
    assert sum(1 / width <= ratio <= width for ratio in ratios) == pytest.approx(901, abs=2)


def test_an_exchange_keeps_what_was_measured_and_never_falls_with_size() -> None:
    found = fitting.exchange("meeting", 2, [1e3, 1e5, 1e6], [4e-5, 3e-5, 2e-4], Ring())
    assert found.points == ((500.0, 2e-5), (5e4, 2e-5), (5e5, 1e-4))


def test_pieces_and_bytes_are_distinguished() -> None:
    counts, sizes = [10.0, 10.0, 20.0], [1e4, 1e6, 1e5]
    seconds = [3e-5 * n + 1e-9 * size for n, size in zip(counts, sizes, strict=True)]
    found = fitting.piece("stage", 2, counts, sizes, seconds, [10 * s for s in seconds])
    assert found.latency == pytest.approx(3e-5)
    assert found.bandwidth == pytest.approx(1e9)


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
    found = ExchangeSeconds("push", 2, 1e-5, 1e9, 0.1, points=((1e3, 1e-5), (1e6, 1e-4), (1e7, 2e-3)))
    for size, seconds in ((10, 1e-5), (1e6, 1e-4), (5.5e6, 1.05e-3), (1.9e7, 3.9e-3)):
        latency, bandwidth = found.at(size)
        assert latency + size / bandwidth == pytest.approx(seconds)
    assert dataclasses.replace(found, points=()).at(1e6) == (1e-5, 1e9)


def test_the_nearest_overhead_is_the_larger_of_two() -> None:
    known = [Overhead("push", 2, 1.1, 0.2), Overhead("push", 4, 1.5, 0.2), Overhead("ddp", 3, 2.0, 0.2)]
    assert Overhead.nearest(known, "push", 3) is known[1]
    assert Overhead.nearest(known, "push", 2) is known[0]
    assert Overhead.nearest(known, "stages", 2) is None
