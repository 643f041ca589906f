"""Which way trials are run: as was asked for, or the one that a measurement favours."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.tuner.study import Study
from paceline.tuner.training import Measure
from paceline.tuner.trials import Objective, Report, Terms, Trials
from paceline.tuner.trials.here import Here
from paceline.tuner.trials.processes import Processes

WAYS = ("auto", "processes", "stacked", "distributed", "here")


class Way(NamedTuple):
    """What trials are run with."""

    objective: Objective
    report: Report
    terms: Terms
    workers: int | None
    deadline: float | None
    make_job: Callable[..., Any] | None
    measure: Measure


def choose(asked: str, way: Way, study: Study) -> tuple[str, Trials, float]:
    """Return (the way's name, what runs trials, the seconds until it could begin)."""
    begin = time.perf_counter()
    name = "processes" if asked == "auto" else asked
    trials: Trials
    if name in ("here", "distributed"):
        trials = Here(way.objective, way.report, way.terms)
    else:
        workers = way.workers or len(os.sched_getaffinity(0))
        trials = Processes(way.objective, way.report, way.terms, workers, way.deadline)
    return name, trials, time.perf_counter() - begin
