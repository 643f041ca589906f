"""Levels of accuracy that runs hold: reached, and never left again before the end. Pure.

    accuracy   96.7            ╭╮
               94.4    ╭───╮╭──╯╰───    held from the second rise on
                      ─╯   ╰╯

On a few hundred test samples a single evaluation may lie points above what the model has learned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.runtime.runs.record import Evaluation


def common_level(histories: Sequence[Sequence[Evaluation]], metric: str) -> float | None:
    """Return the best level that every run holds to its end; None if one was not evaluated.

    The last evaluation of a run is the best level that it holds, so this is the lowest of the last ones.
    """
    last = [history[-1].metrics.get(metric, math.nan) if history else math.nan for history in histories]
    return min(last) if last and all(map(math.isfinite, last)) else None


def seconds_to_hold(history: Sequence[Evaluation], metric: str, level: float) -> float | None:
    """Return when a run reached the level for good; None if it ends below it."""
    seconds = None
    for evaluation in reversed(history):
        if not evaluation.metrics.get(metric, -math.inf) >= level:
            break
        seconds = evaluation.seconds
    return seconds
