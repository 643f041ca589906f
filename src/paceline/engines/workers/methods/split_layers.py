"""SplitLayers: the workers of a group compute chunks together, replicas sum gradients, every worker steps its parts.

worker                                            its group                     its peers in other replicas
──────                                            ─────────                     ───────────────────────────
1 compute the replica's chunks ◀───movements───▶  their parts of each layer
2 add up the gradient of its parts ◀─────────────────────collective──────────▶  the same parts
3 the user's optimizer steps its parts
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns as now

from paceline.core.rules import Arrival
from paceline.core.rules.plain import Plain
from paceline.engines.workers.methods.runner import GradientRequest, PlanRunner, Walk
from paceline.parameters.store import state_of_store
from paceline.parameters.worker_state import WorkerState
from paceline.plans.methods.split_layers import SplitLayers


def split_layers(runner: PlanRunner, method: SplitLayers, leave: Callable[[int], None]) -> Walk:
    """Train this worker's parts; `leave` writes them for an evaluation that is due after so many updates."""
    store, rule = runner.local_store(), Plain()
    runner.resume(store)
    reduction = runner.group.sums(method.collective)

    def state() -> WorkerState:
        return runner.replica.worker_state() | state_of_store(store)

    for update in runner.updates_ahead():
        computed = yield GradientRequest(update, runner.group.chunks(update), update)  # 1
        if computed is None:
            break
        start = now()
        whole, waited, sent = reduction.all_reduce(update, computed)  # 2
        if sent:
            runner.exchanged(update, start, waited, sent)
        start, base = now(), store.updates
        rule.update(store, Arrival(runner.learner.settle(whole)))  # 3
        del computed, whole  # their memory serves the next gradient
        runner.applied(update, base, store.updates, start)
        leave(update + 1)
        runner.state_writer.in_step(update, update + 1, state)
