"""The speed of a run without its warm-up, on made-up traces."""

from __future__ import annotations

import pytest

from paceline.runtime.runs.trace import Kind, Row, Trace
from paceline.runtime.runs.verdict import steady

MS = 10**6


def batches(worker: int, milliseconds: list[int], begin: int = 0) -> list[Row]:
    """One batch of 10 samples after another, each of so many milliseconds."""
    rows = []
    for number, length in enumerate(milliseconds):
        rows.append(Row(Kind.COMPUTE, worker, number, start=begin * MS, end=(begin + length) * MS, samples=10))
        begin += length
    return rows


def test_compiling_is_not_speed() -> None:
    found = steady(Trace.of(batches(0, [60_000, 40, *[10] * 100])))
    assert found is not None
    assert found.samples_per_second == pytest.approx(1000.0)
    assert found.share == pytest.approx(100 / 102)


def test_only_the_time_counts_in_which_all_workers_are_warm_and_have_work() -> None:
    one, other = batches(0, [10] * 50), batches(1, [95, 10, *[20] * 10])
    found = steady(Trace.of([*one, *other]))
    assert found is not None
    assert found.seconds == pytest.approx(0.2)  # from 105 to 305 milliseconds
    assert found.samples_per_second == pytest.approx(1000.0 + 500.0)
    late = steady(Trace.of([*batches(0, [10] * 12), *batches(1, [10] * 50)]))
    assert late is not None
    assert late.seconds == pytest.approx(0.1)
    assert late.samples_per_second == pytest.approx(2000.0)


def test_a_run_that_is_never_warm_has_no_speed() -> None:
    assert steady(Trace.of([])) is None
    assert steady(Trace.of(batches(0, [10, 10]))) is None
    assert steady(Trace.of([*batches(0, [1] * 20), *batches(1, [1000, 1000, 10])])) is None  # one was done before


def test_stages_that_write_points_in_time_are_counted() -> None:
    rows = [Row(Kind.COMPUTE, 1, n, start=n * 10 * MS, end=n * 10 * MS, samples=10) for n in range(20)]
    found = steady(Trace.of(rows))
    assert found is not None
    assert found.samples_per_second == pytest.approx(1000.0)
