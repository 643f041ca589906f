"""LocalSteps and Gossip: every worker steps its own replica; after some steps replicas are averaged."""

from __future__ import annotations

from time import perf_counter_ns as now

from paceline.core.rules import Averaging
from paceline.engines.local.collectives import Means
from paceline.engines.local.methods.runner import GradientRequest, PlanRunner, Walk
from paceline.parameters.replicas import AveragingReplica
from paceline.plans.methods.local_steps import Gossip, LocalSteps, averages_after


def local_steps(runner: PlanRunner, method: LocalSteps) -> Walk:
    """Step a replica, and average all replicas by a collective."""
    yield from _averaged(runner, method.averaging, runner.group.sums(method.collective))


def gossip(runner: PlanRunner, method: Gossip) -> Walk:
    """Step a replica, and mix it with its neighbours'."""
    yield from _averaged(runner, method.averaging, runner.group.mixing(method.collective))


def _averaged(runner: PlanRunner, rule: Averaging, means: Means) -> Walk:
    """Step a replica in every update, and average it after those that are due."""
    store, exchanges, apart = runner.local_store(rule), 0, False
    replica, state = AveragingReplica(runner.learner, store, rule), runner.resume(store)
    for update in runner.updates_ahead():
        computed = yield GradientRequest(update, runner.group.chunks(update), update)
        if computed is None:
            if apart:  # as after the last update of an agenda
                _average(runner, update - 1, exchanges, replica, means)
            break
        due = averages_after(rule, update, runner.agenda.updates)
        if due and rule.mixes_first:
            _average(runner, update, exchanges, replica, means)
        start = now()
        replica.step(computed)
        runner.applied(update, update, update + 1, start)
        if due and not rule.mixes_first:
            _average(runner, update, exchanges, replica, means)
        exchanges += due
        apart = not due
        if runner.group.leads:
            runner.snapshot(update + 1, replica.result)
        runner.state_writer.in_step(update, update + 1, state)
    runner.write_result(replica.result())


def _average(runner: PlanRunner, update: int, number: int, replica: AveragingReplica, means: Means) -> None:
    start = now()
    mean, waited, sent = means.mean(number, replica.contribution())
    replica.apply_mean(mean)
    runner.exchanged(update, start, waited, sent)
