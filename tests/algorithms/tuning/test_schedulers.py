"""Schedulers against their papers' rules, and told the same again they decide the same again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from paceline.algorithms.tuning import FAILED, Random, Scheduler, TrialSegment
from paceline.algorithms.tuning.pbt import PopulationBasedTraining
from paceline.algorithms.tuning.schedulers import Asha, AshaStopping, Fifo, Hyperband, MedianStopping, SuccessiveHalving

MAKERS: dict[str, Callable[[], Scheduler]] = {
    "fifo": lambda: Fifo(20, 9),
    "asha": lambda: Asha(20, 9, reduction_factor=3),
    "asha_stopping": lambda: AshaStopping(20, 9, reduction_factor=3),
    "median_stopping": lambda: MedianStopping(20, 9),
    "successive_halving": lambda: SuccessiveHalving(20, 9),
    "hyperband": lambda: Hyperband(9),
    "pbt": lambda: PopulationBasedTraining(Random(2, 1), 8, 9, perturbation_interval=2),
}


def play(
    scheduler: Scheduler,
    loss: Callable[[int, int], float],
    workers: int,
    seed: int = 0,
    fails: frozenset[int] = frozenset(),
) -> list[Any]:
    """Train legs on so many workers in a random order; return the events."""
    chance, running, events = random.Random(seed), list[tuple[TrialSegment, int]](), list[Any]()
    while True:
        while len(running) < workers and (leg := scheduler.next()) is not None:
            running.append((leg, leg.start))
            events.append(leg)
        if not running:
            return events
        place = chance.randrange(len(running))
        leg, step = running.pop(place)
        step += 1
        value = loss(leg.trial, step)
        if leg.trial in fails:
            scheduler.end(leg.trial, leg.start, FAILED)
            events.append((leg.trial, "failed"))
            continue
        stop = scheduler.report(leg.trial, step, value)
        events.append((leg.trial, step, value, stop))
        if stop or step == leg.stop:
            scheduler.end(leg.trial, step, value)
        else:
            running.append((leg, step))


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("workers", [1, 4])
def test_told_the_same_again_it_decides_the_same_again(name: str, workers: int) -> None:
    def loss(trial: int, step: int) -> float:
        return (trial * 7 % 13) + 1 / step

    assert play(MAKERS[name](), loss, workers, 3) == play(MAKERS[name](), loss, workers, 3)


@pytest.mark.parametrize("name", MAKERS)
def test_trials_that_fail_do_not_hold_up_the_others(name: str) -> None:
    events = play(MAKERS[name](), lambda trial, step: float(trial), 3, fails=frozenset(range(1, 40, 2)))
    trained = {e[0] for e in events if isinstance(e, tuple) and e[1] == 9}
    assert 0 in trained


@pytest.mark.parametrize("name", ["successive_halving", "hyperband", "pbt"])
def test_what_waits_for_all_does_not_depend_on_their_order(name: str) -> None:
    def loss(trial: int, step: int) -> float:
        return (trial * 7 % 13) + 1 / step

    sets = []
    for seed in range(4):
        events = play(MAKERS[name](), loss, 1 + seed, seed)
        sets.append(
            {(e.trial, e.start, e.stop, e.source, e.coordinates) for e in events if isinstance(e, TrialSegment)}
        )
    assert sets[0] == sets[1] == sets[2] == sets[3]


def test_asha_continues_the_best_part_of_what_has_come_to_a_rung() -> None:
    asha, losses = Asha(7, 9, grace_period=1, reduction_factor=3), [5.0, 4.0, 6.0, 3.0, 4.5, 4.0, 3.5]
    legs = []
    while (leg := asha.next()) is not None:  # one worker
        legs.append((leg.trial, leg.start, leg.stop))
        asha.end(leg.trial, leg.stop, losses[leg.trial] / leg.stop)
    # of three trials the best one goes on, and one that is better than all; of seven, the best two
    assert legs[:6] == [(0, 0, 1), (1, 0, 1), (2, 0, 1), (1, 1, 3), (3, 0, 1), (3, 1, 3)]
    assert legs[6:] == [(4, 0, 1), (5, 0, 1), (6, 0, 1), (6, 1, 3), (3, 3, 9)]


def test_asha_trains_what_successive_halving_trains_if_all_come_at_once() -> None:
    def loss(trial: int, step: int) -> float:
        return (trial * 7 % 37) + 1 / step

    def trained(scheduler: Scheduler) -> set[tuple[int, int, int]]:
        events = play(scheduler, loss, 36)
        return {(e.trial, e.start, e.stop) for e in events if isinstance(e, TrialSegment)}

    halving = SuccessiveHalving(36, 27, 2, 4)
    wanted = set()
    while legs := list(iter(halving.next, None)):
        for leg in legs:
            wanted.add((leg.trial, leg.start, leg.stop))
            halving.end(leg.trial, leg.stop, loss(leg.trial, leg.stop))
    asha, found = Asha(36, 27, 2, 4), set()
    while legs := list(iter(asha.next, None)):
        for leg in legs:
            found.add((leg.trial, leg.start, leg.stop))
            asha.end(leg.trial, leg.stop, loss(leg.trial, leg.stop))
    assert found == wanted
    assert trained(Asha(3, 27, 2, 4)) >= {(0, 8, 27)}, "of too few for a rung, the best one is trained to the end"


def test_asha_in_its_stopping_form_keeps_the_best_part_of_a_rung() -> None:
    asha = AshaStopping(100, 9, grace_period=1, reduction_factor=3)
    answers = [asha.report(trial, 1, loss) for trial, loss in enumerate([5.0, 4.0, 6.0, 3.0, 4.5, 4.0, 3.5])]
    # of 1, 2, 3, 4, 5 the best one goes on; of 6 and 7 the best two, ties included
    assert answers == [False, False, True, False, True, False, False]
    assert not asha.report(0, 2, 9.0), "step 2 is no rung"


def test_successive_halving_trains_a_third_of_each_rung_longer() -> None:
    events = play(SuccessiveHalving(18, 9), lambda trial, step: float(trial), 4)
    legs = [event for event in events if isinstance(event, TrialSegment)]
    assert [sum(leg.stop == stop for leg in legs) for stop in (1, 3, 9)] == [18, 6, 2]
    assert {leg.trial for leg in legs if leg.stop == 9} == {0, 1}


def test_hyperbands_brackets_are_the_papers() -> None:
    """Table 1 of the paper, R = 81 and eta = 3: the number of trials and the steps of each bracket's first rung."""
    first = [(len(b.waiting), b.steps[0]) for b in Hyperband(81).brackets]
    assert first == [(81, 1), (34, 3), (15, 9), (8, 27), (5, 81)]


