"""Alone: workers that exchange nothing (`sequential`, and `ceiling`, whose workers each train on their own batches)."""

from __future__ import annotations

from time import perf_counter_ns as now

from paceline.core.rules import Arrival
from paceline.core.rules.plain import Plain
from paceline.engines.local.methods.runner import GradientRequest, PlanRunner, Walk
from paceline.plans.methods.alone import Alone


def alone(runner: PlanRunner, method: Alone) -> Walk:
    """Train this worker's share of the updates on its own."""
    store, workers = runner.local_store(), runner.plan.workers
    state = runner.resume(store)
    for update in runner.updates_ahead(runner.number, workers):
        computed = yield GradientRequest(update, runner.agenda.filled(update), store.updates)
        if computed is None:
            break
        start, base = now(), store.updates
        Plain().update(store, Arrival(runner.learner.settle(computed)))
        store.schedule.hear(computed.mean)
        runner.applied(update, base, store.updates, start)
        if runner.group.leads:
            runner.snapshot(update + 1, runner.values)
        runner.state_writer.in_step(update, update + workers, state)
    runner.write_result(runner.values())
