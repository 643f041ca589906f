"""LocalSteps and Gossip: every worker steps its own replica; after some steps replicas are averaged."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns as now

from paceline.core.rules import Averaging
from paceline.engines.local.collectives import Means, NeighbourMixing
from paceline.engines.local.methods.legs import before, legs_of
from paceline.engines.local.methods.runner import GradientRequest, PlanRunner, Walk
from paceline.gradients.payload import GradientSum
from paceline.parameters.replicas import AveragingReplica
from paceline.plans.methods.local_steps import Gossip, LocalSteps, averages_after, averages_before


def local_steps(runner: PlanRunner, method: LocalSteps) -> Walk:
    """Step a replica, and average all replicas by a collective."""
    yield from _averaged(runner, method.averaging, runner.group.sums(method.collective, runner.encoder))


def gossip(runner: PlanRunner, method: Gossip) -> Walk:
    """Step a replica, and mix it with its neighbours'."""
    means = runner.group.mixing(method.collective)
    # What a worker contributes is known before its gradient, unless computing that changes batch-norm's statistics. On
    # a cluster the group may change in between.
    offer = means.offer if isinstance(means, NeighbourMixing) and not runner.replica.moving else None
    yield from _averaged(runner, method.averaging, means, offer)


def _averaged(
    runner: PlanRunner, rule: Averaging, means: Means, offer: Callable[[int, GradientSum], None] | None = None
) -> Walk:
    """Step a replica in every update, and average it after those that are due.

    Where replicas are mixed before a step, `offer` lets the others have this one's while its gradient is computed.
    """
    store, updates = runner.local_store(rule), runner.agenda.updates
    exchanges, apart = averages_before(rule, runner.resume_point.updates, updates), False
    replica, state = AveragingReplica(runner.learner, store, rule), runner.resume(store)
    legs = None if rule.mixes_first else legs_of(runner, store)
    ahead = runner.updates_ahead()
    while ahead:
        made = legs.make(_until_average(rule, ahead), ahead[0]) if legs else ahead[:0]
        update = made[-1] if made else ahead[0]
        due = averages_after(rule, update, updates)
        if not made:
            made = ahead[:1]
            if due and rule.mixes_first and offer is not None:
                offer(exchanges, replica.contribution(runner.number))
            computed = yield GradientRequest(update, runner.group.chunks(update), update)
            if computed is None:
                if apart:  # as after the last update of an agenda
                    _average(runner, update - 1, exchanges, replica, means)
                break
            if due and rule.mixes_first:
                _average(runner, update, exchanges, replica, means)
            start = now()
            replica.step(computed)
            del computed  # its memory serves the next gradient
            runner.applied(update, update, update + 1, start)
        if due and not rule.mixes_first:
            _average(runner, update, exchanges, replica, means)
        exchanges += due
        apart = not due
        if runner.group.leads:
            runner.snapshot(update + 1, replica.result)
        runner.state_writer.in_step(made[0], update + 1, state)
        ahead = ahead[len(made) :]
    runner.write_result(replica.result())


def _until_average(rule: Averaging, ahead: range) -> range:
    """Return these updates up to the one after which replicas are averaged next."""
    return before(ahead, (ahead[0] // rule.every + 1) * rule.every) if rule.every else ahead


def _average(runner: PlanRunner, update: int, number: int, replica: AveragingReplica, means: Means) -> None:
    start = now()
    mean, waited, sent = means.mean(number, replica.contribution(runner.number))
    replica.apply_mean(mean)
    runner.exchanged(update, start, waited, sent)
