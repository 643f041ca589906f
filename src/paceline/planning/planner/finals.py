"""Which plans of a choice are measured before one is chosen, and what becomes of their predictions. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from paceline.planning.planner.prediction import Prediction

MOST = 9  # plans that are measured for one choice
ALIKE = 2  # of plans that differ only in their tables, as `ring` and `tree` do
DOUBT = 0.02  # of a plan whose rounds all took the same, as a logarithm
MEASURED = "measured"


def finalists(predictions: Sequence[Prediction], most: int) -> list[Prediction]:
    """Return the plans to measure next, the fastest first, at most so many; none once the fastest was measured.

    These are the plans whose intervals reach below the fastest one's upper end, and one process.
    """
    usable = sorted((p for p in predictions if not p.ruled_out), key=lambda p: p.seconds)
    if not usable or most <= 0 or (usable[0].level == MEASURED):
        return []
    kinds = Counter(_kind(p) for p in usable if p.level == MEASURED)
    chosen: list[Prediction] = []
    for each in usable:
        if each.level == MEASURED or len(chosen) == most or kinds[_kind(each)] >= ALIKE:
            continue
        if each.low <= usable[0].high or each.plan.workers * each.plan.threads == 1:
            kinds[_kind(each)] += 1
            chosen.append(each)
    return chosen


def measured_as(prediction: Prediction, rounds: Sequence[float]) -> Prediction:
    """Return the prediction with what was measured in its place: the median of the rounds, and their range."""
    took = statistics.median(rounds)
    error = max(DOUBT, *(abs(math.log(each / took)) for each in rounds))
    terms = prediction.terms.scaled(took / prediction.seconds)
    return replace(prediction, level=MEASURED, terms=terms, error=error)


def corrected(predicted: Sequence[Prediction], predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return what was found; a plan that was not measured is as far off as measured ones of its kind."""
    ratios: dict[tuple[str, str, int, int], list[float]] = {}
    for before, after in zip(predicted, predictions, strict=True):
        if after.level == MEASURED:
            ratios.setdefault(_kind(after), []).append(after.seconds / before.seconds)
    return [
        replace(before, terms=before.terms.scaled(statistics.median(ratios[_kind(before)])))
        if after.level != MEASURED and not after.ruled_out and _kind(before) in ratios
        else after
        for before, after in zip(predicted, predictions, strict=True)
    ]


def _kind(prediction: Prediction) -> tuple[str, str, int, int]:
    plan = prediction.plan
    return plan.method.name, prediction.compute, plan.workers, plan.threads
