"""The schedule of exchanges: every fragment once in a period, spread evenly, and all of them after the last update."""

from __future__ import annotations

import itertools

import pytest

from paceline.algorithms.rules.averaging import Streaming
from tests.each import each

SCHEDULES = [(every, fragments) for every in (1, 2, 3, 5, 8, 50) for fragments in range(1, min(every, 7) + 1)]


@each(("every", "fragments"), SCHEDULES)
def test_every_fragment_is_exchanged_once_in_a_period_and_no_two_at_once(every: int, fragments: int) -> None:
    streaming, updates = Streaming(every, fragments), 4 * every
    after = [streaming.after(update, updates) for update in range(updates)]
    assert all(count <= 1 for count in after[:-1])
    assert after[-1] == fragments
    numbers = list(itertools.accumulate(after, initial=0))
    assert numbers == [streaming.before(update, updates) for update in range(updates + 1)]
    places = [update for update, count in enumerate(after[:-1]) if count]
    for period in range(3):
        inside = [n for n, place in enumerate(places) if period * every <= place < (period + 1) * every]
        assert sorted(n % fragments for n in inside) == list(range(fragments))
    assert {b - a for a, b in itertools.pairwise(places)} <= {every // fragments, -(-every // fragments)}


OVERLAPPING = [(every, f, overlap) for every, f in SCHEDULES for overlap in {1, every // f // 2, every // f} - {0}]


@each(("every", "fragments", "overlap"), OVERLAPPING)
def test_an_exchange_is_applied_so_many_updates_later_and_before_the_next_begins(
    every: int, fragments: int, overlap: int
) -> None:
    streaming = Streaming(every, fragments, overlap)
    for updates in (1, every, 3 * every, 3 * every + 1, 4 * every + overlap):
        begun: int | None = None
        for update in range(updates):
            assert streaming.under_way(update) == (begun is not None)
            if streaming.lands(update, updates):
                assert begun is not None
                assert update == min(begun + overlap, updates - 1)
                begun = None
            if streaming.after(update, updates):
                assert begun is None
                begun = update
        assert begun == updates - 1 if updates else None


@each(("every", "fragments", "overlap"), OVERLAPPING)
def test_updates_ahead_end_where_an_exchange_is_applied(every: int, fragments: int, overlap: int) -> None:
    streaming, updates = Streaming(every, fragments, overlap), 3 * every + 1

    def busy(update: int) -> bool:
        return streaming.after(update, updates) > 0 or streaming.lands(update, updates)

    for first in range(updates):
        ahead = streaming.ahead(range(first, updates))
        assert ahead[0] == first
        assert not any(busy(update) for update in ahead[:-1])
        assert busy(ahead[-1])


@pytest.mark.parametrize("every", [1, 3, 10])
def test_one_fragment_is_exchanged_every_so_many_updates_and_after_the_last(every: int) -> None:
    streaming = Streaming(every)
    assert [update for update in range(25) if streaming.after(update, 25)] == sorted({*range(every - 1, 25, every), 24})


def test_without_a_period_there_is_a_single_exchange_at_the_end() -> None:
    streaming = Streaming(0)
    assert [streaming.after(update, 6) for update in range(6)] == [0, 0, 0, 0, 0, 1]
    assert streaming.ahead(range(2, 6)) == range(2, 6)
    assert streaming.before(0, 0) == 0


@each(("every", "fragments"), SCHEDULES)
def test_updates_ahead_end_with_the_next_exchange(every: int, fragments: int) -> None:
    streaming, updates = Streaming(every, fragments), 3 * every + 1
    for first in range(updates):
        ahead = streaming.ahead(range(first, updates))
        assert ahead[0] == first
        assert not any(streaming.after(update, updates) for update in ahead[:-1])
        assert streaming.after(ahead[-1], updates) or ahead[-1] == updates - 1
