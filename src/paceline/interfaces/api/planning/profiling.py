"""Profiling: a few real steps of a model, by workers that never communicate and by one plan of each family.

What was measured takes the place of what a card says; plans that were not measured are predicted from those that were.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from paceline.errors import PacelineError
from paceline.interfaces.api.lines import Say, silent
from paceline.interfaces.api.planning.dividing import Divider
from paceline.interfaces.api.planning.measuring import Measured, measure_for
from paceline.planning.planner.costs import Costs
from paceline.planning.planner.facts import Facts
from paceline.planning.planner.methods import predict
from paceline.planning.planner.profiled import Profile, Profiled, learn, mean_without_outliers
from paceline.plans.methods.prediction import NotPredicted
from paceline.plans.plan import Plan, make
from paceline.training.jobs.job import Job

SECONDS, SHORT = 0.3, 0.1  # of each run: for predictions, and for a choice among measured finalists
ROUNDS = 2  # of a profile for predictions, interleaved
#: A plan of each family, of which others are predicted; generated code has no other family than the first two.
ANCHORS = ("ring", "downpour", "ddp", "gpipe", "tensor")


def glanced(job: Job, base: Costs, facts: Facts, say: Say = silent) -> Profiled:
    """Measure one process, and as many as there are cores, once: enough to find the plans that are to be measured."""
    cores, batch = base.card.cores, min(job.batch_size, facts.batch)
    cases = {(1, 1, batch), (1, cores, batch), (cores, 1, _part(batch, cores))}
    say(f"a few real steps of {_what(job)} ...")
    return Profiled(base, [_profile(case, [_profile_run(job, base, case, SHORT)]) for case in sorted(cases)])


def _what(job: Job) -> str:
    return f"{job.name}{', computed by generated code' * (job.compute == 'fused')}"


def profiled(
    job: Job, base: Costs, facts: Facts, divider: Divider, workers: Sequence[int] = (), say: Say = silent
) -> Profiled:
    """Measure workers that never communicate, then a plan of each family with the fewest and the most workers."""
    cores, batch = base.card.cores, min(job.batch_size, facts.batch)
    counts = sorted({min(workers), max(workers)}) if workers else [cores] if cores > 1 else []
    cases = [(1, 1, batch)]
    if cores > 1:
        parts = {_part(batch, count) for count in (1, cores, 2 * cores, *counts)}
        cases += [(1, cores, batch), *((cores, 1, part) for part in sorted(parts, reverse=True))]
    runs: dict[tuple[int, int, int], list[Measured]] = {case: [] for case in cases}
    what = f"profiling {_what(job)}"
    for number in range(ROUNDS):
        say(f"{what}: a few real steps, round {number + 1} of {ROUNDS} ...")
        for case in cases[:: 1 if number % 2 == 0 else -1]:
            runs[case].append(_profile_run(job, base, case, SECONDS, runs[case]))
    profile = Profiled(base, [_profile(case, measured) for case, measured in runs.items()])
    for name in ANCHORS if job.compute == "autograd" else ANCHORS[:1]:
        for count in counts:
            say(f"{what}: {name}, {count} workers ...")
            _anchor(job, profile, facts, divider, make(name, workers=count))
    return profile


def _part(batch: int, parts: int) -> int:
    return max(1, -(-batch // parts))


def _profile_run(
    job: Job, base: Costs, case: tuple[int, int, int], seconds: float, before: Sequence[Measured] = ()
) -> Measured:
    busy, threads, samples = case
    plan = make("sequential", threads=threads) if busy == 1 else make("ceiling", workers=busy, threads=threads)
    guess = before[0].seconds if before else base.compute(samples, busy, threads).seconds / busy
    one = job.with_(batch_size=samples, accumulate_grad_batches=1)
    return measure_for(one, plan, seconds, guess, bool(before))


def _profile(case: tuple[int, int, int], runs: Sequence[Measured]) -> Profile:
    busy, threads, samples = case
    compute = tuple(value for run in runs for value in run.compute)
    update = tuple(value for run in runs for value in run.update)
    between = statistics.median(_besides(run) for run in runs)
    return Profile(busy, threads, samples, compute, update, between, max(run.memory for run in runs))


def _besides(run: Measured) -> float:
    """The seconds of a worker's step besides computing and updating."""
    work_seconds = mean_without_outliers(run.compute) + mean_without_outliers(run.update)
    return max(0.0, run.seconds * run.plan.workers - work_seconds)


def _anchor(job: Job, costs: Profiled, facts: Facts, divider: Divider, plan: Plan) -> None:
    """Measure one plan with this model; others of its family are predicted to be as far off."""
    try:
        division = divider.divide(plan)
        divided = replace(facts, division=division)
        predicted = predict(plan, costs, divided)
        runs = [measure_for(job, plan, SECONDS, predicted.seconds, measured=False)]
        runs += [measure_for(job, plan, SECONDS, runs[0].seconds) for _ in range(ROUNDS - 1)]
    except (PacelineError, NotPredicted):
        return  # this plan cannot train the job; others of its family cannot either
    learn(costs, plan, divided, min(run.seconds for run in runs), max(run.memory for run in runs))
