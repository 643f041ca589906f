"""The account of a tuning has words for every case."""

from __future__ import annotations

from paceline.planning.tuner.account import Account


def test_a_tuning_that_was_over_when_it_was_resumed() -> None:
    """As when it was killed between its last trial and its page."""
    assert Account(wall=0.0, inside=0.0, workers=2, legs=0, start=1.0).sentences() == ["nothing was left to train"]


def test_a_search_that_is_slower_than_one_worker_says_so() -> None:
    said = Account(wall=4.0, inside=2.0, workers=2, legs=10, start=0.0).sentences()
    assert "slower than a sequential one: 2.00 times" in said[1]
