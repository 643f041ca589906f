"""Fits find the coefficients that measurements were made of."""

from __future__ import annotations

import math
import random

import pytest

from paceline.algorithms.collectives.ring import Ring
from paceline.planning.planner import fitting


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
