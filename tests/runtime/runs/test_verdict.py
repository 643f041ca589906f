"""What a comparison comes to: properties of the decision over made-up records, and its sentences."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.runtime.runs.comparison import ComparisonAnswer, ComparisonKind, ComparisonRecord, FailedPlan, Row
from paceline.runtime.runs.record import Evaluation
from paceline.runtime.runs.verdict import (
    CROWDED,
    MOST_LOST,
    PAYS,
    SETTLED,
    common_level,
    decide,
    decided,
    disagreement,
    median_interval,
    seconds_to_hold,
    wilson,
)

# --- Time to a target is the time from which on it was held -----------------------------------------------------------


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


SINGLE = Row("sequential", 1, 100.0, (100.0,), 1.0, 1.0, test_accuracy=0.9, speedup_interval=(1.0, 1.0))


def row(plan: str, ratios: list[float], **known: Any) -> Row:
    """A plan whose rounds were so many times as fast as one process."""
    middle = statistics.median(ratios)
    return Row(
        plan,
        2,
        100 * middle,
        (100 * min(ratios), 100 * max(ratios)),
        middle,
        middle / 2,
        speedup_interval=tuple(median_interval(ratios)),
        **known,
    )


def record(*rows: Row, **known: Any) -> ComparisonRecord:
    given = {"command": "paceline train digits", "test_samples": 1000, **known}
    return ComparisonRecord("digits", "2 threads", 100.0, 5, (SINGLE, *rows), **given)


def rounds(middle: float) -> st.SearchStrategy[list[float]]:
    """Rounds that agree, or that disagree."""
    near = st.sampled_from([0.1, 0.4]).flatmap(lambda width: st.floats(1 - width, 1 + width))
    return st.lists(near, min_size=5, max_size=9).map(lambda each: [middle * e for e in each])


around = st.floats(0.3, 2.5).flatmap(rounds)
plans = st.lists(st.tuples(around, st.one_of(st.none(), st.floats(0.5, 1.0))), min_size=1, max_size=5)


def made(several: list[tuple[list[float], float | None]]) -> ComparisonRecord:
    return record(*(row(f"plan{n}:workers=2", r, test_accuracy=a) for n, (r, a) in enumerate(several)))


@given(plans)
def test_a_recommended_plan_is_surely_faster_and_what_it_loses_is_said(
    several: list[tuple[list[float], float | None]],
) -> None:
    found = made(several)
    answer = decide(found)
    if answer.kind != ComparisonKind.RECOMMENDED:
        return
    (chosen,) = (each for each in found.plans if each.plan == answer.plan)
    assert chosen.speedup_interval is not None
    assert min(chosen.speedup_interval) > 1
    assert chosen.speedup >= PAYS
    if disagreement(found) > SETTLED:
        assert min(chosen.speedup_interval) > PAYS
    if chosen.test_accuracy is None:
        assert "accuracy not" in answer.sentence
    else:
        change = chosen.test_accuracy - 0.9
        assert change >= -MOST_LOST
        assert f"accuracy {100 * change:+.1f} points" in answer.sentence


@given(plans, st.randoms(use_true_random=False))
def test_the_order_of_the_plans_does_not_matter(
    several: list[tuple[list[float], float | None]], chance: random.Random
) -> None:
    found = made(several)
    shuffled = list(found.plans)
    chance.shuffle(shuffled)
    assert decide(replace(found, plans=tuple(shuffled))) == decide(found)


@given(plans, st.floats(1.0, 2.0))
def test_a_plan_that_is_faster_still_is_still_recommended(
    several: list[tuple[list[float], float | None]], faster: float
) -> None:
    before = decide(made(several))
    if before.kind != ComparisonKind.RECOMMENDED:
        return
    number = int(str(before.plan).removeprefix("plan").partition(":")[0])
    several[number] = [faster * ratio for ratio in several[number][0]], several[number][1]
    assert decide(made(several)).plan == before.plan


@given(plans)
def test_one_process_and_several_are_judged_by_the_same_measure(
    several: list[tuple[list[float], float | None]],
) -> None:
    """Whatever is not settled is undecided: a plan is ruled out as surely as it is recommended."""
    found = made(several)
    answer = decide(found)
    if answer.kind == ComparisonKind.SINGLE:
        for each in found.plans[1:]:
            assert each.speedup_interval is not None
            loses = each.test_accuracy is not None and each.test_accuracy - 0.9 < -MOST_LOST
            below = PAYS if disagreement(found) <= SETTLED else 1
            assert loses or max(each.speedup_interval) < below


STEADY = [1.66, 1.68, 1.69, 1.68, 1.64]


def said(*rows: Row, **known: Any) -> ComparisonAnswer:
    found = decided(record(*rows, **known)).answer
    assert found is not None
    return found


def test_a_recommendation_names_the_plan_what_it_costs_and_the_command() -> None:
    answer = said(row("downpour:shards=2,workers=2", STEADY, test_accuracy=0.883))
    assert answer.sentence == (
        "Recommended: downpour x2 shards=2, 1.68x (±1%), accuracy -1.7 points (±2.3); "
        "to use it: paceline train digits --plan downpour:shards=2 --workers 2"
    )
    assert answer.accuracy_change == pytest.approx(-0.017)
    sure = said(row("downpour:workers=2", STEADY, test_accuracy=0.87), test_samples=10_000)
    assert "accuracy -3.0 points (±0.7), less accurate than one process beyond chance;" in sure.sentence


def test_a_job_without_a_file_is_trained_in_python() -> None:
    assert said(row("ring:workers=2", STEADY), command="").command == 'paceline.train(job, "ring:workers=2")'


def test_of_two_that_may_be_as_fast_the_more_accurate_is_recommended() -> None:
    quick = row("downpour:workers=2", STEADY, test_accuracy=0.86)
    near = row("ring:workers=2", [1.60, 1.65, 1.67, 1.66, 1.65], test_accuracy=0.9)
    assert said(quick, near, test_samples=10_000).plan == near.plan
    assert said(quick, near, test_samples=100).plan == quick.plan  # so few samples tell nothing
    slow = row("ring:workers=2", [1.2] * 5, test_accuracy=0.9)
    assert said(quick, slow, test_samples=10_000).plan == quick.plan


def test_a_plan_that_learns_too_little_is_not_recommended() -> None:
    answer = said(row("hogwild:workers=2", STEADY, test_accuracy=0.6))
    assert answer.kind == ComparisonKind.SINGLE
    assert answer.sentence == (
        "One process is the best you can do here (2 threads): no plan that learns enough pays (dropped for quality, "
        "--quality-limit is 5 points of accuracy: hogwild x2, 1.68x (±1%), accuracy -30.0 points (±3.0), less accurate "
        "than one process beyond chance); to use it: paceline train digits --plan sequential:threads=2"
    )
    lossy = Row("ring", 2, 168.0, (168.0,), 1.68, 0.84, test_loss=2.0)
    alone = replace(SINGLE, test_accuracy=None, test_loss=1.0)
    assert decide(replace(record(), plans=(alone, lossy))).kind == ComparisonKind.SINGLE
    assert decide(replace(record(), plans=(alone, replace(lossy, test_loss=1.05)))).kind == ComparisonKind.RECOMMENDED
    assert (
        decide(replace(record(), plans=(alone, replace(lossy, test_loss=float("nan"))))).kind == ComparisonKind.SINGLE
    )


def test_a_faster_plan_that_was_dropped_for_quality_is_named_and_the_limit_is_the_users() -> None:
    """Ring was once recommended without a word on downpour, which was faster and whose test loss was 12% higher."""
    alone = replace(SINGLE, test_accuracy=None, test_loss=1.0)
    ring = row("ring:workers=2", [1.16, 1.15, 1.17, 1.16, 1.2], test_loss=1.003)
    downpour = row("downpour:workers=2", [1.79, 1.7, 1.85, 1.8, 1.75], test_loss=1.12)
    found = replace(record(ring, downpour), plans=(alone, ring, downpour))
    answer = decide(found)
    assert answer.plan == ring.plan
    assert answer.sentence == (
        "Recommended: ring x2, 1.16x (±2%), test loss +0.3% (dropped for quality, --quality-limit is test loss +10%: "
        "downpour x2, 1.79x (±4%), test loss +12.0%); to use it: paceline train digits --plan ring --workers 2"
    )
    assert "quality_limit= is test loss +10%" in decide(replace(found, command="")).sentence
    assert decide(replace(found, quality_limit=0.15)).plan == downpour.plan
    assert decide(replace(found, quality_limit=0.001)).kind == ComparisonKind.SINGLE
    slow = replace(downpour, speedup=1.1, speedup_interval=(1.09, 1.11))
    assert "dropped" not in decide(replace(found, plans=(alone, ring, slow))).sentence  # it would not have been chosen
    less = row("hogwild:workers=2", STEADY, test_accuracy=0.8)
    assert said(less, quality_limit=0.11).plan == less.plan
    assert said(less, quality_limit=0.09).kind == ComparisonKind.SINGLE


@given(plans, st.floats(CROWDED, 1.0))
def test_nothing_is_settled_where_workers_waited_for_a_core(
    several: list[tuple[list[float], float | None]], share: float
) -> None:
    """On a busy machine one process was once called the best there is, where two workers were 1.8 times as fast."""
    answer = decide(replace(made(several), core_wait=share))
    assert answer.kind == ComparisonKind.UNDECIDED
    assert f"workers waited for one {share:.0%} of their time" in answer.sentence
    assert "End those programs, or give them other cores" in answer.sentence
    assert answer.plan is answer.command is None


def test_a_machine_that_is_hardly_busy_settles_it() -> None:
    assert said(row("ring:workers=2", STEADY), core_wait=CROWDED - 0.001).kind == ComparisonKind.RECOMMENDED


@given(plans)
def test_nothing_is_settled_by_a_comparison_that_was_interrupted(
    several: list[tuple[list[float], float | None]],
) -> None:
    answer = decide(replace(made(several), interrupted=True, rounds=2))
    assert answer.kind == ComparisonKind.UNDECIDED
    assert answer.sentence.endswith("it was interrupted after 2 whole rounds; compare again, to the end")


def test_one_process_is_not_the_best_where_nothing_else_was_timed_before_an_interrupt() -> None:
    answer = decide(replace(record(), interrupted=True, rounds=0))
    assert answer.kind == ComparisonKind.UNDECIDED
    assert answer.sentence.startswith("Undecided: no plan with several workers was timed yet; it was interrupted")
    assert decide(record()).kind == ComparisonKind.SINGLE


def test_plans_that_failed_are_named_where_no_other_was_compared() -> None:
    failed = (FailedPlan("ddp:workers=2", 2, "WorkerFailed: ..."),)
    assert "every plan with several workers failed (ddp x2)" in said(failed=failed).sentence
    assert said(row("ring:workers=2", STEADY), failed=failed).kind == ComparisonKind.RECOMMENDED


def test_where_nothing_pays_one_process_is_the_answer() -> None:
    answer = said(row("ring:workers=2", [0.9, 0.91, 0.92, 0.9, 0.9]), row("ddp:workers=2", [0.5] * 5))
    assert answer.sentence == (
        "One process is the best you can do here (2 threads): ring x2 came nearest, 0.90x (±1%); "
        "to use it: paceline train digits --plan sequential:threads=2"
    )
    assert said().kind == ComparisonKind.SINGLE
    assert said(row("ceiling:workers=2", STEADY)).kind == ComparisonKind.SINGLE  # a measure, not a plan to use


def test_what_is_not_settled_is_undecided() -> None:
    answer = said(row("ring:workers=2", [0.95, 1.0, 1.08, 1.1, 1.2]))
    assert answer.sentence == (
        "Undecided: ring x2 is 0.95x to 1.20x as fast as one process; time it longer, --seconds 60"
    )
    assert answer.command is None
    assert "--seconds 120" in said(row("ring:workers=2", [0.95, 1.0, 1.08, 1.1, 1.2]), seconds=60).sentence


def test_rounds_that_disagree_give_intervals_and_no_explanation() -> None:
    wild = row("ring:workers=2", [0.8, 1.9, 2.4, 1.5, 1.3], verdict="it does not pay")
    found = decided(record(wild))
    assert found.disagreement is not None
    assert "disagree by up to ±53%" in found.disagreement
    assert found.answer is not None
    assert found.answer.kind == ComparisonKind.UNDECIDED
    assert all(each.verdict is None for each in found.plans)
    calm = decided(record(row("ring:workers=2", [0.5] * 5, verdict="it does not pay")))
    assert calm.disagreement is None
    assert calm.plans[1].verdict == "it does not pay"


@pytest.mark.parametrize(
    ("ratios", "says"),
    [
        ([1.2, 1.9, 2.4, 1.5, 1.3], "Recommended: ring x2, 1.20x to 2.40x, accuracy"),
        ([1.02, 1.9, 2.4, 1.5, 1.3], "Undecided: ring x2 is 1.02x to 2.40x"),  # 1 is not far enough below
        ([0.2, 0.5, 0.9, 0.4, 0.3], "One process is the best you can do here (2 threads): ring x2 came nearest, 0.20x"),
        ([0.2, 0.5, 1.02, 0.4, 0.3], "Undecided: ring x2 is 0.20x to 1.02x"),
    ],
)
def test_where_rounds_disagree_a_plan_is_judged_by_its_whole_interval(ratios: list[float], says: str) -> None:
    assert said(row("ring:workers=2", ratios)).sentence.startswith(says)


def test_a_plan_that_is_surely_slower_keeps_nothing_open_whose_rounds_disagree() -> None:
    steady, slow = row("ring:workers=2", STEADY), row("ddp:workers=2", [0.4, 0.9, 0.5, 1.3, 0.6])
    answer = said(steady, slow)
    assert answer.plan == steady.plan
    assert "1.68x (±1%)" in answer.sentence
    perhaps_faster = row("ddp:workers=2", [0.9, 1.9, 2.0, 1.8, 1.7])
    assert said(steady, perhaps_faster).kind == ComparisonKind.UNDECIDED


def test_an_impossible_share_of_the_ceiling_counts_as_disagreement() -> None:
    near = [1.03, 1.07, 1.07, 1.08, 1.09]
    assert said(row("ring:workers=2", near)).kind == ComparisonKind.RECOMMENDED
    odd = row("ring:workers=2", near, ceiling_share=1.3, ceiling_share_interval=(0.9, 1.75))
    assert said(odd).kind == ComparisonKind.UNDECIDED


# --- intervals ---


@given(st.lists(st.floats(0, 10), min_size=1, max_size=30))
def test_an_interval_holds_the_median(values: list[float]) -> None:
    low, high = median_interval(values)
    assert min(values) <= low <= statistics.median(values) <= high <= max(values)


def test_an_interval_is_as_sure_as_it_says() -> None:
    chance, missed = random.Random(0), 0
    for _ in range(2000):
        low, high = median_interval([chance.gauss(0, 1) for _ in range(8)])
        missed += not low <= 0 <= high
    assert missed / 2000 < 0.1
    assert median_interval(range(1, 9)) == (2, 7)
    assert median_interval(range(1, 6)) == (1, 5)


def test_wilsons_interval_is_the_published_one() -> None:
    low, high = wilson(81 / 263, 263, z=1.96)  # Newcombe (1998), at 95%
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    assert wilson(1.0, 360).high == 1.0
    assert wilson(1.0, 360).low < 0.995
