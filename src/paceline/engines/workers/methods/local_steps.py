"""LocalSteps and Gossip: every worker steps its own replica; after some steps replicas are averaged."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns as now

from paceline.engines.workers.collectives import Means, NeighbourMixing
from paceline.engines.workers.exchanges import Exchanges
from paceline.engines.workers.methods.native_updates import native_updates
from paceline.engines.workers.methods.runner import GradientRequest, PlanRunner, Walk
from paceline.gradients.payload import GradientSum
from paceline.parameters.replicas import AveragingReplica
from paceline.plans.methods.local_steps import Gossip, LocalSteps


def local_steps(runner: PlanRunner, method: LocalSteps) -> Walk:
    """Step a replica, and average all replicas by a collective."""
    yield from _averaged(runner, method, runner.group.sums(method.collective, runner.encoder))


def gossip(runner: PlanRunner, method: Gossip) -> Walk:
    """Step a replica, and mix it with its neighbours'."""
    means = runner.group.mixing(method.collective)
    # What a worker contributes is known before its gradient, unless computing that changes batch-norm's statistics. On
    # a cluster the group may change in between.
    offer = means.offer if isinstance(means, NeighbourMixing) and not runner.replica.moving else None
    yield from _averaged(runner, method, means, offer)


def _averaged(
    runner: PlanRunner,
    method: LocalSteps | Gossip,
    means: Means,
    offer: Callable[[int, GradientSum], None] | None = None,
) -> Walk:
    """Step a replica in every update, and average it after those that are due.

    Where replicas are mixed before a step, `offer` lets the others have this one's while its gradient is computed.
    """
    rule, streaming, updates = method.averaging, method.streaming, runner.agenda.updates
    store = runner.local_store(rule)
    replica, state_of_replica = AveragingReplica(runner.learner, store, rule, runner.fragments), runner.resume(store)
    exchanges = Exchanges(runner, streaming, replica, means)
    native = None if rule.mixes_first else native_updates(runner, store)
    ahead = runner.updates_ahead()
    while ahead:
        made = native.make(streaming.ahead(ahead), ahead[0]) if native else ahead[:0]
        update = made[-1] if made else ahead[0]
        if not made:
            made, due = ahead[:1], streaming.after(update, updates) if rule.mixes_first else 0
            if due and offer is not None:
                offer(exchanges.number, replica.contribution(exchanges.number, runner.number))
            computed = yield GradientRequest(update, runner.group.chunks(update), update)
            if computed is None:
                exchanges.finish(update - 1)
                break
            exchanges.meet(update, due)
            start = now()
            replica.step(computed)
            del computed  # its memory serves the next gradient
            runner.applied(update, update, update + 1, start)
        if not rule.mixes_first:
            exchanges.after(update)
        if runner.group.leads:
            runner.snapshot(update + 1, replica.result)
        runner.state_writer.in_step(made[0], update + 1, lambda: state_of_replica() | exchanges.state())
        ahead = ahead[len(made) :]
    runner.write_result(replica.result())
