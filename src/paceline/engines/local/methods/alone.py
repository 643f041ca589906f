"""Alone: workers that exchange nothing (`sequential`, and `ceiling`, whose workers each train on their own batches)."""

from __future__ import annotations

from time import perf_counter_ns as now

from paceline.core.rules import Arrival
from paceline.core.rules.plain import Plain
from paceline.engines.local.methods.legs import legs_of
from paceline.engines.local.methods.runner import GradientRequest, PlanRunner, Walk
from paceline.plans.methods.alone import Alone


def alone(runner: PlanRunner, method: Alone) -> Walk:
    """Train this worker's share of the updates on its own."""
    store, workers = runner.local_store(), runner.plan.workers
    state, ahead = runner.resume(store), runner.updates_ahead(runner.number, workers)
    legs = legs_of(runner, store) if runner.agenda.parts == 1 else None
    while ahead:
        made = legs.make(ahead, store.updates) if legs else ahead[:0]
        if made:
            assert legs is not None
            store.schedule.hear(*legs.means)
        else:
            update, made = ahead[0], ahead[:1]
            computed = yield GradientRequest(update, runner.agenda.filled(update), store.updates)
            if computed is None:
                break
            start, base = now(), store.updates
            Plain().update(store, Arrival(runner.learner.settle(computed)))
            store.schedule.hear(computed.mean)
            runner.applied(update, base, store.updates, start)
        if runner.group.leads:
            runner.snapshot(made[-1] + 1, runner.values)
        runner.state_writer.in_step(made[0], made[-1] + workers, state)
        ahead = ahead[len(made) :]
    runner.write_result(runner.values())
