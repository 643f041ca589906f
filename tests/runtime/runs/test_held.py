"""Time to a target is the time from which on it was held."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.runtime.runs.held import common_level, seconds_to_hold
from paceline.runtime.runs.record import Evaluation


def history(*levels: float) -> list[Evaluation]:
    return [Evaluation(n, float(n), {"test_accuracy": level}) for n, level in enumerate(levels)]


def test_a_peak_is_not_a_level() -> None:
    peaked, steady = history(0.5, 0.967, 0.92, 0.94, 0.944), history(0.4, 0.8, 0.93, 0.945, 0.95)
    assert common_level([peaked, steady], "test_accuracy") == 0.944
    assert seconds_to_hold(peaked, "test_accuracy", 0.944) == 4.0
    assert seconds_to_hold(peaked, "test_accuracy", 0.92) == 1.0
    assert seconds_to_hold(steady, "test_accuracy", 0.944) == 3.0
    assert seconds_to_hold(steady, "test_accuracy", 0.96) is None


def test_without_an_evaluation_there_is_no_level() -> None:
    assert common_level([history(0.5), []], "test_accuracy") is None
    assert common_level([history(0.5), history(float("nan"))], "test_accuracy") is None
    assert common_level([], "test_accuracy") is None
    assert seconds_to_hold([], "test_accuracy", 0.5) is None


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=9), min_size=1, max_size=4))
def test_every_run_holds_the_common_level(runs: list[list[float]]) -> None:
    level = common_level([history(*levels) for levels in runs], "test_accuracy")
    assert level is not None
    for levels in runs:
        since = seconds_to_hold(history(*levels), "test_accuracy", level)
        assert since is not None
        assert all(each >= level for each in levels[int(since) :])
