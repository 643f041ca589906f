"""`validate`: trains by the plans that are predicted to be best and by two at random, and compares the seconds.

All plans are measured in interleaved rounds, so that a busy machine slows all of them. The predictions are made before.
"""

from __future__ import annotations

import contextlib
import datetime
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

from paceline.errors import PacelineError, UsageError
from paceline.errors.arguments import check_arguments
from paceline.interfaces.api.lines import Say, to_stderr
from paceline.interfaces.api.planning.choose import Planner, open_card, planner_for
from paceline.interfaces.api.planning.measuring import measured_in_rounds, traced
from paceline.interfaces.api.planning.planner_page import validation_page
from paceline.planning.planner import validating
from paceline.planning.planner.card import Card
from paceline.planning.planner.prediction import Candidate, Prediction, numbers_of_workers
from paceline.planning.planner.simulating import timeline
from paceline.planning.planner.validating import Validation, check, validation
from paceline.plans.plan import Plan
from paceline.runtime.runs.trace import Trace
from paceline.training.gradients.probe import probing_once
from paceline.training.jobs.job import Job

TOP, AT_RANDOM, ROUNDS, SECONDS = 4, 2, 6, 0.4
TIMELINES, SHOWN = 3, 6  # plans whose timelines are drawn, and updates of each worker


def validate(
    job: Job, plans: Sequence[str] = (), *, level: str = "profiled", learning: str = "any",
    workers: int | None = None, rounds: int = ROUNDS, seconds: float = SECONDS, seed: int = 0,
    card: str | Path | Card | None = None, table: Path | None = None, page: Path | None = None,
    say: Say = to_stderr,
) -> Validation:  # fmt: skip
    """Predict plans for a job, measure them, and report how far the predictions are off.

    Args:
        job: The job.
        plans: The plans. Default: the four that are predicted to be fastest, one process, and two at random.
        level: As of `choose`.
        learning: As of `choose`.
        workers: The largest number of workers to consider. Default: the number of cores.
        rounds: How often each plan is measured, in interleaved rounds.
        seconds: The length of a round.
        seed: Seeds the order of the rounds and the plans at random.
        card: A card that `paceline calibrate` wrote. Default: this machine's.
        table: The file that keeps the results. Default: beside this machine's card.
        page: An HTML file to write: predicted and measured, with the timelines of the fastest plans.
        say: A function that is called with lines about the progress. Default: prints to stderr.
    """
    check_arguments(validate, locals())
    if rounds < 2:
        raise UsageError(f"rounds={rounds}: give at least 2, since the noise floor is the same plan measured twice")
    parsed_plans = [Plan.parse(text, workers) for text in plans]  # before anything takes time
    machine_card = open_card(card, say)
    counts = [plan.workers for plan in parsed_plans] or (
        numbers_of_workers(machine_card.cores, workers) if workers != 1 else []
    )
    planner = planner_for(job, machine_card, level, say=say, workers=counts)
    by = validating.factor(validating.read(table), machine_card, level)
    predictions = [validating.widened(each, by) for each in _predicted(planner, parsed_plans, learning, counts, seed)]
    with probing_once():
        runs = measured_in_rounds(job, predictions, rounds, seconds, say)
    checks = [
        check(
            each,
            [run.seconds for run in done],
            statistics.median(run.bytes for run in done),
            max(run.memory for run in done),
        )
        for each, done in zip(predictions, runs, strict=True)
        if done
    ]
    if not checks:
        raise UsageError("none of these plans can train this job")
    result = validation(job.name, checks)
    try:
        validating.append(validating.entries_of(result, machine_card, datetime.date.today().isoformat(), by), table)
    except OSError as error:
        say(f"the results are not kept in {table or validating.default_file()}: {error.strerror}")
    if page is not None:
        page.write_text(validation_page(result, _timelines(planner, predictions)), encoding="utf-8")
    return result


def _timelines(planner: Planner, predictions: Sequence[Prediction]) -> list[tuple[str, Trace, Trace]]:
    """Return the predicted and the measured timeline of the fastest plans whose time the simulator can tell."""
    candidates = [
        p
        for p in sorted(predictions, key=lambda p: p.seconds)
        if not p.plan.traits.local_only and not p.plan.traits.divided
    ]
    timelines = []
    for each in candidates[:TIMELINES]:
        job, updates = planner.job.with_(compute=each.compute), SHOWN * each.plan.workers
        predicted = timeline(each.plan, planner.costs[each.compute], planner.facts, updates)
        with contextlib.suppress(PacelineError):
            timelines.append((each.name, predicted, traced(job, each.plan, updates)))
    return timelines


def _predicted(
    planner: Planner, plans: Sequence[Plan], learning: str, counts: Sequence[int], seed: int
) -> list[Prediction]:
    """Predict the plans that are asked for, or choose which."""
    if plans:
        predictions = []
        for plan in plans:
            each = planner.predict(Candidate(plan))
            if each is None:
                raise UsageError(f"the planner has no model of {plan}, or the plan cannot divide this model")
            predictions.append(each)
        return predictions
    every = sorted(planner.predictions(counts, learning), key=lambda p: p.seconds)
    top = every[:TOP]
    top += [p for p in every if p.plan.workers == 1 and p not in top]
    rest = [p for p in every if p not in top]
    return top + random.Random(seed).sample(rest, min(AT_RANDOM, len(rest)))
