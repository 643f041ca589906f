"""Alone: workers that exchange nothing (`sequential`, and `ceiling`, whose workers each train on their own batches)."""

from __future__ import annotations

from paceline.engines.workers.methods.native_updates import native_updates
from paceline.engines.workers.methods.runner import GradientRequest, PlanRunner, Walk
from paceline.engines.workers.methods.updates import Update, make_updates, step
from paceline.plans.methods.alone import Alone


def alone(runner: PlanRunner, method: Alone) -> Walk:
    """Train this worker's share of the updates on its own."""
    store = runner.local_store()
    state, ahead = runner.resume(store), runner.updates_ahead(runner.number, runner.plan.workers)
    native = native_updates(runner, store) if runner.agenda.parts == 1 else None

    def make(update: int) -> Update:
        computed = yield GradientRequest(update, runner.agenda.filled(update), store.updates)
        if computed is None:
            return False
        step(runner, store, update, computed)
        return True

    return make_updates(runner, store, state, ahead, native, make)
