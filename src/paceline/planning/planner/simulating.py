"""Predictions judged by the simulator: what closed forms leave out, such as stragglers, failures and shared links."""

from __future__ import annotations

import math
from dataclasses import replace

from paceline.errors import WorkerDied
from paceline.planning.planner.cluster import Cluster
from paceline.planning.planner.costs import Costs, single
from paceline.planning.planner.facts import Facts, answer_of, coding_of, reads
from paceline.planning.planner.methods import crowded
from paceline.planning.planner.prediction import Prediction
from paceline.plans.methods.local_steps import NEVER
from paceline.plans.plan import Plan
from paceline.runtime.engines.virtual import World, simulate, simulate_totals
from paceline.runtime.engines.virtual.rows import Totals
from paceline.runtime.runs.trace import Trace

UPDATES = 100  # of each worker, at most, that a choice simulates
BEST = 20  # plans that are simulated
INSTANT = 1e18  # bytes per second of what takes no time


def simulated(
    prediction: Prediction, costs: Costs, facts: Facts, cluster: Cluster, updates: int = UPDATES
) -> Prediction:
    """Return the prediction with the seconds that the simulator gives; pipelines keep their own."""
    plan = prediction.plan
    if plan.workers == 1 or plan.traits.holds == "stages" or plan.traits.local_only:
        return prediction
    count = updates if plan.traits.synchronous else updates * plan.workers
    try:
        totals = run(plan, costs, facts, cluster, count)
    except WorkerDied as error:
        return replace(prediction, ruled_out=f"a node fails within {count} updates, and {error.failure.advice}")
    each = totals.seconds / count + prediction.terms.between / (1 if plan.traits.synchronous else plan.workers)
    rest = prediction.seconds - prediction.terms.wait
    terms = replace(prediction.terms, wait=max(0.0, each - rest))
    return replace(prediction, terms=terms.scaled(each / terms.whole), staleness=totals.mean_staleness)


def timeline(plan: Plan, costs: Costs, facts: Facts, updates: int, spread: bool = False) -> Trace:
    """Return the trace that is predicted for this machine; with `spread`, steps differ as measured ones do."""
    world = world_here(plan, costs, facts)
    if spread:
        world = replace(world, spread=spread_of(costs, plan.threads))
    size = facts.payload if plan.traits.synchronous else facts.served
    return simulate(plan, plan.agenda(facts.batch * updates, facts.batch), world, size)


def world_here(plan: Plan, costs: Costs, facts: Facts) -> World:
    """Return the simulated world of this machine: workers exchange through its memory.

    A push is served while the worker that pushes holds the shard, so that its exchange is part of the update.
    """
    samples = max(1, math.ceil(facts.batch / (plan.parts if plan.traits.synchronous else 1)))
    kind = "meeting" if plan.traits.synchronous else "push"
    compute = costs.compute(samples, plan.workers, plan.threads).seconds
    update = costs.update(plan.workers, plan.threads).seconds
    factor, between = costs.overhead(kind, plan.workers).factor, costs.between(kind, plan.workers)
    if not plan.traits.synchronous:
        push = single(costs, kind, plan.workers, facts.served).seconds * factor
        sample_seconds = (compute + between * factor) / samples
        return World(compute=sample_seconds, jitter=0.0, update=update + push, latency=0.0, bandwidth=INSTANT)
    exchange = costs.card.exchange(kind, plan.workers)
    latency, bandwidth = exchange.at(facts.payload / plan.workers) if exchange else (0.0, INSTANT)
    steps = plan.method.exchange_every or NEVER
    compute *= 1.0 + crowded(plan, costs.card.cores, compute * steps)
    return World(
        compute=compute / samples,
        jitter=0.0,
        update=update,
        latency=max(0.0, latency) * factor,
        bandwidth=min(INSTANT, bandwidth / factor),
    )


def spread_of(costs: Costs, threads: int) -> tuple[float, ...]:
    """Return how much steps differ, as a world has it: quantiles over their mean."""
    jitter = costs.jitter(1, threads)
    return tuple(each * len(jitter) / sum(jitter) for each in jitter)


def run(plan: Plan, costs: Costs, facts: Facts, cluster: Cluster, updates: int, seed: int = 0) -> Totals:
    """Simulate so many updates of a plan in this cluster, in time only."""
    samples = max(1, math.ceil(facts.batch / (plan.parts if plan.traits.synchronous else 1)))
    compute = costs.compute(samples, 1, plan.threads).seconds / samples
    coding = coding_of(plan, facts)
    update = costs.update(1, plan.threads).seconds + coding.encode + coding.decode * reads(plan)
    if plan.pull is not None:
        back = answer_of(plan, facts)
        update += back.encode + 2 * back.decode
    duration = updates * (compute * samples + update)
    world = cluster.world(plan.workers, compute, update, 10 * duration, seed)
    world = replace(world, spread=spread_of(costs, plan.threads))
    agenda = plan.agenda(facts.batch * updates, facts.batch)
    size = facts.payload if plan.traits.synchronous else facts.served
    return simulate_totals(plan, agenda, world, size)
