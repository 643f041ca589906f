"""The order of targets: those under suspicion first, until their runs have led to nothing. Pure, without a thread."""

from __future__ import annotations

from collections import Counter

from paceline.concurrency.explore.strategies.directed import Target, Targets

ONE, OTHER = (frozenset({("app.py", line), ("app.py", line + 1)}) for line in (3, 7))


def first(suspected: Target) -> Counter[Target]:
    return Counter(Targets(suspected).choose([ONE, OTHER], seed) for seed in range(100))


def test_a_target_under_suspicion_comes_first_and_the_other_one_comes_too() -> None:
    assert 80 < first(OTHER)[OTHER] < 100
    assert 30 < first(frozenset())[OTHER] < 70


def test_a_target_whose_runs_led_to_nothing_gives_way() -> None:
    targets = Targets(OTHER)
    counts = Counter(targets.choose([ONE, OTHER], seed) for seed in range(200))
    assert counts[ONE] > 20
    assert counts[OTHER] > counts[ONE]


def test_without_conflicts_there_is_no_target() -> None:
    assert Targets(OTHER).choose([], 1) == frozenset()
