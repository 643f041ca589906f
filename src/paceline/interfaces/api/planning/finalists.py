"""Plans that are measured: a check of predictions, or the finalists of a choice.

The best of many predictions is likely too low. So a choice that profiles the model also trains by the plans that may be
fastest, for a moment each, and ranks them by what they took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.errors import PacelineError
from paceline.interfaces.api.planning.measuring import Measured, Say, measure_for
from paceline.planning.planner.choosing import MOST, corrected, finalists, measured_as
from paceline.planning.planner.prediction import Prediction
from paceline.training.jobs.job import Job

ROUNDS, SECONDS = 3, 0.3


def with_finalists(job: Job, predictions: Sequence[Prediction], say: Say = lambda line: None) -> list[Prediction]:
    """Return the predictions, with measured seconds for the plans that may be fastest.

    Where a plan turns out slower than predicted, the next ones are measured, too, until the fastest is a measured one.
    """
    current, tried = list(predictions), 0
    while shortlist := finalists(current, MOST - tried):
        tried += len(shortlist)
        runs = measured_in_rounds(job, shortlist, ROUNDS, SECONDS, say)
        measured = {each.name: _measured(each, done) for each, done in zip(shortlist, runs, strict=True)}
        current = corrected(predictions, [measured.get(each.name, each) for each in current])
    return current


def _measured(each: Prediction, runs: Sequence[Measured]) -> Prediction:
    if not runs:
        return replace(each, ruled_out="it cannot train this job")
    return measured_as(each, [run.seconds for run in runs])


def measured_in_rounds(
    job: Job, predictions: Sequence[Prediction], rounds: int, seconds: float, say: Say = lambda line: None
) -> list[list[Measured]]:
    """Train by every plan in each round, to and fro; a plan that cannot train the job has no measurements."""
    runs: list[list[Measured]] = [[] for _ in predictions]
    failed: set[int] = set()
    for number in range(rounds):
        say(f"measuring {len(predictions) - len(failed)} plans, round {number + 1} of {rounds} ...")
        order = list(range(len(predictions)))
        for place in reversed(order) if number % 2 else order:
            if place in failed:
                continue
            each = predictions[place]
            guess = runs[place][-1].seconds if runs[place] else each.seconds
            try:
                runs[place].append(
                    measure_for(job.with_(compute=each.compute), each.plan, seconds, guess, bool(runs[place]))
                )
            except PacelineError as error:
                say(f"{each.name} is left out: {str(error).splitlines()[0]}")
                failed.add(place)
                runs[place] = []
    return runs