def test_the_median_rule_compares_a_best_with_averages() -> None:
    rule = MedianStopping(9, 10, grace_period=2, min_trials=3)
    for trial, losses in enumerate([(4.0, 2.0), (5.0, 3.0), (6.0, 4.0)]):
        for step, loss in enumerate(losses, start=1):
            rule.report(trial, step, loss)
    assert not rule.report(3, 1, 99.0), "younger than grace_period"
    assert rule.report(3, 2, 4.1), "the averages are 3, 4 and 5"
    assert not rule.report(4, 1, 3.9)
    assert not rule.report(4, 2, 99.0), "its best is 3.9"


def test_pbt_copies_the_best_to_the_worst_and_changes_their_configuration() -> None:
    sampler = Random(2, 5)
    population = PopulationBasedTraining(sampler, 8, 6, perturbation_interval=3)
    events = play(population, lambda trial, step: float(trial), 8)
    second = [e for e in events if isinstance(e, TrialSegment) and e.start == 3]
    copied = {leg.trial: leg for leg in second if leg.source is not None}
    assert sorted(copied) == [6, 7]
    for leg in copied.values():
        assert leg.source in (0, 1)
        before = sampler.coordinates(leg.source)
        assert leg.coordinates != before
        assert leg.coordinates is not None
        assert all(0 <= value <= 1 for value in leg.coordinates)
