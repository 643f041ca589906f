from __future__ import annotations

from itertools import islice

from paceline.algorithms.agenda import Forecast


def test_leases_are_expected_as_far_apart_as_there_are_workers() -> None:
    forecast = Forecast(first=1, workers=3, leases=12)
    assert list(forecast.coming()) == [1, 4, 7, 10]
    forecast.leased(1)
    assert list(forecast.coming()) == [4, 7, 10]
    forecast.leased(5)  # one later than expected: those after it are, too
    assert list(forecast.coming()) == [8, 11]


def test_a_worker_that_is_twice_as_quick_expects_twice_as_many() -> None:
    forecast = Forecast(first=0, workers=3, leases=1000)
    for lease in range(0, 400, 2):
        forecast.leased(lease)
    assert list(islice(forecast.coming(), 5)) == [400, 402, 404, 406, 408]


def test_what_the_dead_left_changes_nothing() -> None:
    forecast = Forecast(first=0, workers=2, leases=10)
    for lease in (0, 2, 4):
        forecast.leased(lease)
    before = list(forecast.coming())
    forecast.leased(3)
    assert list(forecast.coming()) == before == [6, 8]


def test_leases_are_expected_in_order_and_once() -> None:
    forecast = Forecast(first=0, workers=2, leases=60)
    for lease in (0, 1, 3, 4, 5, 8):
        forecast.leased(lease)
        found = list(forecast.coming())
        assert found == sorted(set(found))
        assert all(lease < other < 60 for other in found)
